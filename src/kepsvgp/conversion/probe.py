"""Whether a model of timm that was built anew computes what the saved one did.

Activations, numbers of heads and the like show in no shape of a weight: arguments of
`create_model` that nobody saved would change the model unseen.
"""

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kepsvgp.errors import UserError

_KEPT = 16
_TOLERANCE = 1e-4


def answer(model: nn.Module) -> list[float] | None:
    """The first logits of an image that is always the same; None where it cannot be answered."""
    try:
        shape = _shape(model)
        image = torch.arange(math.prod(shape)).double().sin().reshape(1, *shape)
        with torch.no_grad():
            # however devices round, and whatever autocast makes of fewer bits
            out = copy.deepcopy(model).cpu().double().eval()(image)
    except Exception:  # of its inputs nothing is known for sure
        return None
    if not isinstance(out, Tensor) or not out.isfinite().all():
        return None
    return out.flatten()[:_KEPT].tolist()


def _shape(model: Any) -> tuple[int, ...]:
    config: Any = model.pretrained_cfg
    channels, *size = config["input_size"]
    convolutions = (m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d))
    size = getattr(getattr(model, "patch_embed", None), "img_size", None) or size
    return next(convolutions, channels), *size


def check_answer(model: nn.Module, saved: Sequence[float] | None, folder: Path) -> None:
    """Refuses a model that answers otherwise than the one that was saved."""
    found = None if saved is None else answer(model)
    if saved is None or found is None:
        return
    if math.dist(found, saved) > _TOLERANCE * math.hypot(*saved):
        raise UserError(
            f"{folder} must hold every argument of create_model that changes the model; the one "
            "that it makes answers otherwise than the one that was saved. Give them when saving, "
            "save_pretrained(…, model_args={'act_layer': …}), or load_pretrained(folder, "
            "model=timm.create_model(…)) as it was."
        )
