import pytest
import torch
from torch.testing import assert_close

from kepsvgp.errors import UserError
from kepsvgp.inference.prediction import Prediction, entropy
from kepsvgp.methods import ensemble


def certain(*probs: float) -> Prediction:
    p = torch.tensor([probs])
    return Prediction(p, entropy(p))


def test_average_is_the_mean_of_probabilities_and_disagreement_is_epistemic() -> None:
    both = ensemble.average([certain(1.0, 0.0), certain(0.0, 1.0)])

    assert_close(both.probs, torch.tensor([[0.5, 0.5]]))
    # each member is certain, so all of log 2 is disagreement
    assert_close(both.aleatoric, torch.zeros(1))
    assert_close(both.epistemic, torch.tensor([2.0]).log())


def test_ensemble_of_one_is_refused() -> None:
    with pytest.raises(UserError, match="at least two"):
        ensemble.fit([], [])
