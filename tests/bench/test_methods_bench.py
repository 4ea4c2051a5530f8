import json

import pytest

from kepsvgp.bench.methods import measurements
from kepsvgp.bench.options import Options

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
