import importlib.metadata
import itertools
import math
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from kepsvgp.config.comparison import with_absolute_paths
from kepsvgp.config.file import parse_config
from kepsvgp.config.sections import DataConfig, RunConfig, TrainConfig
from kepsvgp.data import Batch, Benchmark, load_benchmark
from kepsvgp.errors import UserError
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import weights_about
from kepsvgp.training import loop as training
from kepsvgp.training.loop import train
from kepsvgp.training.state import STATE, Position
from kepsvgp.training.steps import derive_seed, global_batch_size, learning_rate, micro_batches


def small(**train_values: object) -> RunConfig:
    return parse_config(
        {
            "method": "kep",
            "data": {"train_limit": 96, "val_limit": 50, "test_limit": 50},
            "model": {
                "depth": 2, "dim": 12, "num_heads": 2, "mlp_dim": 12, "patch_size": 4,
                "kep": {"rank": 3},
            },
            "prediction": {"num_samples": 2},
            "train": {"epochs": 2, "batch_size": 32, "lr": 1e-2} | train_values,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def digits() -> Benchmark:
    return load_benchmark(small().data)


def weights(run: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(run.weights_file("last"))


def untimed(run: RunFolder) -> list[dict]:
    timed = ("seconds", "val_seconds", "data_wait")
    return [{k: v for k, v in entry.items() if k not in timed} for entry in run.history()]


def assert_same_run(one: RunFolder, other: RunFolder) -> None:
    assert untimed(one) == untimed(other)
    names = sorted(file.name for file in (one.path / "checkpoints").iterdir())
    assert names == ["last.safetensors", "nll.safetensors", "score.safetensors"]
    for file in [*(f"checkpoints/{name}" for name in names), "model.safetensors"]:
        ours, theirs = load_file(one.path / file), load_file(other.path / file)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours), file


def test_learning_rate_grows_then_falls_to_its_minimum() -> None:
    config = TrainConfig(epochs=10, warmup_epochs=2, lr=1e-2, min_lr=1e-4)
    rates = [learning_rate(step, 5, config) for step in range(50)]

    assert_close(rates[:10], [1e-2 * (step + 1) / 10 for step in range(10)])
    assert rates[10] == 1e-2
    assert all(before > after for before, after in itertools.pairwise(rates[10:]))
    assert math.isclose(rates[-1], 1e-4)
    assert learning_rate(0, 1, TrainConfig(epochs=1, lr=0.5)) == 0.5
    # half of the way down after half of the steps
    assert_close(learning_rate(10 + 39 // 2, 5, config), (1e-2 + 1e-4) / 2, rtol=0.05, atol=0)


def test_learning_rate_falls_on_a_line_and_stays() -> None:
    schedule = {"schedule": "linear", "decay_epochs": 4, "warmup_epochs": 1}
    config = TrainConfig(epochs=10, lr=1e-2, min_lr=1e-4, **schedule)
    rates = [learning_rate(step, 5, config) for step in range(50)]

    assert_close(rates[5:26], torch.linspace(1e-2, 1e-4, 21).tolist(), rtol=1e-5, atol=0)
    assert set(rates[25:]) == {1e-4}


@pytest.mark.parametrize(("epochs", "warmup"), [(1, 0.5), (5, 2.5), (6, 5)])
def test_warmup_leaves_half_of_a_short_training(epochs: int, warmup: float) -> None:
    config = TrainConfig(epochs=epochs, warmup_epochs=5)

    assert config.warmup == warmup
    rates = [learning_rate(step, 4, config) for step in range(4 * epochs)]
    assert rates.index(max(rates)) == round(4 * warmup) - 1
    assert math.isclose(rates[-1], config.min_lr)


def test_derived_seeds_differ_by_every_part() -> None:
    seeds = {
        derive_seed(seed, name, step, rank)
        for seed in range(3)
        for name in ("noise", "order")
        for step in range(3)
        for rank in range(3)
    }

    assert len(seeds) == 54


def test_micro_batches_are_the_batch_in_parts(generator) -> None:
    tokens = torch.arange(12).view(6, 2)
    batch = Batch({"tokens": tokens}, torch.arange(6), torch.arange(6))

    parts = list(micro_batches(batch, 3))

    assert torch.equal(torch.cat([part.inputs["tokens"] for part in parts]), tokens)  # pyright: ignore
    assert [part.labels.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]


def test_global_batch_is_at_most_the_training_set() -> None:
    assert global_batch_size(TrainConfig(batch_size=64, accumulate=2), 51, world=2) == 48
    with pytest.raises(UserError, match=r"train\.batch_size must be divisible by 3 processes"):
        global_batch_size(TrainConfig(batch_size=64), 1000, world=3)
    with pytest.raises(UserError, match="at least 2 examples; got 1"):
        global_batch_size(TrainConfig(batch_size=64), 1, world=2)


def test_run_folder_has_what_it_promises(digits, tmp_path) -> None:
    config = small()
    run = train(config, digits, tmp_path / "run")

    found = {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()}
    assert found == {
        ".lock",
        "config.toml",
        "manifest.json",
        "run.json",
        "model.safetensors",
        "checkpoints/last.safetensors",
        "checkpoints/score.safetensors",
        "checkpoints/nll.safetensors",
        "history.jsonl",
        "state/state.safetensors",
    }
    assert run.config().model_copy(update={"versions": {}}) == config
    assert run.config().versions["torch"] == importlib.metadata.version("torch")
    assert run.record()["splits"] == digits.split_record()
    history = run.history()
    assert [entry["epoch"] for entry in history] == [1, 2]
    assert history[0].keys() == {
        "epoch", "lr", "train", "val", "seconds", "data_wait", "val_seconds"
    }  # fmt: skip
    for terms in (entry["train"] for entry in history):
        penalties = terms["kl"] / len(digits.train) + config.objective.ksvd_weight * terms["ksvd"]
        assert_close(terms["total"], terms["nll"] + penalties, rtol=1e-5, atol=1e-6)
    assert history[0]["val"].keys() == {"accuracy", "mcc", "nll"}
    assert 0 <= history[0]["data_wait"] < 1


def test_weight_of_the_kl_is_that_of_kep_layers_alone(digits, tmp_path) -> None:
    def totals(method: str, kl_weight: float) -> list[float]:
        values = small(epochs=1).model_dump()
        config = parse_config(values | {"method": method, "objective": {"kl_weight": kl_weight}})
        run = train(config, digits, tmp_path / f"{method}-{kl_weight}")
        return [entry["train"]["total"] for entry in run.history()]

    # SGPA's bound has one KL for every sequence, and no weight that was chosen for KEP
    assert totals("sgpa", 100.0) == totals("sgpa", 1.0)
    assert totals("kep", 100.0) > totals("kep", 1.0)


def test_whole_kl_stands_beside_the_mean_loss(digits, tmp_path) -> None:
    changes = {"objective": small().objective.model_copy(update={"kl_weight": "whole"})}
    config = small(epochs=1).model_copy(update=changes)

    (entry,) = train(config, digits, tmp_path / "run").history()

    terms = entry["train"]
    weighted = config.objective.ksvd_weight * terms["ksvd"]
    assert_close(terms["total"], terms["nll"] + terms["kl"] + weighted)


def test_training_learns_digits(tmp_path) -> None:
    config = parse_config(
        {
            "method": "msp",
            "model": {"depth": 2, "dim": 48, "num_heads": 4, "mlp_dim": 96, "patch_size": 4},
            "train": {"epochs": 6, "batch_size": 32, "lr": 3e-3, "augment": False},
        }
    )
    run = train(config, load_benchmark(config.data), tmp_path / "run")

    # chance is 0.1; a logistic regression has about 0.95
    assert run.history()[-1]["val"]["accuracy"] > 0.9


def test_training_is_a_function_of_the_seed(digits, tmp_path) -> None:
    one = train(small(), digits, tmp_path / "one")
    torch.rand(7)
    again = train(small(), digits, tmp_path / "again")
    other = train(small().model_copy(update={"seed": 1}), digits, tmp_path / "other")

    assert_same_run(one, again)
    assert untimed(one) != untimed(other)


def test_training_leaves_the_caller_s_random_state_alone(digits, tmp_path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)

    train(small(epochs=1), digits, tmp_path / "run")

    assert torch.equal(torch.rand(3), expected)


def test_accumulated_micro_batches_give_the_gradient_of_the_batch(digits, tmp_path) -> None:
    # J² of a batch is not the mean of those of its parts, so it has no part in this; nor has noise
    config = small(augment=False)
    model = config.model.model_copy(update={"dropout": 0.0})
    config = config.model_copy(update={"method": "msp", "model": model})
    parts = config.model_copy(update={"train": config.train.model_copy(update={"accumulate": 4})})

    whole = train(config, digits, tmp_path / "whole")
    split = train(parts, digits, tmp_path / "split")

    for a, b in zip(whole.history(), split.history(), strict=True):
        assert_close(a["train"], b["train"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("select", ["score", "nll", "last"])
def test_model_is_the_checkpoint_of_the_best_epoch(digits, tmp_path, select) -> None:
    run = train(small(select=select, epochs=4, lr=3e-2), digits, tmp_path / "run")

    history = [entry["val"] for entry in run.history()]
    values = {"score": [v["accuracy"] for v in history], "nll": [-v["nll"] for v in history]}
    values["last"] = list(range(4))
    best = values[select].index(max(values[select])) + 1
    assert weights_about(run.weights_file(select))["epoch"] == str(best)
    chosen, weights = load_file(run.weights_file()), load_file(run.weights_file(select))
    assert all(torch.equal(chosen[name], weights[name]) for name in chosen)


def test_reloaded_model_predicts_what_was_validated(digits, tmp_path) -> None:
    config = small()
    run = train(config, digits, tmp_path / "run")

    values = training.validate(
        run.model("last"), digits.val, config, training.make_accelerator(config.train)
    )

    assert values == run.history()[-1]["val"]


class Crash(BaseException):
    """As good as a kill for what reaches the disk: nothing catches it."""


def crash_at_write(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The process dies as the file of this number is about to take its name."""
    counter = itertools.count(1)
    original = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if next(counter) == number:
            raise Crash
        return original(self, target)

    monkeypatch.setattr(Path, "replace", replace)


@pytest.mark.parametrize("save_steps", [None, 2])
def test_run_that_crashed_at_any_write_resumes_to_the_same_weights(
    digits, tmp_path, monkeypatch, save_steps
) -> None:
    config = small(save_steps=save_steps, batch_size=20)
    whole = train(config, digits, tmp_path / "whole")
    # record and configuration; each epoch up to four weights, state and history, and two states
    # within it
    for number in itertools.count(1):
        out = tmp_path / f"crash{number}"
        with monkeypatch.context() as patch:
            crash_at_write(patch, number)
            try:
                train(config, digits, out)
            except Crash:
                pass
            else:
                break
        resumed = train(config, digits, out, resume=True)
        assert_same_run(whole, resumed)
        assert not list(out.rglob("*.part"))
    assert number > 10


def test_resume_in_the_middle_of_an_epoch_repeats_no_batch(digits, tmp_path, monkeypatch) -> None:
    seen = []
    original = training._backward

    def backward(session, batch):
        seen.append(batch.index)
        return original(session, batch)

    monkeypatch.setattr(training, "_backward", backward)
    config = small(save_steps=1, epochs=1)
    with monkeypatch.context() as patch:
        # record, configuration, the states of two steps, and then the first weights; with each
        # the manifest before it and after it
        crash_at_write(patch, 13)
        with pytest.raises(Crash):
            train(config, digits, tmp_path / "run")
    train(config, digits, tmp_path / "run", resume=True)

    # three batches of 32, of which the last has no state of its own and is done again
    assert [len(index) for index in seen] == [32] * 4
    assert torch.equal(seen[2], seen[3])
    assert len(torch.cat(seen[:3]).unique()) == 96


def test_finished_run_is_left_as_it_is(digits, tmp_path) -> None:
    run = train(small(), digits, tmp_path / "run")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}

    train(small(), digits, tmp_path / "run", resume=True)

    after = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert after == before


def test_folder_of_something_else_is_not_touched(digits, tmp_path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")

    with pytest.raises(UserError, match=r"must be a new folder; it has thesis\.tex"):
        train(small(), digits, tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def other_splits(run: RunFolder) -> None:
    record = run.record()
    record["splits"]["checksums"]["train"] = "0"
    run.files.write_json("run.json", record)


@pytest.mark.parametrize(
    ("harm", "changes", "message"),
    [
        (None, {"epochs": 2, "lr": 0.1}, r"train\.epochs, train\.lr differ"),
        (other_splits, {}, "must keep its data"),
        (
            lambda run: (run.path / STATE).write_bytes(b"nonsense"),
            {},
            r"state\.safetensors must hold",
        ),
    ],
)
def test_resume_refuses_what_is_not_the_same_run(digits, tmp_path, harm, changes, message) -> None:
    run = train(small(epochs=1), digits, tmp_path / "run")
    if harm is not None:
        harm(run)

    with pytest.raises(UserError, match=message):
        train(small(**{"epochs": 1, **changes}), digits, run.path, resume=True)


def test_second_process_is_told_and_touches_nothing(digits, tmp_path) -> None:
    run = train(small(epochs=1), digits, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}

    with run.lock(), pytest.raises(UserError, match="another process is writing to it"):
        train(small(epochs=1), digits, run.path, resume=True)

    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_run_that_another_process_made_meanwhile_is_left_alone(
    digits, tmp_path, monkeypatch
) -> None:
    lock = RunFolder.lock

    def late(run: RunFolder) -> AbstractContextManager[None]:
        # the other begins and ends after this one has looked and before it has the lock
        monkeypatch.setattr(RunFolder, "lock", lock)
        train(small(epochs=1), digits, run.path)
        return lock(run)

    monkeypatch.setattr(RunFolder, "lock", late)
    with pytest.raises(UserError, match="it has a run already"):
        train(small(epochs=1, lr=1e-3), digits, tmp_path / "run")

    assert RunFolder(tmp_path / "run").config().train.lr == 1e-2


def test_loss_that_is_not_finite_ends_the_run_with_advice(digits, tmp_path) -> None:
    with pytest.raises(UserError, match=r"epoch 1, batch \d.*Lower train\.lr=1e\+30"):
        train(small(lr=1e30, min_lr=0), digits, tmp_path / "run")

    assert not RunFolder(tmp_path / "run").weights_file().exists()


def test_half_precision_trains_and_fp16_is_refused_on_a_cpu(
    digits, tmp_path, plain_products
) -> None:
    run = train(small(precision="bf16", device="cpu"), digits, tmp_path / "run")
    assert all(value.dtype == torch.float32 for value in weights(run).values())

    with pytest.raises(UserError, match=r"train\.precision .* got 'fp16'"):
        train(small(precision="fp16", device="cpu"), digits, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_tensorboard_files_hold_the_history(digits, tmp_path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(small(tensorboard=True), digits, tmp_path / "run")

    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    totals = [event.value for event in events.Scalars("train/total")]
    assert_close(totals, [entry["train"]["total"] for entry in run.history()], rtol=1e-6, atol=0)


def test_training_flushes_denormals(digits, tmp_path, monkeypatch) -> None:
    seen, training_loss = [], training.objective

    def spy(*args, **kwargs):
        seen.append((torch.full((), 1e-38) / 10).item())
        return training_loss(*args, **kwargs)

    monkeypatch.setattr(training, "objective", spy)
    train(small(epochs=1), digits, tmp_path / "run")
    assert set(seen) == {0.0}
    assert (torch.full((), 1e-38) / 10).item() > 0


@pytest.mark.parametrize(("kind", "expected"), [("cuda", True), ("cpu", False)])
def test_batches_for_a_gpu_are_pinned_and_not_waited_for(
    digits, monkeypatch, kind: str, expected: bool
) -> None:
    asked, device = {}, torch.device(kind)
    monkeypatch.setattr(training, "batches", lambda *_, **given: asked.update(given) or ())
    monkeypatch.setattr(training, "send_to_device", lambda parts, to, **g: asked.update(g) or parts)
    accelerator = SimpleNamespace(process_index=0, num_processes=1, device=device)
    session = object.__new__(training._Session)
    vars(session).update(
        config=small(), benchmark=digits, batch_size=32, accelerator=accelerator,
        model=torch.nn.Identity(),
    )  # fmt: skip

    training._train_epoch(session, Position())
    labels = torch.zeros(2, dtype=torch.long)
    training._sent(Batch(torch.rand(2, 1, 8, 8), labels, labels), device)

    assert (asked["pin"], asked["non_blocking"]) == (expected, expected)


def test_loss_is_fetched_every_ten_steps_and_at_the_end_of_an_epoch(tmp_path, monkeypatch) -> None:
    fetched, count = [], training._count

    def spy(session, position, pending) -> None:
        fetched.append(len(pending))
        count(session, position, pending)

    monkeypatch.setattr(training, "_count", spy)
    config = small(epochs=1, batch_size=8)
    data = config.data.model_copy(update={"train_limit": 200})
    train(config.model_copy(update={"data": data}), load_benchmark(data), tmp_path / "run")

    assert fetched == [10, 10, 5]


def test_run_remembers_its_encoder_from_every_folder(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "enc").mkdir()
    monkeypatch.chdir(tmp_path)

    def remembered(encoder: str) -> str | None:
        data = DataConfig(name="csv", path=Path("texts.csv"), encoder=encoder)
        return with_absolute_paths(RunConfig(data=data)).data.encoder

    assert remembered("./enc") == str(tmp_path / "enc")
    assert remembered("minilm") == "minilm"
    assert remembered("someone/model") == "someone/model"
