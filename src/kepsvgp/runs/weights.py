"""Weights of trained models as safetensors files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from kepsvgp.errors import UserError
from kepsvgp.files import CheckedFolder

Checkpoint = Literal["last", "score", "nll"]
CHECKPOINTS: tuple[Checkpoint, ...] = ("last", "score", "nll")


def as_checkpoint(name: str) -> Checkpoint:
    """A checkpoint by its name."""
    for known in CHECKPOINTS:
        if name == known:
            return known
    raise UserError(f"a checkpoint must be one of {', '.join(CHECKPOINTS)}; got {name!r}.")


def write_weights(
    folder: CheckedFolder, name: str, tensors: Mapping[str, Tensor], about: Mapping[str, str]
) -> None:
    """Replaces a safetensors file of a folder, with some words about the tensors.

    The words are one entry of the header: safetensors keeps several in no order, and equal
    weights should be equal files.
    """
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with folder.replacing(name) as temporary:
        save_file(contiguous, temporary, metadata={"about": json.dumps(dict(about))})


def weights_about(path: Path) -> dict[str, str]:
    """The words about the tensors of a safetensors file."""
    with safe_open(path, framework="pt") as file:
        found = file.metadata() or {}
    return json.loads(found["about"]) if "about" in found else found
