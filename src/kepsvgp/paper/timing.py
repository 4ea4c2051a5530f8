"""Times of training steps, methods side by side in one process.

In every round each method takes one step on the same batch of the training set, one after the
other, so that whatever else the machine does meanwhile meets all of them alike. Times do not
depend on the weights, so that the models are new ones.
"""

import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.optim import Adam

from kepsvgp.config.plugins import find_method
from kepsvgp.config.sections import RunConfig
from kepsvgp.data import Batch, Benchmark, batches, load_benchmark
from kepsvgp.files import write_json
from kepsvgp.inference.calls import call, to_device
from kepsvgp.ops.device import find_device
from kepsvgp.ops.noise import kept_random_state
from kepsvgp.paper.plan import Timing
from kepsvgp.paper.records import OutputRoot
from kepsvgp.runs.record import input_shape
from kepsvgp.training.objective import objective

ROUNDS = 12
WARM_UP = 2


class Times(NamedTuple):
    """Seconds of one row, one entry for each round.

    Attributes:
        forward: Forward pass and loss of one training batch.
        step: The same with the backward pass and the optimizer.
        steps_per_epoch: Steps of an epoch.
    """

    forward: list[float]
    step: list[float]
    steps_per_epoch: int


def measure_times(timing: Timing, out: Path) -> None:
    """Takes the times and writes them to `timings/`."""
    first = next(iter(timing.configs.values()))
    benchmark = load_benchmark(first.data)
    times = side_by_side(timing.configs, benchmark)
    content = {
        "times": {row: value._asdict() for row, value in times.items()},
        "threads": torch.get_num_threads(),
        "device": str(find_device(first.train.device)),
    }
    write_json(OutputRoot(out).timing_file(timing), content)


def side_by_side(
    configs: Mapping[str, RunConfig], benchmark: Benchmark, *, rounds: int = ROUNDS
) -> dict[str, Times]:
    """Times of every row, round by round."""
    first = next(iter(configs.values()))
    device = find_device(first.train.device)
    size = min(first.train.batch_size, len(benchmark.train))
    loader = batches(
        benchmark.train,
        size,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        drop_last=True,
    )
    some = [
        Batch(to_device(b.inputs, device), b.labels.to(device), b.index)
        for b in islice(loader, rounds)
    ]
    steps = len(benchmark.train) // size
    times = {row: Times([], [], steps) for row in configs}
    with kept_random_state():
        torch.manual_seed(0)
        rows = {row: _Stepper(config, benchmark, device) for row, config in configs.items()}
        for number in range(WARM_UP + rounds):
            batch = some[number % len(some)]
            for row, stepper in rows.items():
                forward, step = stepper.step(batch)
                if number >= WARM_UP:
                    times[row].forward.append(forward)
                    times[row].step.append(step)
    return times


class _Stepper:
    """A new model that can take training steps."""

    def __init__(self, config: RunConfig, benchmark: Benchmark, device: torch.device) -> None:
        method, num_classes = find_method(config.method), len(benchmark.classes)
        network: nn.Module = method.network(config.model, input_shape(benchmark), num_classes)
        self.model = network.to(device).train()
        self.optimizer = Adam(self.model.parameters(), lr=1e-5, fused=True)
        self.config, self.num_train, self.device = config, len(benchmark.train), device
        self.kl_weight = method.kl_weight(config, self.num_train)

    def step(self, batch: Batch) -> tuple[float, float]:
        """Seconds of the forward pass with the loss, and of the whole step."""
        start = self._now()
        terms = objective(
            call(self.model, batch.inputs),
            batch.labels,
            self.model,
            num_train=self.num_train,
            ksvd_weight=self.config.objective.ksvd_weight,
            kl_weight=self.kl_weight,
        )
        middle = self._now()
        terms.total.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return middle - start, self._now() - start

    def _now(self) -> float:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        return time.perf_counter()
