import random
from pathlib import Path

import families
import pytest
import torch
from commands import call
from serving.models import WORDS, tokenizer

from kepsvgp import Abstainer, load_pretrained
from kepsvgp.serving import open_folder

pytestmark = pytest.mark.filterwarnings("ignore::kepsvgp.metrics.UndefinedMetricWarning")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A classifier as Hugging Face saves it."""
    model, _ = families.make("bert")
    model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    draw = random.Random(0)
    rows = [f"{' '.join(draw.choices(WORDS[4:], k=5))},{draw.randrange(3)}" for _ in range(150)]
    (tmp_path / "data.csv").write_text("\n".join(["text,label", *rows]))
    return tmp_path / "data.csv"


def test_folder_gets_its_posterior_and_answers_as_it_did(folder, data, tmp_path, capsys) -> None:
    import transformers

    out = tmp_path / "converted"
    promises = ("--max-risk", 0.9, "--max-false-alarm", 0.2)

    assert call("convert", folder, data, "--out", out, *promises) == 0

    shown = capsys.readouterr()
    assert "effective dimension" in shown.out
    assert "fitting the posterior to 60 examples" in shown.err
    inputs = dict(tokenizer()(["good film", "a bad the"], padding=True, return_tensors="pt"))
    original = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    converted = load_pretrained(out)
    assert torch.equal(converted(**inputs).logits, original(**inputs).logits)
    assert (out / "report.html").is_file()
    rule = Abstainer.load(out)
    # of 30 that calibrate, 8 give novelty its scale
    assert (rule.max_false_alarm, rule.size) == (0.2, 22)
    prediction = open_folder(out).predict_all(["good film"])
    assert prediction.novelty_p is not None
    assert call("predict", out, data, "--out", tmp_path / "answers.csv", *promises) == 0


def test_what_cannot_be_converted_is_one_message(folder, data, tmp_path, capsys) -> None:
    for given, words in {
        (folder, data, "--out", folder): "--out must be another folder",
        (data.parent, data, "--out", tmp_path / "new"): "with config.json",
        (folder, tmp_path / "none.csv", "--out", tmp_path / "new"): "none.csv",
    }.items():
        assert call("convert", *given) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "few.csv").write_text("text,label\ngood,0\nbad,1\n")
    assert call("convert", folder, tmp_path / "few.csv", "--out", tmp_path / "new") == 2
    assert "at least 100 labelled examples" in capsys.readouterr().err
