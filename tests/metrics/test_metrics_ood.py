import math

import pytest
import reference_metrics as reference
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from kepsvgp import metrics
from kepsvgp.errors import UserError
from kepsvgp.metrics import UndefinedMetricWarning

SAMPLE, EXAMPLE, CLASS = 3, 7, 5
levels = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


@pytest.fixture
def logits(generator: torch.Generator) -> Tensor:
    return 3 * torch.randn(SAMPLE, EXAMPLE, CLASS, generator=generator, dtype=torch.float64)


@given(levels, levels, st.sampled_from(["in", "out"]))
def test_ood_metrics_match_loops_and_scikit_learn(inside, outside, positive) -> None:
    in_scores, out_scores = torch.tensor(inside).double(), torch.tensor(outside).double()
    # the definition in words: in-distribution is found by low scores, the other by high ones
    sign = 1 if positive == "out" else -1
    scores = [sign * s for s in inside + outside]
    is_positive = [positive == "in"] * len(inside) + [positive == "out"] * len(outside)
    actual = metrics.ood_metrics(in_scores, out_scores, positive=positive)
    assert actual == pytest.approx(
        {
            "ood_auroc": reference.auroc(scores, is_positive),
            "ood_aupr": reference.average_precision(scores, is_positive),
            "ood_fpr95": reference.fpr_at_recall(scores, is_positive, 0.95),
        },
        abs=1e-12,
    )
    expected = sklearn.metrics.roc_auc_score(is_positive, scores)
    assert actual["ood_auroc"] == pytest.approx(expected, abs=1e-12)
    expected = sklearn.metrics.average_precision_score(is_positive, scores)
    assert actual["ood_aupr"] == pytest.approx(expected, abs=1e-12)


@given(levels, levels)
def test_ood_auroc_is_the_same_for_both_positive_classes(inside, outside) -> None:
    sets = torch.tensor(inside).double(), torch.tensor(outside).double()
    expected = metrics.ood_metrics(*sets, positive="out")["ood_auroc"]
    found = metrics.ood_metrics(*sets, positive="in")["ood_auroc"]
    assert found == pytest.approx(expected, abs=1e-12)


def test_ood_metrics_depend_on_the_positive_class() -> None:
    familiar, foreign = torch.tensor([0.0, 1.0, 5.0, 6.0]), torch.tensor([2.0, 3.0])
    outside, inside = (
        metrics.ood_metrics(familiar, foreign, positive=side) for side in ("out", "in")
    )
    # to find both foreign ones, the familiar ones above 2 are taken as well
    assert (outside["ood_fpr95"], inside["ood_fpr95"]) == (0.5, 1.0)
    # ranks 3 and 4 of the scores from above, 1, 2, 5 and 6 from below
    assert outside["ood_aupr"] == pytest.approx((1 / 3 + 2 / 4) / 2)
    assert inside["ood_aupr"] == pytest.approx((1 + 1 + 3 / 5 + 4 / 6) / 4)


@pytest.mark.parametrize("empty", ["in", "out", "both"])
def test_ood_metrics_of_an_empty_set_warn_once(empty: str) -> None:
    familiar = torch.zeros(0 if empty != "out" else 3)
    foreign = torch.ones(0 if empty != "in" else 2)
    with pytest.warns(UndefinedMetricWarning) as caught:
        values = metrics.ood_metrics(familiar, foreign, positive="out")
    assert len(caught) == 1
    assert all(math.isnan(value) for value in values.values())


def test_ood_metrics_refuse_nan_scores() -> None:
    with pytest.raises(UserError, match="out_scores must not hold NaN"):
        metrics.ood_metrics(torch.zeros(2), torch.tensor([torch.nan]), positive="out")


def test_energy_matches_loops_and_averages_over_samples(logits: Tensor) -> None:
    for temperature in (1.0, 2.5):
        energies = [
            -temperature * math.log(sum(math.exp(f / temperature) for f in row))
            for row in logits[0].tolist()
        ]
        actual = metrics.energy_score(logits[0], temperature=temperature)
        assert_close(actual, torch.tensor(energies, dtype=torch.float64))
    each = torch.stack([metrics.energy_score(sample) for sample in logits])
    assert_close(metrics.energy_score(logits), each.mean(0))


def test_every_score_is_larger_where_the_model_is_less_certain() -> None:
    logits = torch.tensor([[9.0, 0.0, 0.0], [1.0, 0.5, 0.0]], dtype=torch.float64)
    scores = [metrics.confidence_score(logits.softmax(-1)), metrics.energy_score(logits)]
    assert all(score[0] < score[1] for score in scores)
