import torch

from kepsvgp.paper.timing import _Stepper


def test_clock_waits_for_the_device_of_the_model(monkeypatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    stepper = _Stepper.__new__(_Stepper)
    stepper.device = torch.device("cuda:1")

    stepper._now()

    assert waited == [torch.device("cuda:1")]
