import pytest
import torch

from kepsvgp.errors import UserError
from kepsvgp.ops.device import find_device


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda: torch.device("cuda", index=1)
    )


@pytest.mark.parametrize(
    ("wanted", "found"), [("auto", "cuda"), ("cpu", "cpu"), ("cuda", "cuda"), ("cuda:1", "cuda:1")]
)
def test_device_is_found_by_its_name(two_gpus, wanted: str, found: str) -> None:
    assert find_device(wanted) == torch.device(found)


@pytest.mark.parametrize("wanted", ["cuda:2", "mps", "tpu"])
def test_absent_device_is_refused_or_left_where_it_does_not_bind(two_gpus, wanted: str) -> None:
    with pytest.raises(UserError, match=r"one of cpu, cuda, cuda:0, cuda:1 on this machine; got"):
        find_device(wanted)
    assert find_device(wanted, is_binding=False) == torch.device("cuda")
