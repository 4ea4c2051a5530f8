"""Devices, processes and precision of a training, which the loop need not know."""

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import gather_object

from kepsvgp.config.sections import TrainConfig
from kepsvgp.errors import UserError
from kepsvgp.ops.device import find_device


def make_accelerator(config: TrainConfig) -> Accelerator:
    """What hides devices, processes and precision from the loop."""
    device = find_device(config.device)
    on_cpu = device.type == "cpu"
    if on_cpu and config.precision == "fp16":
        raise UserError("train.precision must be 'float32' or 'bf16' on a CPU; got 'fp16'.")
    # accelerate keeps precision and device of the first Accelerator of a process for all later ones
    known = PartialState._shared_state.get("device", device)
    is_other = known.type != device.type and not _is_distributed()
    AcceleratorState._reset_state(reset_partial_state=is_other)
    precision = "no" if config.precision == "float32" else config.precision
    if device.index is not None:
        torch.accelerator.set_device_index(device.index)
    return Accelerator(cpu=on_cpu, mixed_precision=precision)


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def is_main_process() -> bool:
    """Whether this process speaks for all of a run's processes."""
    return PartialState().is_main_process


def mean_over_processes(sums: dict[str, float], accelerator: Accelerator) -> dict[str, float]:
    """The mean of each number over the processes."""
    if accelerator.num_processes == 1 or not sums:
        return dict(sums)
    parts = gather_object([sums])
    return {name: sum(part[name] for part in parts) / len(parts) for name in sums}
