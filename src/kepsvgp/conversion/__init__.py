"""Existing models in, uncertainty-aware models out: torch.nn, Hugging Face, timm, or your own."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from kepsvgp.conversion.base import Adapter as Adapter
from kepsvgp.conversion.base import Affine as Affine
from kepsvgp.conversion.base import ConvertedAttention as ConvertedAttention
from kepsvgp.conversion.base import Source as Source
from kepsvgp.conversion.base import converted_layers as converted_layers
from kepsvgp.conversion.base import replace
from kepsvgp.conversion.folder import load_pretrained as load_pretrained
from kepsvgp.conversion.folder import save_pretrained as save_pretrained
from kepsvgp.conversion.selection import Layers, select
from kepsvgp.conversion.torch_nn import without_nested_tensors
from kepsvgp.conversion.warm_start import record, warm_start
from kepsvgp.errors import UserError


def convert(
    model: nn.Module,
    layers: Layers = 1,
    *,
    calibration: Iterable[Any] | None = None,
    warm_steps: int = 300,
    rank: int | None = None,
    adapters: Sequence[Adapter] = (),
    **settings: Any,
) -> nn.Module:
    """Replaces self-attention modules of `model` by KEP layers, in place, and returns the model.

    The trained query, key and output maps stay. The new layer begins from the trained values;
    with `calibration`, it is then fitted to give what the original gave (see
    `kepsvgp.conversion.warm_start`), so that the model is close to the one it came from before
    any fine-tuning.

    Args:
        model: A trained model with attention of torch.nn, Hugging Face or timm, loaded already.
        layers: The last so many attention modules, or their indices, or `"all"`.
        calibration: A few batches of inputs without labels, each a tensor or a mapping that is
            passed by keyword.
        warm_steps: Steps of the fit, for each layer.
        rank: Rank s of the layers; the width of a head by default.
        adapters: Subclasses of `ConvertedAttention` for modules of other libraries.
        settings: Further arguments of `KEPAttention`, such as `projection` or `noise`; the
            projection is `"dual"` by default, which serves sequences of any length.
    """
    if warm_steps < 1:
        raise UserError(f"warm_steps must be at least 1; got {warm_steps}.")
    chosen = select(model, layers, adapters)
    modules = [candidate.module for candidate in chosen]
    without_nested_tensors(model, modules)
    calls = {} if calibration is None else record(model, modules, calibration)
    made = {}
    for name, module, adapter in chosen:
        assert adapter is not None
        made[name] = converted = adapter(module, rank=rank, **settings)
        if calls:
            converted.start_error = warm_start(converted, calls.pop(module), steps=warm_steps)
    # once all are made: where one cannot be, the model stays what it was
    for name, converted in made.items():
        model = replace(model, name, converted)
    return model


def new_parameters(model: nn.Module) -> set[nn.Parameter]:
    """What converted layers have of their own: all but the query and key maps they took over."""
    layers = [layer.kep for layer in converted_layers(model).values()]
    copied = {p for kep in layers for p in kep.to_qk.parameters()}
    return {p for kep in layers for p in kep.parameters()} - copied


def parameter_groups(
    model: nn.Module, *, lr: float, new_lr: float, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer: what is new in converted layers learns at `new_lr`.

    What was pretrained wants small steps, the query and key maps that a converted layer took over
    included; what is new wants larger ones, and no weight decay: the KL is its regulariser.
    """
    new = new_parameters(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p not in new], "lr": lr, "weight_decay": weight_decay},
        {"params": [p for p in trained if p in new], "lr": new_lr, "weight_decay": 0.0},
    ]
