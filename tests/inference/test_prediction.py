from contextvars import copy_context
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from kepsvgp import KEPAttention, Prediction, predict
from kepsvgp.attention.base import use_draws
from kepsvgp.errors import UserError
from kepsvgp.inference.mode import evaluating
from kepsvgp.inference.prediction import entropy, predict_batches
from kepsvgp.methods import ensemble, mc_dropout
from kepsvgp.methods.base import Direct

TOKEN, DIM, CLASS = 5, 6, 3


class Plain(nn.Module):
    """Somebody's classifier: it knows nothing of samples."""

    def __init__(self, noise: str = "joint") -> None:
        super().__init__()
        self.trunk = nn.Linear(DIM, DIM)
        self.attention = KEPAttention(DIM, 2, rank=3, noise=noise, posterior_scale=1.0)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(DIM, CLASS)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(self.drop(self.attention(self.trunk(x)).mean(dim=-2)))


class Sampled(Plain):
    """The same, with a sample axis of its own."""

    def forward(self, x: Tensor, num_samples: int | None = None) -> Tensor:
        self.calls += 1
        x = self.attention(self.trunk(x), num_samples=num_samples)
        return self.head(self.drop(x.mean(dim=-2)))


@pytest.fixture
def model() -> Plain:
    torch.manual_seed(0)
    return Plain().double().eval()


def inputs(size: int = 11) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(size, TOKEN, DIM, generator=generator, dtype=torch.float64)


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_probabilities_are_the_mean_of_the_samples(model: Plain) -> None:
    prediction = predict(model, inputs(), num_samples=4, generator=seeded(), keep_logits=True)
    assert prediction.logits is not None
    sampled = prediction.logits.softmax(-1)
    assert sampled.shape == (4, 11, CLASS)
    assert_close(prediction.probs, sampled.mean(0))
    assert_close(prediction.predicted, sampled.mean(0).argmax(-1))
    assert_close(prediction.confidence, sampled.mean(0).max(-1).values)


def test_uncertainty_adds_up_and_equals_hand_values() -> None:
    # two samples that disagree with certainty: all of ln 2 is epistemic
    certain = torch.tensor([[[50.0, -50.0]], [[-50.0, 50.0]]])
    # two samples that agree on a coin flip: all of ln 2 is aleatoric
    coin = torch.zeros(2, 1, 2)
    ln2 = torch.tensor([0.6931472])
    zero = torch.zeros(1)
    disagree, flip = Prediction.from_logits(certain), Prediction.from_logits(coin)
    assert_close(disagree.entropy, ln2)
    assert_close(disagree.aleatoric, zero)
    assert_close(disagree.epistemic, ln2)
    assert_close(flip.aleatoric, ln2)
    assert_close(flip.epistemic, zero, atol=1e-6, rtol=0.0)


def test_average_of_logits_is_another_distribution() -> None:
    logits = torch.tensor([[[2.0, 0.0]], [[-1.0, 0.0]]])
    by_logits = Prediction.from_logits(logits, "logits").probs
    assert_close(by_logits, torch.tensor([[0.5, 0.0]]).softmax(-1))
    by_probs = Prediction.from_logits(logits, "probs").probs
    assert_close(by_probs, logits.softmax(-1).mean(0))


def test_entropy_of_certainty_is_zero() -> None:
    assert_close(entropy(torch.tensor([[1.0, 0.0]])), torch.zeros(1))


@pytest.mark.parametrize("noise", ["joint", "token"])
def test_loop_and_sample_axis_give_the_same_answer(noise: str) -> None:
    torch.manual_seed(0)
    plain, sampled = Plain(noise).double().eval(), Sampled(noise).double().eval()
    sampled.load_state_dict(plain.state_dict())
    first = predict(plain, inputs(), num_samples=4, generator=seeded())
    second = predict(sampled, inputs(), num_samples=4, generator=seeded())
    assert_close(first.probs, second.probs)
    assert (plain.calls, sampled.calls) == (4, 1)


@pytest.mark.parametrize("noise", ["joint", "token"])
@pytest.mark.parametrize("size", [1, 7])
def test_prediction_does_not_depend_on_the_batch(noise: str, size: int) -> None:
    torch.manual_seed(0)
    model, x = Plain(noise).double(), inputs()
    whole = predict(model, x, generator=seeded())
    order = torch.randperm(11, generator=seeded(9))
    batches = [
        (x[order[i : i + size]], torch.zeros(len(order[i : i + size]), dtype=torch.long),
         order[i : i + size])
        for i in range(0, 11, size)
    ]  # fmt: skip
    parts = predict_batches(model, batches, seed=1)
    assert_close(parts.probs, whole.probs)
    assert_close(parts.aleatoric, whole.aleatoric)
    assert parts.index is not None
    assert parts.index.tolist() == list(range(11))


def test_seeds_decide_the_draws(model: Plain) -> None:
    same = [predict(model, inputs(), generator=seeded()).probs for _ in range(2)]
    other = predict(model, inputs(), generator=seeded(2)).probs
    assert torch.equal(*same)
    assert (same[0] - other).abs().max() > 1e-4


def test_deterministic_model_is_predicted_once() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x[:, 0, :CLASS]

    model = Counting().eval()
    prediction = predict(model, inputs())
    assert model.calls == 1
    assert_close(prediction.epistemic, torch.zeros(11).double())
    assert_close(prediction.entropy, prediction.aleatoric)


def test_mapping_inputs_go_by_keyword(model: Plain) -> None:
    by_name = predict(model, {"x": inputs()}, generator=seeded())
    assert_close(by_name.probs, predict(model, inputs(), generator=seeded()).probs)


def test_predict_evaluates_and_gives_the_mode_back(model: Plain) -> None:
    model.train()
    model.trunk.eval()
    first = predict(model, inputs(), generator=seeded()).probs
    assert torch.equal(first, predict(model, inputs(), generator=seeded()).probs)
    assert model.training
    assert model.drop.training
    assert not model.trunk.training
    assert not first.requires_grad
    with pytest.raises(RuntimeError), evaluating(model):
        raise RuntimeError
    assert model.training


def test_threads_leave_no_draws_on_a_layer() -> None:
    """Compiled code reads draws off the layer, and would use them for good."""
    layer = KEPAttention(4, 1)
    threads = [(copy_context(), use_draws({layer: layer.draw(1)})) for _ in range(2)]

    for thread, block in threads:
        thread.run(block.__enter__)
    for thread, block in threads:
        thread.run(block.__exit__, None, None, None)

    assert layer._held_draws is None


def test_prediction_survives_the_disk(model: Plain, tmp_path: Path) -> None:
    x = inputs()
    batches = [(x, torch.arange(11) % CLASS, torch.arange(11))]
    prediction = predict_batches(model, batches, keep_logits=True)
    prediction.save(tmp_path / "p.safetensors")
    again = Prediction.load(tmp_path / "p.safetensors")
    for name in ("probs", "aleatoric", "logits", "targets", "index"):
        assert torch.equal(getattr(again, name), getattr(prediction, name))
    assert [path.name for path in tmp_path.iterdir()] == ["p.safetensors"]


@pytest.mark.parametrize("content", [b"", b"not a prediction at all", b"\xff" * 100])
def test_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"p\.safetensors must hold a saved prediction"):
        Prediction.load(path)


def test_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        Prediction.load(tmp_path / "p.safetensors")


def test_rows_and_parts_come_apart_and_together(model: Plain) -> None:
    whole = predict(model, inputs(), generator=seeded(), keep_logits=True)
    parts = [whole[:4], whole[torch.arange(4, 11)]]
    again = Prediction.concatenate(parts)
    assert len(whole) == 11
    assert torch.equal(again.probs, whole.probs)
    assert again.logits is not None
    assert whole.logits is not None
    assert torch.equal(again.logits, whole.logits)


def test_a_model_may_take_lists_of_its_own(model: Plain) -> None:
    class FromList(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
            return self.model(torch.cat(parts))

    whole = inputs()
    found, expected = (
        predict(each, given, generator=torch.Generator().manual_seed(0)).probs
        for each, given in ((FromList(), [whole[:1], whole[1:]]), (model, whole))
    )
    assert torch.equal(found, expected)


def test_no_batches_are_refused(model: Plain) -> None:
    with pytest.raises(ValueError, match="at least one example"):
        predict_batches(model, [])


def test_a_prediction_knows_its_seed_where_there_was_something_to_draw(tmp_path) -> None:
    batches = [(torch.randn(4, 5, 8), torch.zeros(4, dtype=torch.long), torch.arange(4))]
    plain = nn.Sequential(nn.Flatten(), nn.Linear(40, 3))
    kep = nn.Sequential(KEPAttention(8, 2, rank=3), plain)

    found = predict_batches(kep, batches, num_samples=2, seed=3)
    found.save(tmp_path / "p.safetensors")

    assert found.seed == found[torch.tensor([1])].seed == 3
    assert Prediction.load(tmp_path / "p.safetensors").seed == 3
    assert predict_batches(plain, batches, seed=3).seed is None


@pytest.mark.parametrize("seed", [0, 7, -3, 2**63 - 1])
def test_prediction_knows_the_seed_of_a_generator_that_begins(model: Plain, seed: int) -> None:
    for predictor in (Direct(model), mc_dropout.fit(model)):
        generator = seeded(seed)
        assert predictor.predict(inputs(), generator=generator).seed == seed
        # further numbers of the same generator are other draws than those of its seed
        assert predictor.predict(inputs(), generator=generator).seed == "unknown"
        assert predictor.predict(inputs()).seed == "unknown"
    certain = nn.Linear(DIM, CLASS).double()
    assert predict(certain, inputs().mean(-2), generator=seeded(seed)).seed is None


@pytest.mark.parametrize("num_samples", [1, 3])
def test_prediction_has_a_seed_where_another_would_give_another(
    model: Plain, num_samples: int
) -> None:
    certain = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 3)).eval()
    x = torch.randn(4, 6)
    for predictor, given, seed in (
        (Direct(model, num_samples=num_samples), inputs(), 5),
        (ensemble.Ensemble((Direct(model, num_samples=num_samples),) * 2), inputs(), 5),
        (mc_dropout.fit(certain, num_samples=num_samples), x, 5),
        (Direct(certain, num_samples=num_samples), x, None),
    ):
        batches = [(given, None, torch.arange(len(given)))]
        assert predict_batches(predictor, batches, seed=5).seed == seed


def test_parts_of_other_draws_have_no_draws_in_common() -> None:
    one = Prediction(torch.eye(3), torch.zeros(3), num_samples=5, seed=1, average="probs")

    assert Prediction.concatenate([one, one]).seed == 1
    for changed in ({"seed": 2}, {"seed": None}, {"num_samples": 6}, {"average": "logits"}):
        whole = Prediction.concatenate([one, replace(one, **changed)])
        unknown = {"seed": "unknown", "num_samples": None, "average": None}
        for name in ("seed", "num_samples", "average"):
            known = getattr(one, name) if name not in changed else unknown[name]
            assert getattr(whole, name) == known
    for parts in ([], [one, replace(one, targets=torch.arange(3))]):
        with pytest.raises(UserError, match="parts must be"):
            Prediction.concatenate(parts)
