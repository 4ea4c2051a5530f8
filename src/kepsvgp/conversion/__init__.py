"""Existing models in, uncertainty-aware models out: torch.nn, Hugging Face, timm, or your own."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from torch import nn

from kepsvgp.conversion.base import Adapter as Adapter
from kepsvgp.conversion.base import ConvertedAttention as ConvertedAttention
from kepsvgp.conversion.base import Source as Source
from kepsvgp.conversion.base import replace
from kepsvgp.conversion.folder import save_pretrained as save_pretrained
from kepsvgp.conversion.hub import adopt
from kepsvgp.conversion.hub import load_pretrained as load_pretrained
from kepsvgp.conversion.hub import push_to_hub as push_to_hub
from kepsvgp.conversion.maps import Affine as Affine
from kepsvgp.conversion.mean import attach, make_pair, pairs_of
from kepsvgp.conversion.mean import converted_layers as converted_layers
from kepsvgp.conversion.selection import Layers, Mean, select
from kepsvgp.conversion.torch_nn import without_nested_tensors
from kepsvgp.conversion.warm_start import record, warm_start
from kepsvgp.conversion.watch import watch_others
from kepsvgp.errors import UserError, told


@told
def convert(
    model: nn.Module,
    layers: Layers = 1,
    *,
    mean: Mean = "attention",
    calibration: Iterable[Any] | None = None,
    warm_steps: int = 300,
    rank: int | None = None,
    adapters: Sequence[Adapter] = (),
    **settings: Any,
) -> nn.Module:
    """Gives self-attention modules of `model` a posterior, in place, and returns the model.

    With `mean="attention"` the trained modules stay as they are, whatever they do inside, and are
    the mean function of the pair of GPs that is put beside each: f ~ GP(attention, K Kᵀ). The
    model answers as before; `fit_posterior` finds how sure it may be, `fit_novelty` what is
    foreign to it. With `mean="zero"` the modules are replaced by the paper's layer, which begins
    from the trained maps and wants fine-tuning.

    Args:
        model: A trained model of Hugging Face, timm, torch.nn or your own, loaded already.
        layers: The last so many attention modules, their indices or names, or `"all"`.
        mean: What the GPs vary around: the attention that was there, or zero.
        calibration: `mean="zero"`: a few batches of inputs without labels, each a tensor or a
            mapping that is passed by keyword, to which the layer is fitted so that it gives what
            the original gave (see `kepsvgp.conversion.warm_start`).
        warm_steps: Steps of that fit, for each layer.
        rank: Rank s of the layers; the width of a head by default, at most 32 where it stays.
        adapters: `mean="zero"`: subclasses of `ConvertedAttention` for modules of other libraries.
        settings: Further arguments of `KEPAttention`, such as `projection` or `noise`; the
            projection is `"dual"` by default, which serves sequences of any length.

    Examples:
        >>> before = predict(model, inputs).probs
        >>> torch.allclose(predict(convert(model), inputs).probs, before, atol=1e-4)
        True
    """
    if mean not in get_args(Mean):
        raise UserError(f"mean must be 'attention' or 'zero'; got {mean!r}.")
    if warm_steps < 1:
        raise UserError(f"warm_steps must be at least 1; got {warm_steps}.")
    if mean == "attention" and (calibration is not None or adapters):
        raise UserError("calibration and adapters must go with mean='zero': nothing is replaced.")
    chosen = select(model, layers, mean, adapters)
    modules = [candidate.module for candidate in chosen]
    without_nested_tensors(model, modules)
    if mean == "attention":
        given = settings if rank is None else settings | {"rank": rank}
        for module, pair in [(module, make_pair(module, given)) for module in modules]:
            attach(module, pair)
        watch_others(model)
        return adopt(model)
    calls = {} if calibration is None else record(model, modules, calibration)
    made = {}
    for name, module, adapter, _ in chosen:
        assert adapter is not None
        made[name] = converted = adapter(module, rank=rank, **settings)
        if calls:
            converted.start_error = warm_start(converted, calls.pop(module), steps=warm_steps)
    # once all are made: where one cannot be, the model stays what it was
    for name, converted in made.items():
        model = replace(model, name, converted)
    watch_others(model)
    return adopt(model)


def new_parameters(model: nn.Module) -> set[nn.Parameter]:
    """What converted layers have of their own: all but the query and key maps they took over."""
    layers = pairs_of(model)
    copied = {p for kep in layers for p in kep.to_qk.parameters()}
    return {p for kep in layers for p in kep.parameters()} - copied


def trained_parameters(model: nn.Module) -> set[nn.Parameter]:
    """What is new in converted layers and is trained; a warning where PEFT has frozen it all."""
    new = {p for p in new_parameters(model) if p.requires_grad}
    if not new and hasattr(model, "peft_config"):
        warnings.warn(
            "the converted layers are not trained: PEFT has frozen them with the rest of the "
            "model. Give its configuration modules_to_save=['kep'] to train them and to save "
            "them with the adapter, or fit them afterwards by fit_posterior.",
            stacklevel=4,
        )
    return new


@told
def parameter_groups(
    model: nn.Module, *, lr: float, new_lr: float, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer: what is new in converted layers learns at `new_lr`.

    What was pretrained wants small steps, the query and key maps that a converted layer took over
    included; what is new wants larger ones, and no weight decay: the KL is its regulariser.

    Examples:
        >>> groups = parameter_groups(convert(model), lr=1e-5, new_lr=1e-3, weight_decay=0.01)
        >>> optimizer = torch.optim.AdamW(groups)
    """
    new = trained_parameters(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p not in new], "lr": lr, "weight_decay": weight_decay},
        {"params": [p for p in trained if p in new], "lr": new_lr, "weight_decay": 0.0},
    ]
