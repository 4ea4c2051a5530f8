"""Weights of trained models as safetensors files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kepsvgp.errors import UserError
from kepsvgp.files import RUN, check_run, check_tensors, replacing, seal_tensors, tensor_metadata

Checkpoint = Literal["last", "score", "nll"]
CHECKPOINTS: tuple[Checkpoint, ...] = ("last", "score", "nll")

_TRAIN_AGAIN = "Train to the end of an epoch, with `kepsvgp train … --resume` or into a new folder."


def as_checkpoint(name: str) -> Checkpoint:
    """A checkpoint by its name."""
    for known in CHECKPOINTS:
        if name == known:
            return known
    raise UserError(f"a checkpoint must be one of {', '.join(CHECKPOINTS)}; got {name!r}.")


def write_weights(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Weights as a safetensors file, as a whole or not at all, with some words about them."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        save_file(contiguous, temporary, metadata=tensor_metadata(about))
        seal_tensors(temporary)


def read_weights(path: Path, *, run: str = "") -> dict[str, Tensor]:
    """The tensors of a safetensors file; what is wrong with it is a `UserError`."""
    check_run(path, weights_about(path).get(RUN), run, _TRAIN_AGAIN)
    return load_file(path)


def load_weights(model: nn.Module, path: Path, *, run: str = "") -> None:
    """Gives a model the weights of a file; those of another model or run are refused."""
    try:
        model.load_state_dict(read_weights(path, run=run))
    except RuntimeError as error:
        reason = str(error).partition("\n")[2].strip().partition("\n")[0]
        raise UserError(
            f"{path} must hold weights of the model that config.toml describes; they are of "
            f"another ({reason}). {_TRAIN_AGAIN}"
        ) from None


def weights_about(path: Path) -> dict[str, str]:
    """The words about the weights in a safetensors file."""
    return check_tensors(path, "trained weights", _TRAIN_AGAIN)
