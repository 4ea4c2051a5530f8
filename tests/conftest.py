import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# no example is judged by the clock: machines that run tests are busy
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the reference numbers; `KEPSVGP_GOLDEN` may point elsewhere."""
    return Path(os.environ.get("KEPSVGP_GOLDEN", Path(__file__).parent / "golden"))


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the real data sets; tests that need one skip where it is absent."""
    root = os.environ.get("KEPSVGP_DATA")
    if root is None or not Path(root).is_dir():
        pytest.skip("real data sets not at hand: set KEPSVGP_DATA to their folder")
    return Path(root)


@pytest.fixture
def plain_products() -> Iterator[None]:
    """Products without oneDNN, whose bfloat16 kernels fail on some virtual processors."""
    with warnings.catch_warnings():
        # the switch also sets a flag for GPUs that are not there, and says so
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False):
            yield
