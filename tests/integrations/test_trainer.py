import math
from pathlib import Path
from typing import Any

import families
import pytest
import torch
from torch.testing import assert_close
from transformers import TrainingArguments

from kepsvgp import convert, loss, predict
from kepsvgp.conversion import new_parameters
from kepsvgp.errors import UserError
from kepsvgp.integrations.huggingface import KEPTrainer


def examples(batch: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    labels = [0, 1, 2, 0]
    rows = [{name: value[i] for name, value in batch.items()} for i in range(4)]
    return [row | {"labels": label} for row, label in zip(rows, labels, strict=True)]


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    defaults = {
        "max_steps": 3, "per_device_train_batch_size": 4, "report_to": [], "save_strategy": "no",
        "use_cpu": True, "logging_steps": 1, "disable_tqdm": True, "learning_rate": 1e-2,
    }  # fmt: skip
    return TrainingArguments(str(folder), **(defaults | options))


@pytest.mark.parametrize("name", [*families.TEXT, *families.IMAGE])
def test_trainer_trains_every_family(name: str, tmp_path: Path) -> None:
    model, batch = families.make(name)
    convert(model, rank=3)
    before = {key: value.clone() for key, value in model.state_dict().items() if "kep" in key}
    data = examples(batch)

    trainer = KEPTrainer(model, arguments(tmp_path), train_dataset=data, eval_dataset=data)
    result = trainer.train()

    assert math.isfinite(result.training_loss)
    assert all((model.state_dict()[key] != old).any() for key, old in before.items())
    assert math.isfinite(trainer.evaluate()["eval_loss"])


def test_accumulation_of_micro_batches_takes_the_same_step(tmp_path: Path) -> None:
    outcomes = []
    for size, steps in ((4, 1), (2, 2), (1, 4)):
        # no dropout and hardly any noise: the two ways differ by nothing but the scale
        model, batch = families.make(
            "bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
        convert(model, rank=3, posterior_scale=1e-7)
        args = arguments(
            tmp_path, max_steps=1, per_device_train_batch_size=size, max_grad_norm=0.0,
            gradient_accumulation_steps=steps, lr_scheduler_type="constant",
        )  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = KEPTrainer(
            model, args, train_dataset=examples(batch), ksvd_weight=0.0,
            optimizers=(optimizer, None),
        )  # fmt: skip
        trainer.train()
        outcomes.append({name: p.detach().clone() for name, p in model.named_parameters()})

    for other in outcomes[1:]:
        for name, value in outcomes[0].items():
            assert_close(other[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("steps", [1, 2])
def test_terms_of_the_loss_are_logged(steps: int, tmp_path: Path) -> None:
    model, batch = families.make("bert")
    convert(model, rank=3)
    args = arguments(
        tmp_path, max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=steps,
        logging_steps=2, learning_rate=0.0,
    )  # fmt: skip
    trainer = KEPTrainer(model, args, train_dataset=examples(batch), kl_weight=3.0, ksvd_weight=0.7)
    trainer.train()

    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 2
    for entry in logged:
        total = entry["nll"] + 3.0 / 4 * entry["kl"] + 0.7 * entry["ksvd"]
        assert entry["loss"] == pytest.approx(total, rel=1e-4)
    # nothing is learnt, so the one term that no input enters stays as it is
    output = model.train()(**batch)
    terms = loss(output, torch.tensor([0, 1, 2, 0]), model, num_train=4)
    assert logged[0]["kl"] == pytest.approx(terms.kl.item(), rel=1e-5)


def test_evaluation_averages_samples(tmp_path: Path) -> None:
    model, batch = families.make("bert")
    convert(model, rank=3, posterior_scale=3.0)
    data = examples(batch)
    trainer = KEPTrainer(model, arguments(tmp_path), train_dataset=data, num_samples=7, seed=5)

    outcome = trainer.predict(data)

    generator = torch.Generator().manual_seed(5)
    expected = predict(model, batch, num_samples=7, generator=generator).probs
    assert_close(torch.tensor(outcome.predictions).exp(), expected)


def test_converted_layers_have_a_learning_rate_of_their_own(tmp_path: Path) -> None:
    model, batch = families.make("bert")
    convert(model, rank=3)
    trainer = KEPTrainer(
        model, arguments(tmp_path, weight_decay=0.1), train_dataset=examples(batch),
        new_learning_rate=0.5,
    )  # fmt: skip

    *old, new = trainer.create_optimizer().param_groups

    assert {id(p) for p in new["params"]} == {id(p) for p in new_parameters(model)}
    assert (new["lr"], new["weight_decay"]) == (0.5, 0.0)
    assert {group["lr"] for group in old} == {1e-2}
    assert sum(len(g["params"]) for g in (*old, new)) == len(list(model.parameters()))


def test_data_without_length_needs_the_number_of_examples(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from examples(batch)

    model, batch = families.make("bert")
    convert(model, rank=3)

    with pytest.raises(UserError, match="num_train must be given"):
        KEPTrainer(model, arguments(tmp_path, max_steps=1), train_dataset=Stream()).train()
    KEPTrainer(model, arguments(tmp_path, max_steps=1), train_dataset=Stream(), num_train=4).train()


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_best_checkpoint_is_loaded_at_the_end(name: str, tmp_path: Path) -> None:
    """That of the largest loss, which is not the last one."""
    model, batch = families.make(name)
    convert(model, mean="zero", rank=3)
    data = examples(batch)
    args = arguments(
        tmp_path, max_steps=4, learning_rate=0.3, save_strategy="steps", save_steps=1,
        eval_strategy="steps", eval_steps=1, load_best_model_at_end=True,
        metric_for_best_model="eval_loss", greater_is_better=True,
    )  # fmt: skip
    trainer = KEPTrainer(model, args, train_dataset=data, eval_dataset=data)

    trainer.train()

    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert losses[-1] < max(losses)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(max(losses), rel=1e-5)
