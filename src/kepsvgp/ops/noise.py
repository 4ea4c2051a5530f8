"""Random numbers that belong to a place: a token, a channel, a head, a sample.

The number at index (i, j, …) depends on the seed and on i, j, … alone, not on how large the
tensor is. So a sequence meets the same noise whatever it is padded to and whichever batch it
comes in, which a stream of random numbers cannot give. Each axis is folded in by the
finaliser of SplitMix64, whose outputs pass the usual tests of randomness.

References:
    Steele, Lea and Flood, 2014, doi:10.1145/2660193.2660195.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor

# odd multipliers of SplitMix64, as signed 64-bit numbers; products wrap around
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Leaves torch's own random numbers, on a CPU and on accelerators, as they were before."""
    module = torch.get_device_module() if torch.accelerator.is_available() else None
    of_all = "_all" if hasattr(module, "get_rng_state_all") else ""
    state = module and getattr(module, f"get_rng_state{of_all}")()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            if module is not None:
                getattr(module, f"set_rng_state{of_all}")(state)


def draw_seeds(
    num_seeds: int, *, generator: torch.Generator | None = None
) -> Int[Tensor, " sample"]:
    """Seeds from a generator, which moves on as far whatever the seeds are used for."""
    device = "cpu" if generator is None else generator.device
    return torch.randint(2**62, (num_seeds,), generator=generator, device=device)


def fold(seeds: Int[Tensor, "*seed"], place: int) -> Int[Tensor, "*seed"]:
    """New seeds for one place, say a layer, among many that share the seeds."""
    # a tensor, as products of Python's integers do not wrap around
    number = torch.tensor(place + 1, dtype=torch.int64, device=seeds.device)
    return _mix(seeds.to(torch.int64) + number * _GAMMA)


def uniform(
    seeds: Int[Tensor, "*seed"], *shape: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "..."]:
    """Numbers strictly between 0 and 1: `shape` of them for every seed, seeds first."""
    bits = seeds.to(torch.int64)
    for size in shape:
        places = torch.arange(1, size + 1, dtype=torch.int64, device=seeds.device)
        bits = _mix(bits.unsqueeze(-1) + places * _GAMMA)
    # the upper 23 bits and a half are exact in float32; the half keeps 0 and 1 out
    return (_shift(bits, 41).to(dtype) + 0.5) * 2.0**-23


def normal(
    seeds: Int[Tensor, "*seed"], *shape: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "..."]:
    """Standard normal numbers: `shape` of them for every seed, seeds first."""
    # Φ⁻¹(p) = √2 erf⁻¹(2p − 1); 2p − 1 is exact in float32 too, which every device has
    return 2.0**0.5 * torch.erfinv(2.0 * uniform(seeds, *shape, dtype=dtype) - 1.0)


def _mix(bits: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    bits = (bits ^ _shift(bits, 30)) * _MULTIPLIERS[0]
    bits = (bits ^ _shift(bits, 27)) * _MULTIPLIERS[1]
    return bits ^ _shift(bits, 31)


def _shift(bits: Int[Tensor, "..."], places: int) -> Int[Tensor, "..."]:
    # torch shifts in copies of the sign; cut them off
    return (bits >> places) & (2 ** (64 - places) - 1)
