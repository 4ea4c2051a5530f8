"""From training to the page, with nothing drawn in between."""

import json
import re
import sys

import pytest

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


def test_report_command_writes_page_and_figures(command, digits_runs, tmp_path) -> None:
    out, figures = tmp_path / "page.html", tmp_path / "figures"

    command("report", digits_runs[0].parent, "--out", out, "--figures", figures)

    assert out.read_text().startswith("<!doctype html>")
    written = {path.name for path in figures.iterdir()}
    names = ("reliability", "risk-coverage", "confidence", "shift-bars", "shift-lines")
    assert written == {f"{n}.{k}" for n in (*names, "kernel-spectra") for k in ("png", "svg")}
