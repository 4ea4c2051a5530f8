"""Which modules of a model are converted, and why some are not."""

import inspect
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from torch import nn

from kepsvgp.conversion.base import Adapter, ConvertedAttention
from kepsvgp.conversion.huggingface import (
    ConvertedBertAttention,
    ConvertedDistilBertAttention,
    ConvertedViTAttention,
)
from kepsvgp.conversion.maps import find_maps
from kepsvgp.conversion.mean import pair_of
from kepsvgp.conversion.timm_models import ConvertedTimmAttention
from kepsvgp.conversion.torch_nn import ConvertedMultiheadAttention
from kepsvgp.errors import UserError, near_miss

Layers = int | Sequence[int] | Sequence[str] | Literal["all"]
Mean = Literal["attention", "zero"]

ADAPTERS: tuple[Adapter, ...] = (
    ConvertedMultiheadAttention,
    ConvertedBertAttention,
    ConvertedDistilBertAttention,
    ConvertedViTAttention,
    ConvertedTimmAttention,
)

_STAY = "With mean='attention' the module stays as it is and can be converted."


class Candidate(NamedTuple):
    """An attention module, its name in the model, and who converts it."""

    name: str
    module: nn.Module
    adapter: Adapter | None
    """None where the module stays, as the mean function."""
    is_converted: bool = False


def candidates(model: nn.Module, mean: Mean, adapters: Sequence[Adapter] = ()) -> list[Candidate]:
    """The self-attention modules of a model, in order; a user's adapters come first."""
    found: list[Candidate] = []
    for name, module in model.named_modules():
        if isinstance(module, ConvertedAttention) or pair_of(module) is not None:
            found.append(Candidate(name, module, None, is_converted=True))
        elif mean == "attention":
            if find_maps(module) is not None and not _other_sequence(model, name):
                found.append(Candidate(name, module, None))
        else:
            known = (each for each in (*adapters, *ADAPTERS) if each.matches(module))
            adapter = next(known, None)
            if adapter is not None:
                found.append(Candidate(name, module, adapter))
    return found


def select(
    model: nn.Module, layers: Layers, mean: Mean, adapters: Sequence[Adapter] = ()
) -> list[Candidate]:
    """The modules that `layers` names: the last so many, these indices or names, or all."""
    found = candidates(model, mean, adapters)
    names = _names(layers)
    if names is not None:
        chosen = [_named(model, name, found, mean) for name in names]
    elif not found:
        raise UserError(_nothing_found(model, mean))
    else:
        chosen = [found[index] for index in _indices(layers, len(found))]
    for name, module, adapter, is_converted in chosen:
        if is_converted:
            raise UserError(f"layers must name unconverted modules; {name} was converted before.")
        if adapter is None:
            continue
        reason = _other_sequence(model, name) or _causal(model, name)
        reason = reason or _positions(module) or adapter.refusal(module)
        if reason is not None:
            raise UserError(
                f"{name or 'the model'} ({type(module).__name__}) cannot be replaced: {reason}. "
                f"{_STAY}"
            )
    return chosen


def _names(layers: Layers) -> list[str] | None:
    if isinstance(layers, str | int):
        return None
    names = [each for each in layers if isinstance(each, str)]
    return names if names and len(names) == len(layers) else None


def _named(model: nn.Module, name: str, found: list[Candidate], mean: Mean) -> Candidate:
    """A module by its name, known to us or not."""
    known = {candidate.name: candidate for candidate in found}
    if name in known:
        return known[name]
    modules = dict(model.named_modules())
    if name in modules and mean == "attention":
        return Candidate(name, modules[name], None)
    problem = "which this class of model has not" if name not in modules else "which is unknown"
    raise UserError(
        f"layers must name attention modules; got {name!r}, {problem}. The model has "
        f"{', '.join(known) or 'none that is known'}.{near_miss(name, known)}"
    )


def _indices(layers: Layers, count: int) -> list[int]:
    if layers == "all":
        return list(range(count))
    if isinstance(layers, str):
        raise UserError(
            f"layers must be a number, indices, a list of names or 'all'; got {layers!r}."
        )
    if isinstance(layers, int):
        if not 1 <= layers <= count:
            raise UserError(f"layers must be between 1 and {count}, the model's; got {layers}.")
        return list(range(count - layers, count))
    indices = [each for each in layers if isinstance(each, int) and -count <= each < count]
    if not indices or len(indices) < len(layers):
        raise UserError(f"layers must be indices of {count} layers; got {list(layers)}.")
    return sorted({index % count for index in indices})


def _other_sequence(model: nn.Module, name: str) -> str | None:
    """Attention to another sequence than the tokens themselves shows in names."""
    parts = name.split(".")
    last = parts[-1].lower()
    is_cross = any(word in last for word in ("cross", "encdec", "encoder_attn"))
    if is_cross or re.search("cross_?att", name.lower()):
        return "it is cross-attention"
    if getattr(model.get_submodule(name), "is_cross_attention", False):
        return "it is cross-attention"
    has_encoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if has_encoder and "decoder" in parts:
        return "its decoder reads what the encoder made"
    if name:
        parent = model.get_submodule(".".join(parts[:-1]))
        if isinstance(parent, nn.TransformerDecoderLayer) and last == "multihead_attn":
            return "it is the cross-attention of a decoder"
        if "pool" in type(parent).__name__.lower():
            return "it pools the tokens by a query of its own"
    return None


def _causal(model: nn.Module, name: str) -> str | None:
    parent = model.get_submodule(name.rpartition(".")[0]) if name else model
    is_decoder = isinstance(parent, nn.TransformerDecoderLayer)
    return "it is the causal attention of a decoder" if is_decoder else None


def _positions(module: nn.Module) -> str | None:
    """Relative or rotary positions show in the signature or the attributes."""
    arguments = inspect.signature(module.forward).parameters
    names = [*arguments, *vars(module), *module._parameters, *module._buffers, *module._modules]
    for name in names:
        if any(
            word in name
            for word in ("rel_pos", "relative", "position_bias", "rotary", "rope", "freqs")
        ):
            return f"its scores depend on relative positions ({name}), which the kernel has not"
        if name == "position_embeddings":
            return f"its queries and keys are rotated by position ({name})"
    return None


def _nothing_found(model: nn.Module, mean: Mean) -> str:
    """Says what there is instead of a module we know."""
    kinds = sorted({type(m).__name__ for m in model.modules() if "att" in type(m).__name__.lower()})
    wanted = {
        "attention": "whose query, key and value maps are known by their names",
        "zero": "of torch.nn, Hugging Face (BERT, DistilBERT, ViT and the like) or timm",
    }
    advice = {
        "attention": "Name the module that takes tokens and gives as many: "
        "convert(model, layers=['blocks.7.attn']).",
        "zero": f"{_STAY} The guide on conversion shows how to write an adapter.",
    }
    return (
        f"model must have self-attention {wanted[mean]}; got {type(model).__name__} with "
        f"{', '.join(kinds) or 'no module called attention'}. {advice[mean]}"
    )
