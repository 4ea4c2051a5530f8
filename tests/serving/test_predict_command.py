import csv
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import families
import pytest
import torch
from commands import call
from PIL import Image
from serving.models import picture, text_folder, tokenizer
from torch.testing import assert_close

from kepsvgp import Abstainer, Prediction, convert, load_pretrained, predict, save_pretrained
from kepsvgp.config.file import load_config
from kepsvgp.config.plugins import find_method
from kepsvgp.data import load_benchmark
from kepsvgp.runs.folder import RunFolder
from kepsvgp.serving import open_folder
from kepsvgp.serving.stream import FIELDS


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_folder(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = load_config(
        "digits",
        ["data.train_limit=96", "data.val_limit=40", "data.test_limit=40", "model.depth=1",
         "model.dim=12", "model.num_heads=2", "model.mlp_dim=12", "model.patch_size=4",
         "model.kep.rank=3", "train.epochs=20", "train.warmup_epochs=0", "train.batch_size=32",
         "train.lr=1e-2"],
    )  # fmt: skip
    find_method(config.method).train(config, load_benchmark(config.data), folder)
    return folder


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


TEXTS = ["good film", "the bad bad film", "unheard of", "a film"]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "in.csv"
    path.write_text("id,text\n" + "".join(f"{i},{t}\n" for i, t in enumerate(TEXTS)))
    return path


def test_predict_gives_what_predict_in_code_gives(text_model, texts, tmp_path, capsys) -> None:
    out = tmp_path / "out.jsonl"

    assert call("predict", text_model, texts, "--out", out, "--samples", 4, "--seed", 3) == 0

    inputs = dict(tokenizer()(TEXTS, padding=True, return_tensors="pt"))
    generator = torch.Generator().manual_seed(3)
    expected = predict(load_pretrained(text_model), inputs, num_samples=4, generator=generator)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [entry["row"] for entry in found] == ["1", "2", "3", "4"]
    assert [entry["label"] for entry in found] == [f"LABEL_{i}" for i in expected.predicted]
    for name, values in {
        "probability": expected.confidence, "total": expected.entropy,
        "aleatoric": expected.aleatoric, "epistemic": expected.epistemic,
    }.items():  # fmt: skip
        assert_close(torch.tensor([entry[name] for entry in found]), values)
    assert [entry["abstain"] for entry in found] == [None] * 4
    assert capsys.readouterr().out == ""


def test_predictions_do_not_depend_on_the_chunks(text_model, texts, tmp_path) -> None:
    for size in (1, 3, 256):
        out = tmp_path / f"{size}.csv"
        assert call("predict", text_model, texts, "--out", out, "--batch-size", size) == 0

    one, three, all_at_once = (read_csv(tmp_path / f"{size}.csv") for size in (1, 3, 256))
    for other in (three, all_at_once):
        for first, second in zip(one, other, strict=True):
            assert first["label"] == second["label"]
            for name in ("probability", "total", "aleatoric", "epistemic"):
                assert float(first[name]) == pytest.approx(float(second[name]), abs=1e-5)
    assert float(one[0]["epistemic"]) > 1e-3


def test_predict_writes_csv_to_standard_output(text_model, texts, capsys) -> None:
    assert call("predict", text_model, texts) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ",".join(FIELDS)
    assert len(lines) == 5


def test_broken_rows_end_everything_or_are_skipped_by_number(text_model, tmp_path, capsys) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.csv"
    source.write_text('{"text": "good"}\n{"text": \n{"text": "a film"}\n{"txt": "\\u001b[31m"}\n')

    assert call("predict", text_model, source, "--out", out) == 2
    message = capsys.readouterr().err
    assert "row 2: it is not JSON" in message
    assert "--skip-bad" in message
    assert not out.exists()

    assert call("predict", text_model, source, "--out", out, "--skip-bad") == 0
    printed = capsys.readouterr().err
    assert "row 2: it is not JSON" in printed
    assert "row 4: it has no field text" in printed
    assert "2 broken rows skipped" in printed
    assert [entry["row"] for entry in read_csv(out)] == ["1", "3"]


@pytest.mark.parametrize("family", ["bert", "roberta", "camembert", "distilbert"])
def test_text_longer_than_the_model_is_cut(family: str, tmp_path) -> None:
    folder = text_folder(tmp_path / "model", family)
    source, out = tmp_path / "in.jsonl", tmp_path / "out.csv"
    source.write_text(json.dumps({"text": "film " * 5000}) + "\n")

    assert call("predict", folder, source, "--out", out) == 0

    assert len(read_csv(out)) == 1


def test_text_behind_blanks_is_read_and_endless_blanks_are_a_broken_row(
    text_model, tmp_path, capsys
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.csv"
    texts = ["good film", " " * 5_000 + "good film", " " * 2**18 + "good film"]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    assert call("predict", text_model, source, "--out", out, "--skip-bad") == 0

    assert "row 3: a text of more than 65536 characters" in capsys.readouterr().err
    first, second = (list(row.values())[1:] for row in read_csv(out))
    assert first == second


def test_saved_rule_is_kept_and_another_promise_refused(
    text_model, texts, tmp_path, capsys
) -> None:
    folder, out = text_folder(tmp_path / "model"), tmp_path / "out.csv"
    rule = Abstainer(0.4, max_risk=0.3, confidence=0.9, coverage=0.5, risk=0.1, size=50)
    rule.save(folder)

    assert call("predict", folder, texts, "--out", out) == 0
    found = read_csv(out)
    expected = ["no" if float(entry["probability"]) >= 0.4 else "yes" for entry in found]
    assert [entry["abstain"] for entry in found] == expected
    assert "at most 30.0% of the answers wrong" in capsys.readouterr().err

    assert call("predict", folder, texts, "--max-risk", 0.3, "--confidence", 0.9) == 0
    capsys.readouterr()
    assert call("predict", folder, texts, "--max-risk", 0.01) == 2
    assert "must have a saved rule for max_risk=0.01" in capsys.readouterr().err

    replace(rule, threshold=math.inf).save(folder)
    assert call("predict", folder, texts) == 0
    assert "no threshold keeps this on 50 calibration examples" in capsys.readouterr().err


def test_run_predicts_a_folder_of_images(image_run, tmp_path, capsys) -> None:
    images, out = tmp_path / "images", tmp_path / "out.csv"
    picture(images / "a.png", (20, 30))
    picture(images / "more" / "b.jpg", (8, 8), seed=1)
    (images / "c.png").write_bytes((images / "a.png").read_bytes()[:200])

    assert call("predict", image_run, images, "--out", out) == 2
    told = capsys.readouterr().err
    assert "c.png" in told
    assert told.count("Mend it") == 1
    assert call("predict", image_run, images, "--out", out, "--skip-bad") == 0

    found = read_csv(out)
    assert [entry["row"] for entry in found] == ["a.png", "more/b.jpg"]
    assert {entry["label"] for entry in found} <= set(RunFolder(image_run).classes())


def test_image_without_a_known_range_is_skipped(image_run, tmp_path, capsys) -> None:
    images, out = tmp_path / "images", tmp_path / "out.csv"
    picture(images / "a.png", (20, 30))
    Image.new("F", (8, 8), 0.5).save(images / "b.tif")

    assert call("predict", image_run, images, "--out", out) == 2
    assert "b.tif must be an image with 8 or 16 bits" in capsys.readouterr().err
    assert call("predict", image_run, images, "--out", out, "--skip-bad") == 0

    assert [entry["row"] for entry in read_csv(out)] == ["a.png"]


def test_a_file_of_texts_is_refused_by_a_model_of_images(image_run, texts, capsys) -> None:
    assert call("predict", image_run, texts) == 2

    told = capsys.readouterr().err
    assert "must be an image, or a folder of images" in told
    assert "it is a file of texts" in told
    assert told.count(texts.name) == 1


@pytest.mark.parametrize("max_false_alarm", [None, 0.4])
def test_run_abstains_by_its_validation_data(max_false_alarm, image_run, tmp_path, capsys) -> None:
    out = tmp_path / "out.csv"
    for number in range(12):
        picture(tmp_path / "images" / f"{number}.png", (8, 8), seed=number)
    run, saved = RunFolder(image_run), open_folder(image_run)

    options = () if max_false_alarm is None else ("--max-false-alarm", max_false_alarm)
    arguments = (image_run, tmp_path / "images", "--out", out, *options, "--max-risk", 0.9)
    assert call("predict", *arguments, "--confidence", 0.6) == 0

    benchmark, model = run.benchmark(), run.model()
    inputs = benchmark.val.inputs(torch.arange(len(benchmark.val)))
    prediction = predict(model, inputs, generator=torch.Generator().manual_seed(0))
    # every fourth gave novelty its scale
    rows = torch.arange(len(prediction)) % 4 > (-1 if max_false_alarm is None else 0)
    rule = Abstainer.fit(
        prediction[rows], benchmark.val.labels[rows], 0.9, 0.6, max_false_alarm=max_false_alarm
    )
    assert rule.words in capsys.readouterr().err.replace("\n", " ")
    assert rule.coverage > 0
    entries = read_csv(out)
    found = saved.predict_all([tmp_path / "images" / entry["row"] for entry in entries])
    assert [entry["reason"] for entry in entries] == rule.reasons(found)
    assert [entry["abstain"] == "yes" for entry in entries] == rule.abstain(found).tolist()
    for name in ("novelty", "novelty_p"):
        values = torch.tensor([float(entry[name]) for entry in entries])
        assert_close(values, getattr(found, name), rtol=1e-4, atol=1e-4)
    # no probability is high enough for the impossible
    assert call("predict", *arguments[:-1], 1e-6) == 0
    assert {entry["abstain"] for entry in read_csv(out)} == {"yes"}
    assert "The least that can be promised is" in capsys.readouterr().err


def test_converted_module_of_ones_own_is_not_served(tmp_path: Path, capsys) -> None:
    layer = torch.nn.TransformerEncoderLayer(12, 2, 17, batch_first=True)
    save_pretrained(convert(layer, rank=3), tmp_path)

    assert call("predict", tmp_path, tmp_path / "in.csv") == 2
    assert "Use load_pretrained and predict" in capsys.readouterr().err


def test_model_without_its_tokenizer_is_refused(tmp_path: Path, capsys) -> None:
    model, _ = families.make("bert")
    save_pretrained(convert(model, rank=3), tmp_path)

    assert call("predict", tmp_path, tmp_path / "in.csv") == 2
    assert "processor=tokenizer" in capsys.readouterr().err


def test_mistakes_are_one_message(text_model, texts, tmp_path, capsys) -> None:
    wrong = {
        "no such folder": (tmp_path / "none", texts),
        "must be a run folder": (tmp_path, texts),
        "must be a file of texts": (text_model, tmp_path),
        "must end in .csv or .jsonl": (text_model, texts, "--out", tmp_path / "out.txt"),
        "must not be the input itself": (text_model, texts, "--out", texts),
        "is its history": (text_model, texts, "--out", text_model / "history.jsonl"),
        "the column body": (text_model, texts, "--column", "body"),
        "must be writable": (text_model, texts, "--out", texts / "out.csv"),
    }
    for message, arguments in wrong.items():
        assert call("predict", *arguments) == 2
        printed = capsys.readouterr()
        assert message in printed.err
        assert printed.err.startswith("error: ")
        assert len(printed.err.splitlines()) == 1
    assert texts.read_text().startswith("id,text")


def test_max_risk_outside_of_its_range_is_refused(image_run, tmp_path, capsys) -> None:
    picture(tmp_path / "a.png", (8, 8))
    for option, value in (("--max-risk", 1.5), ("--max-risk", -1), ("--confidence", 1.0)):
        both = {"--max-risk": 0.1, "--confidence": 0.9} | {option: value}
        arguments = [part for pair in both.items() for part in pair]
        assert call("predict", image_run, tmp_path / "a.png", *arguments) == 2
        assert "must lie in" in capsys.readouterr().err


def test_confidence_without_a_risk_is_refused(image_run, tmp_path, capsys) -> None:
    picture(tmp_path / "a.png", (8, 8))
    assert call("predict", image_run, tmp_path / "a.png", "--confidence", 0.9) == 2
    assert "--confidence must come with the --max-risk" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_reader_of_the_output_may_leave(text_model, tmp_path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("text\n" + "good film\n" * 200)
    command = [sys.executable, "-m", "kepsvgp", "predict", str(text_model), str(source)]
    with subprocess.Popen(
        [*command, "--samples", "1", "--batch-size", "10"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("row,")
        process.stdout.close()
        errors = process.stderr.read()

    assert process.returncode == 0, errors
    assert "Error" not in errors


def test_prediction_survives_names_that_are_no_text(image_run, tmp_path) -> None:
    images = tmp_path / "images"
    picture(images / "a.png", (8, 8))
    try:
        (images / "a.png").rename(images / os.fsdecode(b"\xff\n=1.png"))
    except OSError:
        pytest.skip("this file system takes no such names")

    for name in ("out.csv", "out.jsonl"):
        assert call("predict", image_run, images, "--out", tmp_path / name) == 0

    assert read_csv(tmp_path / "out.csv")[0]["row"] == "\\udcff\n'=1.png"
    assert json.loads((tmp_path / "out.jsonl").read_text())["row"] == "\udcff\n=1.png"


def test_calibration_takes_known_predictions_only_for_the_same_samples(image_run) -> None:
    run = RunFolder(image_run)
    config = run.config()
    place = config.train.select, config.method, "val"
    marked = Prediction(torch.eye(3), torch.zeros(3), targets=torch.arange(3))
    run.write_prediction(*place, marked)

    same, other = open_folder(image_run), open_folder(image_run, num_samples=3)

    assert same.calibrate is not None
    assert other.calibrate is not None
    assert len(same.calibrate()) == 3
    assert len(other.calibrate()) == 40
    run.predictions_file(*place).unlink()


def test_two_columns_of_one_name_are_refused(text_model, tmp_path, capsys) -> None:
    source = tmp_path / "in.csv"
    source.write_text("text,text\na film,another\n")

    assert call("predict", text_model, source) == 2

    assert "must have one column text" in capsys.readouterr().err


def test_rule_of_the_model_before_is_refused(texts, tmp_path, capsys) -> None:
    folder = text_folder(tmp_path / "model")
    Abstainer(0.4, max_risk=0.3, confidence=0.9, coverage=0.5, risk=0.1, size=50).save(folder)
    text_folder(folder, "distilbert")

    assert call("predict", folder, texts) == 2

    assert "fitted to other weights" in capsys.readouterr().err


def test_rule_of_other_draws_is_refused(texts, tmp_path, capsys) -> None:
    folder, out = text_folder(tmp_path / "model"), tmp_path / "out.csv"
    Abstainer(0.4, 0.3, 0.9, coverage=0.5, risk=0.1, size=50, seed=5).save(folder)

    assert call("predict", folder, texts, "--out", out, "--seed", 5) == 0
    out.unlink()
    assert call("predict", folder, texts, "--out", out) == 2

    assert "drawn with seed 5" in capsys.readouterr().err
    assert not out.exists()
