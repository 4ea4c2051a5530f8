"""How the cost of a layer grows with the length of the sequence."""

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch.profiler import profile

from benchmarks.layer import Shape, step, tensors
from benchmarks.timing import Options, compare
from kepsvgp.attention import KEPAttention, SoftmaxAttention

MUST, WISH = 1.1, 1.0
DIM, HEADS, RANK = 128, 8, 10


@dataclass(frozen=True, slots=True)
class Growth:
    """Cost against length, and the exponents: cost ~ lengthᵅ."""

    name: str
    lengths: tuple[int, ...]
    seconds: tuple[float, ...]
    peak_bytes: tuple[int, ...]
    must: float | None = None
    wish: float | None = None

    @property
    def time_exponent(self) -> float:
        """Slope of log seconds against log length."""
        return exponent(self.lengths, self.seconds)

    @property
    def memory_exponent(self) -> float:
        """Slope of log peak memory against log length."""
        return exponent(self.lengths, self.peak_bytes)

    @property
    def passed(self) -> bool | None:
        """Whether both exponents are within the limit."""
        if self.must is None:
            return None
        return max(self.time_exponent, self.memory_exponent) <= self.must

    def summary(self) -> dict[str, Any]:
        """Everything of interest, ready for JSON."""
        return asdict(self) | {
            "time_exponent": self.time_exponent,
            "memory_exponent": self.memory_exponent,
            "passed": self.passed,
        }


def measurements(options: Options) -> Iterator[Growth]:
    """KEP with both projections up to 16,384 tokens, and fused softmax as far as it is bearable."""
    longest = 1024 if options.small else 16_384
    lengths = [n for n in (256, 512, 1024, 2048, 4096, 8192, 16_384) if n <= longest]
    for projection in ("dual", "landmark"):
        layer = KEPAttention(DIM, HEADS, rank=RANK, projection=projection)
        name = f"KEP, {projection}"
        yield _growth(name, layer, lengths, options, must=MUST, wish=WISH)
    softmax = SoftmaxAttention(DIM, HEADS)
    shorter = [n for n in lengths if n <= 8192]
    yield _growth("softmax, fused", softmax, shorter, options)


def _growth(
    name: str,
    layer: torch.nn.Module,
    lengths: list[int],
    options: Options,
    *,
    must: float | None = None,
    wish: float | None = None,
) -> Growth:
    steps = {}
    for length in lengths:
        shape = Shape("", 1, length, DIM, HEADS, RANK, "add", 0, (0.0, 0.0), (0.0, 0.0))
        steps[length] = step(layer, *tensors(shape))
    # the lengths take turns too: a disturbance must not look like growth
    results = compare(
        {str(length): run for length, run in steps.items()},
        baseline=str(lengths[0]),
        rounds=options.rounds,
    )
    seconds = tuple(float(np.median(results[str(length)].seconds)) for length in lengths)
    peaks = tuple(peak_bytes(run) for run in steps.values())
    return Growth(name, tuple(lengths), seconds, peaks, must, wish)


def exponent(sizes: tuple[float, ...], costs: tuple[float, ...]) -> float:
    """Slope of log cost against log size, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def peak_bytes(run: Callable[[], object]) -> int:
    """Most memory that a second call holds at once, beyond what was held before."""
    run()
    held, peak = 0, 0
    for change in allocations(run):
        held += change
        peak = max(peak, held)
    return peak


def allocations(run: Callable[[], object]) -> list[int]:
    """Sizes of torch's allocations (and, negative, of what it frees), in the order of time."""
    # the profiler's own messages about GPUs that are not there
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(profile_memory=True) as profiler:
        run()
    kineto: Any = profiler.profiler
    events = [event for event in kineto.kineto_results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
