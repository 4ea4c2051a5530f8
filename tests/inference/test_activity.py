"""What a layer's activity is called, on a small classifier whose layer is made so."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from kepsvgp import KEPAttention, fit_posterior, predict
from kepsvgp.errors import UserError
from kepsvgp.inference.activity import activity
from kepsvgp.maths import svgp

TOKEN, DIM, HEAD, RANK, CLASS, EXAMPLE = 5, 6, 2, 3, 4, 40


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kep = KEPAttention(DIM, HEAD, rank=RANK)
        self.head = nn.Linear(DIM, CLASS)

    def forward(self, x: Tensor) -> Tensor:
        return 3 * self.head((x + 5 * self.kep(x)).tanh().mean(1))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().double().eval()


@pytest.fixture
def batches(model) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLE, TOKEN, DIM, generator=generator, dtype=torch.float64)
    return [(part, model(part).argmax(-1)) for part in x.split(7)]


def of(model, batches, num_train=EXAMPLE):
    return activity(model, batches, num_train=num_train)["kep"]


def test_numbers_are_those_of_the_fitted_posterior_and_of_samples(model, batches) -> None:
    fit = fit_posterior(model, batches, prior_precision=1.0)

    found = of(model, batches)

    assert found.word == "active"
    assert found.effective_dimension == pytest.approx(sum(fit.effective_dimension))
    assert found.allowed == pytest.approx(fit.expected_epistemic)
    # narrow enough for the linearised model to be the model
    fit_posterior(model, batches, prior_precision=1e4)
    x = torch.cat([part for part, _ in batches])
    generator = torch.Generator().manual_seed(0)
    sampled = predict(model, x, num_samples=2000, generator=generator).epistemic.mean()
    assert_close(sampled.item(), of(model, batches).epistemic, rtol=0.1, atol=0)


def test_examples_stand_for_the_training_set(model, batches) -> None:
    found = of(model, batches, num_train=3 * EXAMPLE)
    fit = fit_posterior(model, batches * 3, prior_precision=1.0)
    assert found.effective_dimension == pytest.approx(sum(fit.effective_dimension))


@pytest.mark.parametrize("word", ["silent", "collapsed", "prior noise"])
def test_words(model, batches, word) -> None:
    fit_posterior(model, batches, prior_precision=1.0)
    with torch.no_grad():
        if word == "silent":
            model.kep.to_output.weight.mul_(1e-3)
        elif word == "collapsed":
            model.kep.set_factor(1e-3 * svgp.lower_cholesky(model.kep.v_tril_raw))
        else:
            model.kep.v_mean.zero_()
            model.kep.set_factor(torch.eye(RANK).expand(HEAD, RANK, RANK, RANK))

    assert of(model, batches, num_train=1000).word == word


def test_spread_of_the_prior_is_prior_noise_whatever_the_mean(model, batches) -> None:
    with torch.no_grad():
        model.kep.v_mean.normal_(std=3, generator=torch.Generator().manual_seed(0))
    model.kep.set_factor(torch.eye(RANK).expand(HEAD, RANK, RANK, RANK))
    assert of(model, batches, num_train=1000).word == "prior noise"


@pytest.mark.parametrize("structure", ["head", "layer"])
def test_layer_is_judged_in_the_blocks_it_was_fitted_in(model, batches, structure) -> None:
    fit = fit_posterior(model, batches, prior_precision=1.0, structure=structure)
    found = of(model, batches)
    assert (found.word, found.allowed) == ("active", pytest.approx(fit.expected_epistemic))


def test_noise_by_token_is_judged_by_nothing_that_is_linear_in_v(model, batches) -> None:
    model.kep = KEPAttention(DIM, HEAD, rank=RANK, noise="token").double()
    assert activity(model, batches, num_train=EXAMPLE) == {}
    with pytest.raises(UserError, match="noise='joint'"):
        fit_posterior(model, batches)
    with pytest.raises(UserError, match="noise='joint'"):
        predict(model, batches[0][0], method="linear")


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_fitted_posterior_is_no_prior_noise_however_little_is_determined(
    model, batches, scale
) -> None:
    with torch.no_grad():
        model.kep.v_mean.zero_()
        model.kep.to_output.weight.mul_(scale)
    fit_posterior(model, batches, prior_precision=1.0)
    assert of(model, batches).word in ("active", "silent")


def test_each_layer_is_judged_with_the_others_at_their_mean(model, batches) -> None:
    first = KEPAttention(DIM, HEAD, rank=RANK).double().eval()
    first.set_factor(torch.eye(RANK).expand(HEAD, RANK, RANK, RANK) * 10)

    found = activity(nn.Sequential(first, model), batches, num_train=EXAMPLE)

    assert found.keys() == {"0", "1.kep"}
    alone = of(model, [(first(x).detach(), y) for x, y in batches])
    assert_close(found["1.kep"].epistemic, alone.epistemic)


def test_model_without_kep_layers_is_refused() -> None:
    with pytest.raises(UserError, match="KEP layer"):
        activity(nn.Linear(3, 2), [], num_train=3)
