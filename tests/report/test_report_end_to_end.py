"""From training to the page, with nothing drawn in between."""

import csv
import json
import re
import sys

import pytest
from report.hostile import CLASSES, TEXTS

from kepsvgp.cli import main

SMALL = """
method = "kep"
[model]
depth = 1
dim = 12
num_heads = 2
mlp_dim = 12
patch_size = 4
embedding_dim = 12
[model.kep]
rank = 3
[train]
epochs = 2
batch_size = 32
lr = 1e-2
[prediction]
num_samples = 2
"""


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Runs a command of the command line in this process, on a small configuration."""
    config = tmp_path / "small.toml"
    config.write_text(SMALL)

    def run(*arguments: object) -> None:
        words = [str(config if word == "CONFIG" else word) for word in arguments]
        monkeypatch.setattr(sys, "argv", ["kepsvgp", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code

    return run


def test_report_of_trained_runs_has_their_metrics(command, tmp_path) -> None:
    limits = ("data.train_limit=96", "data.val_limit=40", "data.test_limit=40")
    runs = []
    for method in ("kep", "msp"):
        runs.append(tmp_path / "runs" / method)
        command("train", "CONFIG", f"method={method}", *limits, "--out", runs[-1])
        command("evaluate", runs[-1], "--splits", "ood,shift/fog/5")

    command("report", tmp_path / "runs", "--out", tmp_path / "report.html")

    page = (tmp_path / "report.html").read_text()
    for run, label in zip(runs, ("KEP-SVGP", "MSP"), strict=True):
        stored = json.loads((run / "metrics.json").read_text())["score"][run.name]
        rows = re.findall(rf'<tr data-model="{label}">(.*?)</tr>', page, re.DOTALL)
        found = dict(re.findall(r'data-metric="(\w+)" data-value="([^"]*)"', "".join(rows)))
        expected = stored["test"] | stored["ood/photographs"]
        assert {"accuracy", "aurc", "ece", "nll", "ood_auroc"} <= found.keys()
        for metric, value in found.items():
            assert float(value) == pytest.approx(expected[metric], rel=0, abs=0, nan_ok=True)
    assert "not recorded" not in page
    assert "not at hand" not in page


def test_report_of_a_users_own_texts_carries_them_escaped(command, tmp_path) -> None:
    # a CSV file has no empty texts, and no NUL
    texts = [text.replace("\0", "") for text in TEXTS if text]
    names = [*CLASSES[:1], *CLASSES[2:]]
    with (tmp_path / "own.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows([text, names[i % 3]] for i, text in enumerate(texts * 6))
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "w"]))
    data = ("data.name=csv", f"data.path={tmp_path / 'own.csv'}", "data.max_length=16")

    vocabulary = f"data.vocabulary={tmp_path / 'vocab.txt'}"
    command("train", "CONFIG", *data, vocabulary, "--out", tmp_path / "run")
    command("report", tmp_path / "run", "--out", tmp_path / "report.html")

    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    found = re.search(r'id="report-data">(.*?)</script>', page)
    assert found is not None
    (bench,) = json.loads(found[1])["benchmarks"]
    assert sorted(bench["classes"]) == sorted(names)
    assert len(bench["shown"]["texts"]) > 5
    assert set(bench["shown"]["texts"]) <= set(texts)
    assert "<script>alert" not in page
