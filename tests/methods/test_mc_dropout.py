import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import families
import pytest
import torch
import torch.nn.functional as F
from methods.cases import CONFIG, IMAGES, TEXTS, make_batches, make_model
from torch import Tensor, nn
from torch.testing import assert_close

from kepsvgp import convert, predict
from kepsvgp.attention import KEPAttention, SoftmaxAttention
from kepsvgp.attention.base import fixed_draws, use_draws
from kepsvgp.errors import UserError
from kepsvgp.inference.calls import call
from kepsvgp.methods import mc_dropout
from kepsvgp.models import build_model
from kepsvgp.ops import noise


class Foreign(nn.Module):
    """A model that knows nothing of us: batch norm, dropout, and dropout inside attention."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p_drop = p
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(p)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.norm(x.mT).mT.unsqueeze(1)
        dropout_p = self.p_drop if self.training else 0.0
        mixed = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=dropout_p)
        return self.head(self.drop(mixed.squeeze(1)).mean(1))


def logits_of(method: mc_dropout.MCDropout, inputs: Any, seed: int) -> Tensor:
    seeds = noise.draw_seeds(method.num_samples, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return method._sampled_logits(inputs, seeds, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("rates", [(0.2, 0.0), (0.2, 0.3), (0.0, 0.4)])
@pytest.mark.parametrize("shape", [IMAGES, TEXTS])
def test_passes_differ_and_the_model_stays_as_it_was(shape, rates: tuple[float, float]) -> None:
    torch.manual_seed(0)
    changes = dict(zip(("dropout", "attention_dropout"), rates, strict=True))
    config = CONFIG.model_copy(update=changes)
    model = build_model(config, shape, 3, "msp").eval()
    inputs, _, _ = next(make_batches(shape, 5))
    before = call(model, inputs)

    method = mc_dropout.fit(model, num_samples=4)
    first, second = logits_of(method, inputs, 1), logits_of(method, inputs, 2)

    assert first.shape == (4, 5, 3)
    assert len({tuple(sample.flatten().tolist()) for sample in (*first, *second)}) == 8
    assert not any(module.training for module in model.modules())
    assert torch.equal(call(model, inputs), before)


@pytest.mark.parametrize("kind", ["ours", "foreign"])
@pytest.mark.parametrize("modes", [(False, False), (True, True), (True, False)])
def test_threads_predict_as_one_and_leave_the_model_as_it_was(kind: str, modes) -> None:
    torch.manual_seed(0)
    model = build_model(CONFIG, IMAGES, 3, "kep") if kind == "ours" else Foreign()
    inputs = next(make_batches(IMAGES, 5))[0] if kind == "ours" else torch.randn(5, 4, 6)
    for number, module in enumerate(model.modules()):
        module.training = modes[number % 2]
    method = mc_dropout.fit(model, num_samples=3)

    def ask(number: int) -> Tensor:
        return method.predict(inputs, generator=torch.Generator().manual_seed(number % 4)).probs

    modules, tensors = list(model.modules()), copy.deepcopy(model.state_dict())
    before = [(module.training, len(module._forward_hooks)) for module in modules]
    expected = [ask(number) for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(48)))

    for number, probs in enumerate(found):
        assert_close(probs, expected[number % 4], rtol=1e-5, atol=1e-6)
    assert [(module.training, len(module._forward_hooks)) for module in modules] == before
    assert_close(model.state_dict(), tensors, rtol=0, atol=0)


def test_running_statistics_stay_while_passes_differ() -> None:
    model = Foreign().train()
    x = torch.randn(5, 4, 6)
    model(x)
    model.eval()
    statistics = {name: value.clone() for name, value in model.state_dict().items()}

    method = mc_dropout.fit(model, num_samples=3)
    first, second = logits_of(method, x, 1), logits_of(method, x, 2)

    assert first.shape == (3, 5, 3)
    assert not torch.equal(first, second)
    for name, value in model.state_dict().items():
        assert torch.equal(value, statistics[name]), name


def test_dropout_of_attention_matches_torch_s_where_nothing_is_dropped() -> None:
    q, k, v = torch.randn(3, 6, 2, 5, 4).unbind(0)
    mask = torch.rand(6, 1, 5, 5) > 0.3
    mask[..., 0] = True
    mode = mc_dropout.SharedDropout(torch.tensor([1, 2]), folded=True)
    for kwargs in (
        {},
        {"attn_mask": mask},
        {"attn_mask": torch.randn(6, 1, 5, 5)},
        {"is_causal": True, "scale": 0.3},
    ):
        with mode:
            # a rate below the resolution of the masks drops nothing
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=1e-9, **kwargs)
        assert_close(out, F.scaled_dot_product_attention(q, k, v, **kwargs))
    with mode:
        out = F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], dropout_p=1e-9, enable_gqa=True)
    assert_close(out, F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True))


def test_dropout_keeps_the_mean_and_drops_the_share_asked_for() -> None:
    x = torch.ones(3, 200, 50)
    with mc_dropout.SharedDropout(torch.tensor([1, 2, 3, 4]), folded=False):
        out = F.dropout(x, 0.3, training=False)

    assert out.shape == (4, 3, 200, 50)
    # examples share the mask of a sample; samples do not share it
    assert torch.equal(out[:, 0], out[:, 1])
    assert not torch.equal(out[0], out[1])
    share = (out[:, 0] == 0).double().mean()
    assert abs(share - 0.3) < 5 * (0.3 * 0.7 / (4 * 200 * 50)) ** 0.5
    assert_close(out[out > 0], torch.full_like(out[out > 0], 1 / 0.7))


def test_layers_before_the_first_dropout_run_once() -> None:
    model = make_model(TEXTS)
    inputs, _, _ = next(make_batches(TEXTS, 5))
    seen: list[int] = []
    model.to_tokens.register_forward_hook(lambda module, args, out: seen.append(out.ndim))
    model.blocks[0].register_forward_hook(lambda module, args, out: seen.append(out.ndim))

    mc_dropout.fit(model, num_samples=4).predict(inputs)

    # one pass over the embedding without samples, one over the block with them
    assert seen == [3, 4]


@pytest.mark.parametrize("place", [2, 4])
def test_dropout_before_pooling_is_sampled(place: int) -> None:
    model = make_model(IMAGES)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, SoftmaxAttention):
            module.attention_dropout = 0.0
    model.blocks[-1].mlp[place].p = 0.4
    inputs, _, _ = next(make_batches(IMAGES, 5))

    first, second = logits_of(mc_dropout.fit(model, num_samples=2), inputs, 1)

    assert not torch.equal(first, second)


@pytest.mark.parametrize("shape", [IMAGES, TEXTS])
def test_layer_that_draws_may_sample_slices_but_dropout_does_not(
    shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = mc_dropout.fit(make_model(shape, "kep"), num_samples=3)
    inputs, _, _ = next(make_batches(shape, 5))
    whole = logits_of(method, inputs, 1)

    monkeypatch.setattr("kepsvgp.ops.pooling.SLICE_BYTES", 1)

    assert_close(logits_of(method, inputs, 1), whole)


def test_samples_have_the_mean_and_variance_of_torch_s_own_dropout() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 3)).eval()
    x = torch.randn(2, 6)
    num_samples = 4_000

    ours = logits_of(mc_dropout.fit(model, num_samples=num_samples), x, 1).detach()
    model.train()
    torch.manual_seed(0)
    with torch.no_grad():
        theirs = model(x.repeat(num_samples, 1)).unflatten(0, (num_samples, 2))

    error = (ours.var(0) / num_samples + theirs.var(0) / num_samples).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 5 * error).all()
    # the variance of a variance is below 2 σ⁴ / n for numbers that are less spread than normal
    spread = theirs.var(0) * 2 * (2 / num_samples) ** 0.5
    assert ((ours.var(0) - theirs.var(0)).abs() < 5 * spread).all()


class ForeignWithKep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.attention = KEPAttention(6, 2, rank=3, posterior_scale=1.0)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(self.drop(x)).mean(1))


@pytest.mark.parametrize("kind", [Foreign, ForeignWithKep])
def test_draws_of_a_foreign_model_follow_from_the_generator_and_not_from_the_batch(kind) -> None:
    method = mc_dropout.fit(kind().eval(), num_samples=4)
    x = torch.randn(7, 5, 6)

    def probs(part: Tensor, seed: int) -> Tensor:
        return method.predict(part, generator=torch.Generator().manual_seed(seed)).probs

    assert torch.equal(probs(x, 1), probs(x, 1))
    assert_close(torch.cat([probs(part, 1) for part in x.split(2)]), probs(x, 1))
    assert not torch.equal(probs(x, 1), probs(x, 2))


def test_each_sample_of_a_foreign_model_has_its_own_draw() -> None:
    model = ForeignWithKep().eval()
    method = mc_dropout.fit(model, num_samples=3)
    x = torch.randn(2, 5, 6)
    seeds = torch.tensor([4, 4, 4])
    with torch.no_grad():
        sampled = method._sampled_logits(x, seeds, torch.Generator().manual_seed(0))
        with fixed_draws(model, 3, generator=torch.Generator().manual_seed(0)) as draws:
            (u,) = draws.values()
            for sample in range(3):
                # the masks are those of one seed, so that the samples differ by their draws alone
                one = mc_dropout.SharedDropout(seeds[:1], folded=True)
                with one, use_draws({model.attention: u[sample : sample + 1]}):
                    assert_close(model(x), sampled[sample])
    assert not torch.equal(sampled[0], sampled[1])


def test_draws_of_a_converted_model_are_those_of_its_prediction() -> None:
    """Taken for linear in them, as by `predict`, and with the masks of the sample all along."""
    model, batch = families.loud("bert")
    families.spread(convert(model))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 1e-9
    method, seeds = mc_dropout.fit(model), noise.draw_seeds(3)

    with torch.no_grad():
        found = method._sampled_logits(batch, seeds, torch.Generator().manual_seed(0))

    generator = torch.Generator().manual_seed(0)
    expected = predict(model, batch, num_samples=3, generator=generator, keep_logits=True)
    assert_close(found, expected.logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 2), "greater than zero"),
        (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), "MultiheadAttention"),
        (nn.Sequential(nn.Dropout(0.1), nn.AlphaDropout(0.5)), "does not reach AlphaDropout"),
        (nn.Sequential(nn.Dropout(0.1), nn.Dropout2d(0.5)), "does not reach Dropout2d"),
    ],
)
def test_dropout_that_is_absent_or_out_of_reach_is_refused(model, message: str) -> None:
    with pytest.raises(UserError, match=message):
        mc_dropout.fit(model)


def test_other_kinds_of_dropout_do_not_matter_at_rate_zero() -> None:
    mc_dropout.fit(nn.Sequential(nn.Dropout(0.1), nn.AlphaDropout(0.0)))
