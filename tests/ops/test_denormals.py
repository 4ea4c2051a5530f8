"""Numbers too small for the processor's fast path are taken for zero while a model trains."""

import subprocess
import sys

import pytest
import torch

from kepsvgp.ops.denormals import flushed_denormals


def is_flushed() -> bool:
    """Whether a tenth of 10⁻³⁸ is zero."""
    return (torch.full((), 1e-38) / 10).item() == 0


@pytest.mark.parametrize("before", [False, True])
def test_denormals_are_flushed_inside_and_treated_as_before_outside(before) -> None:
    torch.set_flush_denormal(before)
    try:
        with flushed_denormals():
            assert is_flushed()
        assert is_flushed() == before
    finally:
        torch.set_flush_denormal(False)


def test_threads_that_start_inside_flush_too() -> None:
    code = """
import torch
from kepsvgp.ops.denormals import flushed_denormals
torch.set_num_threads(2)
with flushed_denormals():
    print((torch.full((10_000_000,), 1e-38) / 10).count_nonzero().item())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 0
