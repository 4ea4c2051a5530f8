"""Which modules of a model are converted, and why some are not."""

import inspect
from collections.abc import Sequence
from typing import Literal, NamedTuple

from torch import nn

from kepsvgp.conversion.base import Adapter, ConvertedAttention
from kepsvgp.conversion.huggingface import (
    ConvertedBertAttention,
    ConvertedDistilBertAttention,
    ConvertedViTAttention,
)
from kepsvgp.conversion.timm_models import ConvertedTimmAttention
from kepsvgp.conversion.torch_nn import ConvertedMultiheadAttention
from kepsvgp.errors import UserError

Layers = int | Sequence[int] | Literal["all"]

ADAPTERS: tuple[Adapter, ...] = (
    ConvertedMultiheadAttention,
    ConvertedBertAttention,
    ConvertedDistilBertAttention,
    ConvertedViTAttention,
    ConvertedTimmAttention,
)

_SEE_GUIDE = "The guide on conversion shows how to write an adapter."


class Candidate(NamedTuple):
    """An attention module, its name in the model, and who converts it."""

    name: str
    module: nn.Module
    adapter: Adapter | None
    """None where it is converted already."""


def candidates(model: nn.Module, adapters: Sequence[Adapter] = ()) -> list[Candidate]:
    """The self-attention modules of a model, in order; a user's adapters come first."""
    found: list[Candidate] = []
    for name, module in model.named_modules():
        if isinstance(module, ConvertedAttention):
            found.append(Candidate(name, module, None))
            continue
        for adapter in (*adapters, *ADAPTERS):
            if adapter.matches(module):
                found.append(Candidate(name, module, adapter))
                break
    return found


def select(model: nn.Module, layers: Layers, adapters: Sequence[Adapter] = ()) -> list[Candidate]:
    """The modules that `layers` names: the last so many, these indices, or all."""
    found = candidates(model, adapters)
    if not found:
        raise UserError(_nothing_found(model))
    chosen = [found[index] for index in _indices(layers, len(found))]
    for name, module, adapter in chosen:
        if adapter is None:
            raise UserError(f"layers must name unconverted modules; {name} was converted before.")
        reason = _decoder(model, name) or _positions(module) or adapter.refusal(module)
        if reason is not None:
            raise UserError(
                f"{name or 'the model'} ({type(module).__name__}) cannot be converted: {reason}. "
                "Only self-attention over whole sequences has the kernel of this method."
            )
    return chosen


def _indices(layers: Layers, count: int) -> list[int]:
    if layers == "all":
        return list(range(count))
    if isinstance(layers, str):
        raise UserError(f"layers must be a number, indices or 'all'; got {layers!r}.")
    if isinstance(layers, int):
        if not 1 <= layers <= count:
            raise UserError(f"layers must be between 1 and {count}, the model's; got {layers}.")
        return list(range(count - layers, count))
    if not layers or not all(-count <= index < count for index in layers):
        raise UserError(f"layers must be indices of {count} layers; got {list(layers)}.")
    return sorted({index % count for index in layers})


def _decoder(model: nn.Module, name: str) -> str | None:
    parts = name.split(".")
    for end in range(len(parts)):
        parent = model.get_submodule(".".join(parts[:end]))
        if isinstance(parent, nn.TransformerDecoderLayer):
            kind = "cross-attention" if parts[-1] == "multihead_attn" else "causal attention"
            return f"it is the {kind} of a decoder"
    return None


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


def _nothing_found(model: nn.Module) -> str:
    """Says what there is instead of a module we know."""
    unknown = {
        type(module).__name__: module
        for module in model.modules()
        if "attention" in type(module).__name__.lower()
    }
    reasons = []
    for kind, module in unknown.items():
        reason = _positions(module)
        if getattr(module, "is_causal", False):
            reason = "it is causal: a token must not see the ones after it"
        reasons.append(f"{kind}: {reason or 'unknown to us'}")
    seen = "; ".join(reasons) if reasons else "no module whose name says attention"
    return (
        "model must have self-attention of torch.nn, Hugging Face (BERT, RoBERTa, DistilBERT, "
        f"ELECTRA, ViT, DeiT) or timm; got {type(model).__name__} with {seen}. {_SEE_GUIDE}"
    )
