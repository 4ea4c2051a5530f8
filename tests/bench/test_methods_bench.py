import json
from pathlib import Path

import pytest

from kepsvgp.bench import methods
from kepsvgp.bench.methods import measurements
from kepsvgp.bench.options import Options
from kepsvgp.errors import UserError

pytest.importorskip("gpytorch")
pytest.importorskip("laplace")


def test_every_method_is_timed_beside_softmax() -> None:
    (costs,) = measurements(Options(rounds=3, small=True))

    trained = {"msp", "kep", "sgpa", "primal", "sngp", "svdkl"}
    assert set(costs.epoch) == trained
    posthoc = {"temperature", "mc_dropout", "kfllla", "ensemble"}
    combined = {"kep+temperature", "kep+kfllla", "kep+ensemble"}
    assert set(costs.prediction) == trained | posthoc | combined
    for costs_of in (costs.epoch, costs.prediction):
        assert costs_of["msp"].ratio == 1.0
        assert all(cost.seconds > 0 and cost.ratio > 0 for cost in costs_of.values())
    assert json.loads(json.dumps(costs.summary()))["prediction"]["msp"]["ratio"] == 1.0
    assert costs.table().row_count == len(costs.prediction)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what would be measured, data loaded but no time taken."""
    names = []

    def measure(config, name, options, **_) -> None:
        methods.load_benchmark(config.data)
        names.append(name)

    monkeypatch.setattr(methods, "measure", measure)
    return names


def test_digits_stand_in_for_absent_data_alone(
    tmp_path: Path, named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEPSVGP_DATA", str(tmp_path))
    list(measurements(Options()))
    assert named == ["methods on digits, as CoLA is not at hand"]

    folder = tmp_path / "cola_public" / "raw"
    folder.mkdir(parents=True)
    for name in ("in_domain_train", "in_domain_dev", "out_of_domain_dev"):
        (folder / f"{name}.tsv").write_text("no CoLA\n")
    with pytest.raises(UserError, match="a CoLA file of 8551 lines"):
        list(measurements(Options()))
