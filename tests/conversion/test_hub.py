"""Hugging Face's own calls on converted models: they give that very model, or say why not."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import families
import hub
import pytest
import torch
import transformers
from PIL import Image
from serving.models import picture, tokenizer
from torch import nn

import kepsvgp
from kepsvgp import Abstainer, convert, fit_novelty, fit_posterior, load_pretrained, predict
from kepsvgp.conversion import push_to_hub
from kepsvgp.errors import UserError
from kepsvgp.files import CheckedFolder
from kepsvgp.integrations.huggingface import KEPTrainer

LABELS = torch.tensor([0, 2, 1, 0])


def fitted(name: str = "bert", **options: Any) -> families.Family:
    model, batch = families.make(name)
    convert(model.eval(), **options)
    fit_novelty(model, [batch])
    if options.get("mean") != "zero":
        fit_posterior(model, [(batch, LABELS)], prior_precision=0.1)
    return families.Family(model, batch)


def assert_same(found: nn.Module, expected: nn.Module, batch: Any) -> None:
    first, second = (
        predict(each, batch, num_samples=3, generator=torch.Generator().manual_seed(0))
        for each in (found, expected)
    )
    assert second.novelty is not None
    assert torch.equal(first.probs, second.probs)
    assert torch.equal(first.novelty, second.novelty)


@pytest.mark.parametrize("mean", ["attention", "zero"])
@pytest.mark.parametrize("through", ["itself", "copy", "pickle"])
def test_model_saves_itself_for_the_auto_classes(mean: str, through: str, tmp_path: Path) -> None:
    model, batch = fitted(mean=mean)
    saver = {"itself": lambda m: m, "copy": copy.deepcopy, "pickle": _pickled}[through](model)
    with torch.no_grad():
        model.classifier.weight.add_(0 if saver is model else 1)

    saver.save_pretrained(tmp_path)

    auto = transformers.AutoModelForSequenceClassification
    assert_same(auto.from_pretrained(tmp_path), saver, batch)
    assert auto.from_pretrained(tmp_path, dtype=torch.float64).dtype == torch.float64
    with pytest.raises(Exception, match=r"open it by kepsvgp\.load_pretrained"):
        type(model).from_pretrained(tmp_path)
    with pytest.raises(UserError, match="opened as what it is"):
        transformers.AutoModel.from_pretrained(tmp_path)
    for changed in ({"num_labels": 2}, {"device_map": "cpu"}):
        with pytest.raises(UserError, match="as it was saved"):
            auto.from_pretrained(tmp_path, **changed)


def _pickled(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("mean", ["attention", "zero"])
def test_model_of_which_a_part_was_converted_saves_itself(
    mean: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = families.make("bert")
    families.spread(convert(model.eval().bert, mean=mean))
    fit_novelty(model, [batch])

    model.save_pretrained(tmp_path)

    auto = transformers.AutoModelForSequenceClassification
    assert_same(auto.from_pretrained(tmp_path), model, batch)
    with hub.serving(monkeypatch, tmp_path):
        model.push_to_hub("owner/part")
        assert_same(load_pretrained("owner/part"), model, batch)


def test_model_without_converted_layers_saves_itself_as_ever(tmp_path: Path) -> None:
    fitted()
    model, batch = families.make("bert")

    model.eval().save_pretrained(tmp_path)

    again = type(model).from_pretrained(tmp_path)
    assert torch.equal(again(**batch).logits, model(**batch).logits)
    assert not (tmp_path / "kepsvgp.json").exists()


def test_transformers_without_us_refuses_the_folder(tmp_path: Path) -> None:
    fitted().model.save_pretrained(tmp_path)
    program = "import sys, transformers as t; t.AutoModelForSequenceClassification.{}(sys.argv[1])"
    command = [sys.executable, "-c", program.format("from_pretrained"), str(tmp_path)]

    ended = subprocess.run(command, capture_output=True, text=True)

    assert ended.returncode != 0
    assert "model type `kepsvgp`" in ended.stderr


def test_pipeline_answers_as_the_model_does(tmp_path: Path) -> None:
    model, _ = fitted()
    reader = tokenizer()
    reader.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)

    pipeline = transformers.pipeline("text-classification", str(tmp_path), device="cpu")

    text = "good film"
    probs = model(**reader(text, return_tensors="pt")).logits.softmax(-1)
    for _ in range(2):
        assert pipeline(text)[0]["score"] == pytest.approx(probs.max().item(), abs=1e-6)
    assert type(pipeline.model) is type(model)


def test_pipeline_of_images_answers_as_the_model_does(tmp_path: Path) -> None:
    model, _ = fitted("vit")
    processor = transformers.ViTImageProcessorPil(size={"height": 10, "width": 10})
    processor.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    picture(tmp_path / "a.png", (20, 30))

    pipeline = transformers.pipeline("image-classification", str(tmp_path), device="cpu")

    with Image.open(tmp_path / "a.png") as image:
        pixels = processor(image, return_tensors="pt")
    probs = model(**pixels).logits.softmax(-1)
    for _ in range(2):
        best = pipeline(str(tmp_path / "a.png"))[0]
        assert best["score"] == pytest.approx(probs.max().item(), abs=1e-6)
    assert type(pipeline.model) is type(model)


@pytest.mark.filterwarnings("ignore:layers with a posterior are trained without")
@pytest.mark.parametrize("kind", [KEPTrainer, transformers.Trainer])
@pytest.mark.parametrize("name", ["bert", "vit"])
def test_training_goes_on_from_a_checkpoint(name: str, kind: type, tmp_path: Path) -> None:
    rows = []

    def trained(steps: int, **options: Any) -> Any:
        torch.manual_seed(0)
        model, batch = fitted(name)
        rows[:] = [{k: v[i] for k, v in batch.items()} | {"labels": LABELS[i]} for i in range(4)]
        args = transformers.TrainingArguments(
            str(tmp_path), max_steps=steps, report_to=[], use_cpu=True, disable_tqdm=True,
            save_steps=2, per_device_train_batch_size=2, learning_rate=1e-2,
            lr_scheduler_type="constant",
        )  # fmt: skip
        trainer = kind(model, args, train_dataset=rows)
        trainer.train(**options)
        return trainer.model.eval(), batch

    whole, batch = trained(4)
    again, _ = trained(4, resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

    assert_same(again, whole, batch)
    assert_same(load_pretrained(tmp_path / "checkpoint-4"), whole, batch)


def test_hub_gives_back_what_was_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = fitted()
    generator = torch.Generator().manual_seed(0)
    answered = predict(model, batch, num_samples=3, generator=generator)
    rule = Abstainer.fit(answered, LABELS, max_risk=0.9)
    with hub.serving(monkeypatch, tmp_path) as files:
        push_to_hub(model, "owner/one", metrics={"accuracy": 0.91}, rule=rule)
        assert_same(load_pretrained("owner/one"), model, batch)
        assert_same(
            transformers.AutoModelForSequenceClassification.from_pretrained("owner/one"),
            model, batch,
        )  # fmt: skip
        model.push_to_hub("owner/two")
        assert_same(load_pretrained("owner/two"), model, batch)
    card = files["owner/one"]["README.md"].decode()
    assert "| accuracy | 0.91 |" in card
    assert rule.words in card
    assert "abstainer.json" in files["owner/one"]


def test_hub_that_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="can be downloaded"):
        load_pretrained("nobody/nothing")
    with pytest.raises(UserError, match=r"no kepsvgp\.json"):
        load_pretrained("nothing")


def test_saved_by_the_public_name_and_by_the_model_are_the_same(tmp_path: Path) -> None:
    model, _ = fitted()
    kepsvgp.save_pretrained(model, tmp_path / "a")
    model.save_pretrained(tmp_path / "b", state_dict=model.state_dict())
    for name in ("config.json", "kepsvgp.json", "model.safetensors", "README.md"):
        first, second = ((tmp_path / folder / name).read_bytes() for folder in "ab")
        assert first == second


@pytest.mark.parametrize("changed", [{"family": "own"}, {"model": {"hidden_size": "x"}}])
def test_configuration_that_cannot_be_built_is_said(changed: Any, tmp_path: Path) -> None:
    fitted().model.save_pretrained(tmp_path)
    files = CheckedFolder(tmp_path)
    files.write_json("config.json", files.read_json("config.json") | changed)
    with pytest.raises(UserError, match="this version of transformers"):
        load_pretrained(tmp_path)
