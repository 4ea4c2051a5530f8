"""Where a training run stands, in one file that is replaced as a whole.

Weights and the optimizer's moments are tensors, the rest is JSON in the header of the same
safetensors file, so that no crash can leave one without the other. There is no random state
in it: the order of the examples follows from the seed and the epoch, and all noise from the
seed and the step (see `kepsvgp.training.loop`).
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.optim import Optimizer

from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import Checkpoint, weights_about, write_weights

STATE = "state/state.safetensors"
_MODEL, _OPTIMIZER = "model", "optimizer"


@dataclass
class Position:
    """How far a run is, and what it has seen on the way.

    Attributes:
        epoch: Finished epochs.
        batch: Finished batches of the current epoch.
        sums: Sums of the loss terms over those batches.
        seconds: Time spent in the current epoch, over all the processes' lives.
        waited: Part of it spent waiting for data.
        best: Best validation value so far for each selected checkpoint.
        history: Entries of the finished epochs.
        scaler: The loss scale of half precision.
        done: Whether training has come to its end.
    """

    epoch: int = 0
    batch: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    waited: float = 0.0
    best: dict[Checkpoint, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    scaler: dict[str, float] | None = None
    done: bool = False


def save_state(run: RunFolder, position: Position, model: nn.Module, optimizer: Optimizer) -> None:
    """Writes where the run stands; a finished run keeps its position alone."""
    tensors = {}
    if not position.done:
        tensors = {f"{_MODEL}.{name}": value for name, value in model.state_dict().items()}
        for name, parameter in model.named_parameters():
            for moment, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{_OPTIMIZER}.{moment}.{name}"] = torch.as_tensor(value)
    write_weights(run.files, STATE, tensors, {"position": json.dumps(asdict(position))})


def load_position(run: RunFolder) -> Position | None:
    """Where a run stands; None if it has saved nothing yet."""
    if not (run.path / STATE).exists():
        return None
    return Position(**json.loads(weights_about(run.files.check(STATE))["position"]))


def load_tensors(run: RunFolder, model: nn.Module, optimizer: Optimizer) -> None:
    """Gives weights and moments back to a model and its optimizer."""
    weights: dict[str, Tensor] = {}
    moments: dict[str, dict[str, Tensor]] = {}
    with safe_open(run.files.check(STATE), framework="pt") as file:
        for key in file.keys():  # noqa: SIM118 (a safetensors file is no mapping)
            part, _, name = key.partition(".")
            if part == _MODEL:
                weights[name] = file.get_tensor(key)
            else:
                moment, _, name = name.partition(".")
                moments.setdefault(name, {})[moment] = file.get_tensor(key)
    model.load_state_dict(weights)
    names = {parameter: name for name, parameter in model.named_parameters()}
    ordered = (names[p] for group in optimizer.param_groups for p in group["params"])
    state = {number: moments[name] for number, name in enumerate(ordered) if name in moments}
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
