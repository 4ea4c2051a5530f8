from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from kepsvgp import KEPAttention, find_spread, fit_posterior, predict
from kepsvgp.attention.base import OfEachExample, use_draws
from kepsvgp.errors import UserError
from kepsvgp.inference.linear import gaussian_logits, linearise
from kepsvgp.inference.mode import frozen
from kepsvgp.inference.posterior import PRECISIONS
from kepsvgp.maths import svgp

TOKEN, DIM, HEAD, RANK, CLASS = 5, 6, 2, 3, 4
STRUCTURES = ["value", "head", "layer"]


class Model(nn.Module):
    """Two KEP layers, dropout and a batch norm, in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(DIM)
        self.layers = nn.ModuleList([KEPAttention(DIM, HEAD, rank=RANK) for _ in range(2)])
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(DIM, CLASS))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.mT).mT
        for layer in self.layers:
            x = x + 5 * layer(x)
        return 3 * self.head(x.tanh().mean(1))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().double()


def data(size: int = 11, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, TOKEN, DIM, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASS, (size,), generator=generator)


def brute_force(model: Model, x: Tensor) -> list[Tensor]:
    """∂ logits / ∂v of each layer, example by example, by autograd's own Jacobian."""
    model = model.eval()
    found = []
    for layer in model.layers:

        def logits(v: Tensor, row: Tensor, layer: nn.Module = layer) -> Tensor:
            with use_draws({layer: OfEachExample(v.unsqueeze(0))}):
                return model(row.unsqueeze(0))[0]

        rows = [
            torch.autograd.functional.jacobian(lambda v, r=row: logits(v, r), layer.v_mean)
            for row in x
        ]
        # (example class head rank value) → values before ranks
        found.append(torch.stack(rows).mT)
    return found


def test_jacobians_are_autograd_s_and_nothing_is_touched(model) -> None:
    x, _ = data()
    modes = [module.training for module in model.modules()]
    found = linearise(frozen(model), x)
    assert [module.training for module in model.modules()] == modes
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    for jacobian, expected in zip(found.jacobians, brute_force(model, x), strict=True):
        assert_close(jacobian, expected)
    assert_close(found.logits, model(x))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_covariance_is_the_inverse_of_the_brute_force_matrix(model, structure) -> None:
    x, y = data()
    batches = [(x[:4], y[:4]), {"x": x[4:], "labels": y[4:]}]
    before = {layer: layer.v_mean.detach().clone() for layer in model.layers}
    result = fit_posterior(model, batches, structure=structure, prior_precision=2.5)
    probs = model.eval()(x).softmax(-1).detach()
    information = torch.diag_embed(probs) - probs.unsqueeze(-1) * probs.unsqueeze(-2)
    for layer, jacobian in zip(model.layers, brute_force(model, x), strict=True):
        flat = jacobian.flatten(2)
        whole = torch.einsum("n c i, n c k, n k j -> i j", flat, information, flat)
        tril = svgp.lower_cholesky(layer.v_tril_raw).flatten(0, 1)
        size = tril.shape[-1]
        assert size == {"value": RANK, "head": RANK**2, "layer": HEAD * RANK**2}[structure]
        for b, factor in enumerate(tril):
            rows = slice(b * size, (b + 1) * size)
            # the layer is in units of the prior's standard deviation
            precision = whole[rows, rows] + torch.eye(size, dtype=torch.float64)
            assert_close(factor @ factor.mT, torch.linalg.inv(precision))
        assert_close(layer.v_mean, before[layer] * 2.5**0.5)
    assert result.num_examples == 11
    assert 0 < sum(result.effective_dimension) < 2 * HEAD * RANK**2
    assert result.expected_epistemic == sum(result.effective_dimension) / 22


def test_a_part_stands_for_the_whole(model) -> None:
    x, y = data()
    part = fit_posterior(model, [(x, y)], prior_precision=1.0, num_train=33)
    found = [layer.v_tril_raw.clone() for layer in model.layers]
    whole = fit_posterior(model, [(x, y)] * 3, prior_precision=1.0)
    for layer, expected in zip(model.layers, found, strict=True):
        assert_close(layer.v_tril_raw, expected)
    assert part.num_examples == whole.num_examples
    assert part.expected_epistemic == pytest.approx(whole.expected_epistemic)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_draws_have_the_fitted_covariance_and_survive_the_disk(model, structure) -> None:
    x, y = data()
    fit_posterior(model, [(x, y)], structure=structure, prior_precision=1.0)
    again = Model().double()
    again.load_state_dict(model.state_dict())
    for layer, other in zip(model.layers, again.layers, strict=True):
        v = other.draw(20_000, generator=torch.Generator().manual_seed(0))
        centred = (v - layer.v_mean).mT.flatten(1)
        tril = svgp.lower_cholesky(layer.v_tril_raw).flatten(0, 1)
        expected = torch.block_diag(*(tril @ tril.mT))
        scale = expected.diagonal()
        spread = (scale[:, None] * scale + expected.square()) / len(v)
        found = centred.mT @ centred / len(v)
        assert ((found - expected).abs() <= 5 * spread.sqrt()).all()


def test_mean_stays_to_the_last_digit(model) -> None:
    x, y = data()
    model.eval()
    before = model(x)
    fit_posterior(model, [(x, y)], validation=[data(7, seed=1)])
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_validation_moves_the_precision_as_far_as_it_gains(model, scale) -> None:
    """Against every precision of the grid, each fitted and predicted by itself."""
    train, (x, y) = data(40), data(40, seed=1)
    with torch.no_grad():
        model.head[1].weight.mul_(scale)
    y = torch.where(torch.arange(40) % 4 > 0, model.eval()(x).argmax(-1), y)
    trained = deepcopy(model)
    result = fit_posterior(model, [train], validation=[(x[:7], y[:7]), (x[7:], y[7:])])

    def losses(tau: float) -> Tensor:
        copy = deepcopy(trained)
        fit_posterior(copy, [train], prior_precision=tau)
        found = predict(copy, x, num_samples=20, generator=torch.Generator().manual_seed(0))
        return -found.probs[torch.arange(40), y].log()

    def gains(tau: float, other: float) -> bool:
        before, after = losses(tau), losses(other)
        error = (before - after).std(correction=0) / 40**0.5
        return bool((before - after).mean() > max(error, 0.01 * before.mean()))

    for tau, nll in result.nll.items():
        assert nll == pytest.approx(losses(tau).mean().item())
    chosen, step = result.prior_precision, 4.0
    assert chosen == 1 or gains(1.0, chosen)
    assert chosen < 1 or not gains(chosen, chosen * step)
    assert chosen > 1 or chosen == PRECISIONS[0] or not gains(chosen, chosen / step)


class OneValue(nn.Module):
    """A classifier that is linear in a single value v: its evidence is an integral over a line."""

    def __init__(self) -> None:
        super().__init__()
        self.kep = KEPAttention(2, 1, rank=1)
        nn.init.zeros_(self.kep.to_output.bias)

    def forward(self, x: Tensor) -> Tensor:
        return 100 * self.kep(x).mean(1)

    def at(self, v: float) -> "OneValue":
        nn.init.constant_(self.kep.v_mean, v)
        return self.eval()


@pytest.mark.parametrize("truth", [0.0, 0.1, 0.3])
@pytest.mark.filterwarnings("ignore:the examples are fitted")
@pytest.mark.parametrize("mean", ["zero", "off"])
def test_evidence_chooses_the_precision_of_the_largest_integral(truth, mean) -> None:
    torch.manual_seed(0)
    model, generator = OneValue().double(), torch.Generator().manual_seed(1)
    x = torch.randn(300, TOKEN, 2, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        zero, one = model.at(0.0)(x), model.at(1.0)(x)
    y = torch.multinomial((zero + truth * (one - zero)).softmax(-1), 1, generator=generator)[:, 0]
    v = torch.linspace(-10, 10, 10_001, dtype=torch.float64)
    logits = zero + v[:, None, None] * (one - zero)
    log_likelihood = logits.log_softmax(-1)[:, torch.arange(300), y].sum(-1)

    def integral(tau: float) -> float:
        prior = torch.distributions.Normal(0.0, tau**-0.5).log_prob(v)
        return (log_likelihood + prior).logsumexp(0).item()

    found = fit_posterior(model.at(0.0 if mean == "zero" else 0.8 * truth), [(x, y)])
    assert found.prior_precision == max(PRECISIONS, key=integral)


def test_linear_prediction_is_the_sampled_one_where_the_spread_is_small(model) -> None:
    x, y = data()
    fit_posterior(model, [(x, y)], prior_precision=1e4)
    linear = predict(model, x, method="linear")
    generator = torch.Generator().manual_seed(0)
    sampled = predict(model, x, num_samples=2000, generator=generator)
    assert_close(linear.probs, sampled.probs, rtol=0, atol=2e-4)
    assert_close(linear.epistemic.mean(), sampled.epistemic.mean(), rtol=0.1, atol=0)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_linear_prediction_has_the_covariance_of_the_linear_model(model, structure) -> None:
    x, y = data()
    fit_posterior(model, [(x, y)], structure=structure, prior_precision=1.0)
    covariance = torch.zeros(len(x), CLASS, CLASS, dtype=torch.float64)
    for layer, jacobian in zip(model.layers, brute_force(model, x), strict=True):
        factor = svgp.lower_cholesky(layer.v_tril_raw.detach())
        flat = jacobian.flatten(2) @ torch.block_diag(*factor.flatten(0, 1))
        covariance += flat @ flat.mT
    expected = gaussian_logits(model(x).detach(), covariance).softmax(-1).mean(0)
    assert_close(predict(model, x, method="linear").probs, expected)


def test_gaussian_logits_have_the_covariance_that_was_asked_for() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(3, CLASS, CLASS, generator=generator, dtype=torch.float64)
    mean, expected = root[..., 0], root @ root.mT
    centred = gaussian_logits(mean, expected) - mean
    covariance = torch.einsum("s n c, s n k -> n c k", centred, centred) / len(centred)
    assert_close(covariance, expected)
    assert_close(centred.mean(0), torch.zeros_like(mean))


@pytest.mark.parametrize("tolerance", [0.01, 0.1])
def test_find_spread_is_the_widest_that_the_nll_bears(model, tolerance) -> None:
    x, y = data(60)
    # an answer that is right has something to lose
    y = model.eval()(x).argmax(-1)
    fit_posterior(model, [(x, y)], prior_precision=10.0)
    factors = [svgp.lower_cholesky(layer.v_tril_raw.detach()) for layer in model.layers]

    def nll(scale: float) -> float:
        for layer, factor in zip(model.layers, factors, strict=True):
            layer.set_factor(factor * scale)
        found = predict(model, x, num_samples=20, generator=torch.Generator().manual_seed(0))
        return -found.probs[torch.arange(60), y].log().mean().item()

    scale = find_spread(model, [(x, y)], tolerance=tolerance)
    for layer, factor in zip(model.layers, factors, strict=True):
        assert_close(svgp.lower_cholesky(layer.v_tril_raw), factor * scale)
    least = min(nll(10**power) for power in (-2, -1, -0.5, 0))
    assert 0.01 < scale < 100
    assert nll(scale) <= least * (1 + tolerance) * 1.001
    assert nll(scale * 1.2) > least * (1 + tolerance)


def test_saturated_examples_are_warned_of(model) -> None:
    x, y = data()
    with torch.no_grad():
        model.head[1].weight.mul_(1e3)
    with pytest.warns(UserWarning, match="certainty"):
        fit_posterior(model, [(x, y)])


def test_saturated_examples_give_way_to_those_of_validation(model) -> None:
    held_out = data()
    with torch.no_grad():
        model.head[1].weight.mul_(3)
        model.eval()
        # so far from the boundary that the loss is flat
        many, _ = data(400)
        gaps = model(many).topk(2).values.diff(dim=-1).abs().squeeze()
        x = many[gaps.topk(20).indices]
        labels = model(x).argmax(-1)
    fitted, other = deepcopy(model), deepcopy(model)

    found = fit_posterior(fitted, [(x, labels)], validation=iter([held_out]), prior_precision=1.0)

    fit_posterior(other, [held_out], prior_precision=1.0, num_train=20)
    assert found.num_examples == 20
    for one, two in zip(fitted.layers, other.layers, strict=True):
        assert_close(one.v_tril_raw, two.v_tril_raw)


@pytest.mark.parametrize(
    ("batches", "options", "message"),
    [
        ([], {}, "at least one example"),
        ([torch.zeros(2, TOKEN, DIM)], {}, "inputs, labels"),
    ],
)
def test_mistakes_are_told(model, batches, options, message) -> None:
    with pytest.raises(UserError, match=message):
        fit_posterior(model, batches, **options)


def test_model_without_kep_layers_is_refused() -> None:
    with pytest.raises(UserError, match="KEP layer"):
        fit_posterior(nn.Linear(3, 2), [(torch.zeros(1, 3), torch.zeros(1).long())])
