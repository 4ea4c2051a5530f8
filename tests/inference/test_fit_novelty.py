import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import families
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from kepsvgp import Prediction, convert, fit_novelty, load_pretrained, predict, save_pretrained
from kepsvgp.attention.novelty import Novelty, ObservedAttention, last_attention, looked_at
from kepsvgp.config.sections import ModelConfig
from kepsvgp.errors import UserError
from kepsvgp.inference.abstention import Abstainer
from kepsvgp.inference.novelty import _standardised, gives_scale
from kepsvgp.inference.prediction import predict_batches
from kepsvgp.methods.kep import KepConfig
from kepsvgp.models import TextShape, build_model

SMALL = ModelConfig(
    depth=3, dim=12, num_heads=2, mlp_dim=13, embedding_dim=12,
    kep=KepConfig(rank=3, posterior_scale=1.0),
)  # fmt: skip
MODELS = ["kep", "primal", "msp", "all", "bert", "bert all"]
CLOSE = {"rtol": 2e-3, "atol": 2e-3}


def texts(seed: int, size: int = 13, length: int = 7) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(length) < torch.randint(1, length + 1, (size, 1), generator=generator)
    return {"tokens": torch.randint(17, (size, length), generator=generator), "mask": mask}


def make(name: str) -> tuple[nn.Module, Any]:
    """A model, and what makes batches for it by a seed."""
    torch.manual_seed(0)
    if name.startswith("bert"):
        model, _ = families.make("bert")
        convert(model, "all" if "all" in name else 1, rank=3, posterior_scale=1.0)

        def batch(seed: int) -> dict[str, Tensor]:
            made = texts(seed)
            return {"input_ids": made["tokens"] + 2, "attention_mask": made["mask"].long()}

        if "twice" in name:
            # ALBERT's way: blocks that share their attention
            blocks = model.bert.encoder.layer
            blocks[0].attention = blocks[-1].attention
        return model, batch
    layers = "all" if name == "all" else 1
    config = SMALL.model_copy(update={"kep_layers": layers})
    return build_model(config, TextShape(vocab_size=17), 5, name.replace("all", "kep")), texts


def fitted(name: str) -> tuple[nn.Module, Any]:
    model, batch = make(name)
    fit_novelty(model, map(batch, range(5)), calibration=map(batch, range(5, 9)))
    return model, batch


def answered(model: nn.Module, inputs: Any, **kwargs: Any) -> Prediction:
    return predict(model, inputs, generator=torch.Generator().manual_seed(0), **kwargs)


def seen_tokens(model: nn.Module, layer: nn.Module, batches: list[Any]) -> list[Tensor]:
    """Real tokens of each sequence as a layer gets them at the mean, by a plain hook."""
    found = []
    parent = next(m for m in model.modules() if m._modules.get("watch") is layer or m is layer)
    handle = parent.register_forward_pre_hook(lambda _, args: found.append(args[0]))
    with torch.no_grad():
        for batch in batches:
            model.eval()(**batch)
    handle.remove()
    masks = [next(batch[name].bool() for name in batch if "mask" in name) for batch in batches]
    return [
        x[real] for each in zip(found, masks, strict=True) for x, real in zip(*each, strict=True)
    ]


def maps_of(model: nn.Module, layer: Any) -> Tensor:
    """Queries' and keys' weights of a layer, the biases beside them."""
    parent: Any = next((m for m in model.modules() if m._modules.get("watch") is layer), None)
    if parent is None:
        linear = layer.to_qkv if hasattr(layer, "to_qkv") else layer.to_qk
        bias = linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias
        return torch.cat([linear.weight, bias[:, None]], dim=1)[:24].detach()
    both = [torch.cat([m.weight, m.bias[:, None]], dim=1) for m in (parent.query, parent.key)]
    return torch.cat(both).detach()


@pytest.mark.parametrize("name", MODELS)
def test_novelty_is_what_loops_over_the_tokens_give(name: str) -> None:
    model, batch = make(name)
    train, held_out = [batch(seed) for seed in range(5)], [batch(seed) for seed in range(5, 9)]
    fit_novelty(model, train, calibration=held_out)
    layers, middle = looked_at(model)
    maps = maps_of(model, layers[middle])

    def features(tokens: Tensor) -> Tensor:
        qk = tokens @ maps[:, :-1].T + maps[:, -1]
        return F.normalize(qk.unflatten(-1, (4, 6)), dim=-1).double()

    def inverse(matrix: Tensor) -> Tensor:
        return torch.linalg.inv(
            matrix + 1e-3 * matrix.trace() / len(matrix) * torch.eye(len(matrix))
        )

    known = [seen_tokens(model, layer, train) for layer in layers]
    phi = features(torch.cat(known[middle]))
    second = torch.stack([phi[:, h].T @ phi[:, h] / len(phi) for h in range(4)])
    means = [torch.stack([t.mean(0) for t in each]).double() for each in known]

    def parts(batches: list[Any]) -> Tensor:
        """Leverage, the distance at each layer, energy."""
        tokens = [seen_tokens(model, layer, batches) for layer in layers]
        energy = torch.cat([
            -answered(model, each, keep_logits=True).logits.mean(0).logsumexp(-1)
            for each in batches
        ])  # fmt: skip
        rows = []
        for n, e in enumerate(energy):
            f = features(tokens[middle][n])
            lever = [
                (f[t, h] @ inverse(second[h]) @ f[t, h]) for t in range(len(f)) for h in range(4)
            ]
            row = [torch.stack(lever).mean()]
            for seen, mean in zip(tokens, means, strict=True):
                far = seen[n].mean(0).double() - mean.mean(0)
                row.append(far @ inverse(mean.T.cov(correction=0)) @ far)
            rows.append(torch.stack([*row, e.double()]))
        return torch.stack(rows)

    calibration = parts(held_out)
    first = calibration[::4]

    def scores(parts: Tensor) -> Tensor:
        z = (parts - first.mean(0)) / first.std(0, correction=0)
        bent = z + z**2 / 2
        return bent[:, 0] + bent[:, 1:-1].mean(-1) + z[:, -1]

    others = scores(calibration)[torch.arange(len(calibration)) % 4 > 0]
    new = batch(99)
    expected = scores(parts([new]))
    found = answered(model, new)
    assert_close(found.novelty.double(), expected, rtol=1e-3, atol=1e-3)
    p = [(1 + sum(1 for o in others if o >= s)) / (1 + len(others)) for s in expected]
    assert_close(found.novelty_p, torch.tensor(p), atol=1.1 / (1 + len(others)), rtol=0)


@pytest.mark.parametrize("name", [*MODELS, "bert twice"])
def test_novelty_depends_neither_on_the_batch_nor_on_the_mode_nor_on_the_thread(name: str) -> None:
    model, batch = fitted(name)
    inputs = batch(99)
    whole = answered(model.eval(), inputs)
    rows = [answered(model, {k: v[i : i + 1] for k, v in inputs.items()}) for i in range(13)]
    assert_close(Prediction.concatenate(rows).novelty, whole.novelty, **CLOSE)
    assert_close(answered(model.train(), inputs).novelty, whole.novelty, **CLOSE)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: answered(model, inputs), range(8)):
            assert_close(found.novelty, whole.novelty, **CLOSE)


@pytest.mark.parametrize("samples", [2, 10])
def test_novelty_of_a_wide_posterior_is_the_same_without_samples(samples: int) -> None:
    model, batch = fitted("bert")
    families.spread(model, 500.0)
    generator = torch.Generator().manual_seed(1)
    drawn = predict(model, batch(98), num_samples=samples, generator=generator)

    exact = predict(model, batch(98), method="linear")

    assert (drawn.probs - exact.probs).abs().max() > 1e-3
    assert_close(drawn.novelty, exact.novelty, **CLOSE)


@pytest.mark.parametrize("name", ["kep", "msp", "bert"])
def test_novelty_goes_with_the_weights(name: str, tmp_path: Path) -> None:
    model, batch = fitted(name)
    expected = answered(model, batch(99))
    other, _ = make(name)
    empty = copy.deepcopy(other.state_dict())
    assert answered(other, batch(99)).novelty is None
    other.load_state_dict(model.state_dict())
    for each in (other, copy.deepcopy(model)):
        found = answered(each, batch(99))
        assert_close(found.novelty, expected.novelty)
        assert_close(found.novelty_p, expected.novelty_p)
    # other weights are not what it was fitted to
    other.load_state_dict(empty)
    assert answered(other, batch(99)).novelty is None
    if name == "bert":
        save_pretrained(model, tmp_path)
        assert_close(answered(load_pretrained(tmp_path), batch(99)).novelty, expected.novelty)


def test_novelty_of_an_earlier_version_is_left_out_with_a_warning() -> None:
    model, batch = fitted("msp")
    old = {name.replace("input_mean_0", "input_mean"): v for name, v in model.state_dict().items()}
    with pytest.warns(UserWarning, match="fit it again"):
        model.load_state_dict(old)
    assert answered(model, batch(99)).novelty is None


def test_novelty_stays_in_float32_whatever_becomes_of_the_model() -> None:
    model, batch = fitted("kep")
    layer = last_attention(model.to(torch.bfloat16))
    assert isinstance(layer, ObservedAttention)
    assert layer.novelty is not None
    assert {buffer.dtype for buffer in layer.novelty.buffers()} == {torch.float32}
    assert answered(model, batch(99)).novelty.isfinite().all()


def test_foreign_inputs_are_newer_than_familiar_ones() -> None:
    model, _ = make("msp")
    familiar = [texts(seed) | {"tokens": texts(seed)["tokens"] % 5} for seed in range(9)]
    fit_novelty(model, familiar[:5], calibration=familiar[5:8])
    known = answered(model, familiar[8])
    foreign = answered(model, texts(9) | {"tokens": texts(9)["tokens"] % 5 + 12})
    assert foreign.novelty.median() > known.novelty.max()
    assert foreign.novelty_p.median() < 0.05 < known.novelty_p.median()


def test_labels_are_left_out_and_p_values_need_calibration() -> None:
    model, batch = make("kep")
    labels = torch.zeros(13, dtype=torch.long)
    fit_novelty(model, [(batch(seed), labels) for seed in range(40)])
    first = answered(model, batch(99))
    fit_novelty(model, [batch(seed) | {"labels": labels} for seed in range(40)])
    second = answered(model, batch(99))
    assert_close(first.novelty, second.novelty)
    assert first.novelty_p is None
    # standardised by examples of the pass: z has mean 0, and z²/2 of leverage and distance ½
    known = torch.cat([answered(model, batch(seed)).novelty for seed in range(40)])
    assert abs(known.mean() - 1) < 0.3


@pytest.mark.parametrize(
    ("batches", "calibration", "said"),
    [([], None, "at least one example"), ([texts(0)], [texts(1)], "at least 20 examples")],
)
def test_too_few_inputs_are_refused_and_nothing_changes(batches, calibration, said) -> None:
    model, batch = fitted("kep")
    expected = answered(model, batch(99))
    with pytest.raises(UserError, match=said):
        fit_novelty(model, batches, calibration=calibration)
    assert_close(answered(model, batch(99)).novelty, expected.novelty)


def test_a_model_without_attention_of_ours_is_refused() -> None:
    with pytest.raises(UserError, match="convert"):
        fit_novelty(families.make("bert").model, [])


def test_p_values_keep_the_rate_of_false_alarms() -> None:
    """Over 500 calibration sets: the share of p ≤ α is at most α, and not much less."""
    model, _ = fitted("kep")
    novelty = last_attention(model).novelty
    generator = torch.Generator().manual_seed(0)
    levels = torch.tensor([0.01, 0.05, 0.1, 0.5])
    shares = []
    for _ in range(500):
        novelty.calibration = torch.randn(199, generator=generator).exp().sort().values
        p = novelty.p_value(torch.randn(40, generator=generator).exp())
        shares.append((p[:, None] <= levels).float().mean(0))
    shares = torch.stack(shares)
    error = shares.std(0) / 500**0.5
    # (n + 1) α is a whole number, so that the level is exact
    assert ((shares.mean(0) - levels).abs() < 4 * error).all()


def test_predictions_keep_their_novelty(tmp_path: Path) -> None:
    model, batch = fitted("kep")
    batches = [
        (batch(seed), torch.arange(13), torch.arange(13) + 13 * (1 - seed)) for seed in (0, 1)
    ]
    whole = predict_batches(model, batches)
    parts = [answered(model, batch(seed)) for seed in (1, 0)]
    both = Prediction.concatenate(parts)
    assert_close(whole.novelty, both.novelty)
    assert_close(whole[3:7].novelty_p, both.novelty_p[3:7])
    both.save(tmp_path / "p")
    loaded = Prediction.load(tmp_path / "p")
    assert_close(loaded.novelty, both.novelty)
    assert_close(loaded.novelty_p, both.novelty_p)
    replace(both, novelty=None, novelty_p=None).save(tmp_path / "q")
    assert Prediction.load(tmp_path / "q").novelty is None


def test_false_alarms_are_promised_on_inputs_that_gave_no_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    empty = Novelty(
        center=torch.zeros(3), scale=torch.ones(3), calibration=torch.zeros(0),
        qk_precision_0=torch.zeros(1),
    )  # fmt: skip
    rates: dict[bool, list[Tensor]] = {False: [], True: []}
    for _ in range(400):
        parts = torch.randn(40 + 500, 3, generator=generator).exp()
        novelty = _standardised(empty, parts[:40], calibrate=True)
        scores = novelty.score(parts)
        probs = torch.full((len(parts), 2), 0.5)
        prediction = replace(Prediction(probs, probs[:, 0]), novelty=scores)
        for others, rows in ((True, (~gives_scale(40)).argwhere().flatten()), (False, slice(40))):
            rule = Abstainer.fit(prediction[rows], max_risk=None, max_false_alarm=0.1)
            rates[others].append(rule.foreign(prediction[40:]).float().mean())

    found = {others: torch.stack(each).mean().item() for others, each in rates.items()}
    assert found[True] < 0.106 < found[False], found
