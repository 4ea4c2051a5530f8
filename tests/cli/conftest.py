import shutil
from pathlib import Path

import pytest
from commands import SMALL, call


@pytest.fixture(scope="session")
def config() -> Path:
    return SMALL


@pytest.fixture(scope="session")
def _trained(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    assert call("train", config, "train.epochs=1", "--out", out) == 0
    return out


@pytest.fixture
def trained(_trained: Path, tmp_path: Path) -> Path:
    """A run of KEP-SVGP after one epoch, in a folder of this test's own."""
    return Path(shutil.copytree(_trained, tmp_path / "trained"))
