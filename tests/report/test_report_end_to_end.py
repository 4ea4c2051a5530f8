"""From training to the page, with nothing drawn in between."""

import json
import re

import pytest
from commands import SMALL, call


def test_report_of_trained_runs_has_their_metrics(tmp_path) -> None:
    runs = []
    for method in ("kep", "msp"):
        runs.append(tmp_path / "runs" / method)
        assert call("train", SMALL, f"method={method}", "--out", runs[-1]) == 0
        assert call("evaluate", runs[-1], "--splits", "ood,shift/fog/5") == 0

    assert call("report", tmp_path / "runs", "--out", tmp_path / "report.html") == 0

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


def test_report_command_writes_page_and_figures(digits_runs, tmp_path) -> None:
    out, figures = tmp_path / "page.html", tmp_path / "figures"

    assert call("report", digits_runs[0].parent, "--out", out, "--figures", figures) == 0

    assert out.read_text().startswith("<!doctype html>")
    written = {path.name for path in figures.iterdir()}
    names = ("reliability", "risk-coverage", "confidence", "shift-bars", "shift-lines")
    assert written == {f"{n}.{k}" for n in (*names, "kernel-spectra") for k in ("png", "svg")}
