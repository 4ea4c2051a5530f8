import copy
import warnings
from types import SimpleNamespace

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from kepsvgp import loss
from kepsvgp.attention import KEPAttention
from kepsvgp.errors import UserError
from kepsvgp.maths import svgp
from kepsvgp.training.objective import objective

TOKEN, DIM, CLASS = 5, 6, 3


class Tiny(nn.Module):
    """Two KEP layers under an architecture we know nothing of."""

    def __init__(self) -> None:
        super().__init__()
        self.first = KEPAttention(DIM, 2, rank=3)
        self.blocks = nn.ModuleList([nn.ModuleDict({"attention": KEPAttention(DIM, 3, rank=2)})])
        self.head = nn.Linear(DIM, CLASS)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x)
        x = x + self.blocks[0]["attention"](x)
        return self.head(x.mean(dim=1))


@pytest.fixture
def model() -> Tiny:
    torch.manual_seed(0)
    return Tiny().double()


def batch(size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, TOKEN, DIM, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASS, (size,), generator=generator)


def full_kl(layer: KEPAttention) -> Tensor:
    """KL by torch.distributions."""
    q = MultivariateNormal(layer.v_mean.mT, scale_tril=svgp.lower_cholesky(layer.v_tril_raw))
    prior = torch.eye(layer.rank, dtype=q.mean.dtype)
    return kl_divergence(q, MultivariateNormal(torch.zeros_like(q.mean), scale_tril=prior)).sum()


def test_loss_is_the_negative_elbo_per_example(model: Tiny) -> None:
    x, y = batch(7)
    logits = model(x)
    terms = loss(logits, y, model, num_train=7, ksvd_weight=0.0)

    log_likelihood = -F.cross_entropy(logits, y, reduction="sum")
    kl = full_kl(model.first) + full_kl(model.blocks[0]["attention"])
    assert_close(terms.total, -(log_likelihood - kl) / 7)
    assert_close(terms.kl, kl)


def test_minibatch_losses_average_to_the_full_objective(model: Tiny) -> None:
    x, y = batch(8)
    model.eval()  # per-sequence draws are made either way; the mean output needs none
    first, second = model.first, model.blocks[0]["attention"]

    def mean_logits(x: Tensor) -> Tensor:
        x = x + first.posterior_mean(x)
        x = x + second.posterior_mean(x)
        return model.head(x.mean(dim=1))

    def total(rows: slice) -> Tensor:
        model.train()
        model(x[rows])
        return loss(mean_logits(x[rows]), y[rows], model, num_train=8, ksvd_weight=0.0).total

    parts = torch.stack([total(slice(i, i + 2)) for i in range(0, 8, 2)])
    assert_close(parts.mean(), total(slice(0, 8)))


def test_weights_scale_their_terms(model: Tiny) -> None:
    x, y = batch(4)
    logits = model(x)
    twin = copy.deepcopy(model)
    assert_close(twin(x).shape, logits.shape)
    plain = loss(logits, y, model, num_train=10, ksvd_weight=0.0, kl_weight=0.0)
    terms = loss(logits, y, twin, num_train=10, ksvd_weight=3.0, kl_weight=2.0)
    assert_close(plain.total, plain.nll)
    assert_close(terms.total, terms.nll + 2.0 / 10 * terms.kl + 3.0 * terms.ksvd)


def test_accumulated_micro_batches_count_the_kl_once(model: Tiny) -> None:
    """The gradient of the KL over a step is the same for one micro-batch and for four."""
    layer = model.first

    def kl_gradient(num_micro: int) -> Tensor:
        model.zero_grad()
        for seed in range(num_micro):
            x, y = batch(2, seed)
            model(x)
            # constant logits leave the KL as the only source of gradient
            terms = loss(torch.zeros(2, CLASS), y, model, num_train=5, ksvd_weight=0.0)
            (terms.total / num_micro).backward()
        assert layer.v_mean.grad is not None
        return layer.v_mean.grad.clone()

    assert_close(kl_gradient(1), kl_gradient(4))


def test_model_without_stochastic_layers_has_cross_entropy_alone_and_is_told() -> None:
    model = nn.Linear(4, CLASS)
    x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    with pytest.warns(UserWarning, match="Linear has no layer with a posterior"):
        terms = loss(model(x), y, model, num_train=5, ksvd_weight=10.0)
    assert_close(terms.total, F.cross_entropy(model(x), y))
    assert terms.kl == terms.ksvd == 0


@pytest.mark.parametrize(
    ("kind", "warned"),
    [("plain", 1), ("ours", 0), ("frozen", 0), ("checkpointed", 1), ("reentrant", 1)],
)
def test_training_without_the_penalties_is_told_once(model: Tiny, kind: str, warned: int) -> None:
    x, y = batch(4)
    if kind == "frozen":
        for layer in (model.first, model.blocks):
            layer.requires_grad_(False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            if kind in ("checkpointed", "reentrant"):
                out = checkpoint(model, x.requires_grad_(), use_reentrant=kind == "reentrant")
            else:
                out = model(x)
            nll = F.cross_entropy(out, y)
            (loss(out, y, model, num_train=4).total if kind == "ours" else nll).backward()
    assert len(caught) == warned


def test_sampled_logits_average_the_log_likelihood(model: Tiny) -> None:
    x, y = batch(4)
    logits = torch.stack([model(x), model(x)])
    terms = loss(logits, y, model, num_train=4, ksvd_weight=0.0)
    expected = torch.stack([F.cross_entropy(part, y) for part in logits]).mean()
    assert_close(terms.nll, expected)


def test_logits_may_come_inside_an_output_object(model: Tiny) -> None:
    x, y = batch(4)
    logits = model(x)
    terms = loss(SimpleNamespace(logits=logits), y, model, num_train=4, ksvd_weight=0.0)
    assert_close(terms.nll, F.cross_entropy(logits, y))


def test_loss_before_any_pass_says_what_to_do(model: Tiny) -> None:
    x, y = batch(4)
    logits = model.eval()(x)
    with pytest.raises(ValueError, match=r"model\.train\(\)"):
        loss(logits, y, model, num_train=4, ksvd_weight=0.0)


def test_bad_arguments_say_what_was_expected(model: Tiny) -> None:
    x, y = batch(4)
    with pytest.raises(ValueError, match="num_train"):
        loss(model(x), y, model, num_train=0, ksvd_weight=0.0)
    with pytest.raises(ValueError, match=r"got \(3, 3\)"):
        loss(model(x)[:3], y, model, num_train=4, ksvd_weight=0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        ["a", "b", "c", "d"],
        [0, 1, 2, 0],
        torch.tensor([0.0, 1.0, 2.0, 0.0]),
        torch.eye(4, CLASS),
        torch.zeros(4, TOKEN, dtype=torch.long),
        torch.full((4,), CLASS),
    ],
)
def test_labels_that_are_no_class_indices_are_told(model: Tiny, wrong, monkeypatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(UserError, match="labels must be"):
        loss(model(batch(4)[0]), wrong, model, num_train=4)


def test_penalties_without_gradients_are_refused_where_the_rest_has_them(model: Tiny) -> None:
    """Reentrant gradient checkpointing runs the layers without gradients at first."""

    def checkpointed(use_reentrant: bool) -> Tensor:
        x, _ = batch(4)
        first = checkpoint(model.first, x.requires_grad_(), use_reentrant=use_reentrant)
        hidden = x + first
        return model.head((hidden + model.blocks[0]["attention"](hidden)).mean(dim=1))

    _, y = batch(4)
    with pytest.raises(UserError, match="use_reentrant=False"):
        loss(checkpointed(True), y, model, num_train=4, ksvd_weight=1.0)
    terms = loss(checkpointed(False), y, model, num_train=4, ksvd_weight=1.0)
    terms.total.backward()
    assert model.first.v_mean.grad is not None
    model.first.requires_grad_(False)
    loss(checkpointed(True), y, model, num_train=4, ksvd_weight=1.0)


def test_cross_entropy_of_half_precision_is_taken_in_single() -> None:
    logits = torch.randn(50, CLASS, generator=torch.Generator().manual_seed(0)).bfloat16()
    y = torch.zeros(50).long()
    terms = objective(logits, y, nn.Identity(), num_train=50, ksvd_weight=0.0, kl_weight=1.0)
    assert terms.nll.dtype == torch.float32
    assert_close(terms.nll, F.cross_entropy(logits.float(), y))
