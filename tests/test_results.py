"""Every number that the pages tell of our runs is in `results/`."""

import json
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from kepsvgp.configfile import differences, load_config
from kepsvgp.files import read_json, read_json_lines

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
REPRODUCE = (ROOT / "docs" / "guides" / "reproduce.md").read_text()
CONVERT = (ROOT / "docs" / "guides" / "convert.md").read_text()
DECISIONS = (ROOT / "docs" / "decisions.md").read_text()
SMALL = ("digits", "cola", "imdb", "cifar10")
TITLES = {"digits": "digits", "cola": "CoLA", "imdb": "IMDB", "cifar10": "CIFAR-10"}


def measured(run: str, split: str) -> dict[str, Any]:
    return read_json(RESULTS / run / "metrics.json")["score"]["kep"][split]


@pytest.mark.parametrize("name", SMALL)
def test_small_profile_tells_what_was_measured(name) -> None:
    (line,) = re.findall(rf"^\| {TITLES[name]} \|.*$", REPRODUCE, flags=re.MULTILINE)
    test = measured(f"small/{name}", "test")
    told = f"MCC {test['mcc']:.3f}" if name == "cola" else f"accuracy {test['accuracy']:.1%}"
    assert told.replace("%", " %") in line
    seconds = json.loads((RESULTS / "small" / "times.json").read_text())["seconds"][name]
    ((number, unit),) = re.findall(r"\| ([\d.]+) (s|min) \|$", line)
    # told to a digit or two
    assert float(number) * {"s": 1, "min": 60}[unit] == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize("name", SMALL)
def test_small_profile_is_the_one_that_was_measured(name) -> None:
    kept = load_config(RESULTS / "small" / name / "config.toml")
    assert differences(kept, load_config(f"{name}-small")) == []


def test_decisions_show_the_table_that_was_made() -> None:
    table = (RESULTS / "defaults" / "tables" / "defaults-digits-small.md").read_text()
    lines = [line for line in table.split("\n") if line.startswith("|")]
    assert len(lines) > 10
    assert "\n".join(lines) in DECISIONS


def test_decisions_tell_what_the_projections_gave() -> None:
    text = " ".join(DECISIONS.split())
    dual, landmark = (
        measured(run, "val")["accuracy"] for run in ("small/imdb", "trials/imdb-landmark")
    )
    assert f"accuracy {dual:.1%} against {landmark:.1%}".replace("%", " %") in text
    dual, landmark = (measured(f"trials/cola-{run}", "val")["mcc"] for run in ("dual", "landmark"))
    assert f"MCC {dual:.3f} against {landmark:.3f}" in text


def test_decisions_tell_how_far_the_trials_on_cola_lie_apart() -> None:
    text = " ".join(DECISIONS.split())
    runs = sorted((RESULTS / "trials").glob("cola-*"))
    val = [max(line["val"]["mcc"] for line in read_json_lines(r / "history.jsonl")) for r in runs]
    test = [measured(f"trials/{run.name}", "test")["mcc"] for run in runs]
    assert len(runs) == 9
    assert f"between {min(val):.3f} and {max(val):.3f} on validation" in text
    assert f"between {min(test):.3f} and {max(test):.3f} on the 527 test sentences" in text


@pytest.mark.parametrize(("title", "arm"), [("softmax", "softmax"), ("converted", "kep")])
def test_convert_guide_tells_what_fine_tuning_gave(title, arm) -> None:
    runs = [read_json(RESULTS / "minilm" / f"{arm}-{seed}.json") for seed in range(3)]
    told = []
    for metric, scale, digits in (
        ("mcc", 100, 1),
        ("aurc", 1000, 0),
        ("ece", 100, 1),
        ("nll", 10, 2),
    ):
        values = [run["metrics"]["test"][metric] * scale for run in runs]
        told.append(f"{fmean(values):.{digits}f} ± {stdev(values):.{digits}f}")
    assert f"| {title} | {' | '.join(told)} |" in CONVERT


def test_convert_guide_tells_of_validation_and_of_the_second_setting() -> None:
    text = " ".join(CONVERT.split())

    def values(run: dict[str, Any], split: str) -> list[float]:
        scales = (("mcc", 100), ("aurc", 1000), ("ece", 100), ("nll", 10))
        return [run["metrics"][split][metric] * scale for metric, scale in scales]

    def mean(arm: str) -> list[float]:
        each = (read_json(RESULTS / "minilm" / f"{arm}-{seed}.json") for seed in range(3))
        return [fmean(column) for column in zip(*(values(run, "val") for run in each), strict=True)]

    (mcc, aurc, ece, nll), (mcc0, aurc0, ece0, nll0) = mean("kep"), mean("softmax")
    told = f"MCC {mcc:.1f} against {mcc0:.1f}, AURC {aurc:.0f} against {aurc0:.0f}, "
    assert told + f"ECE {ece:.1f} against {ece0:.1f} and NLL {nll:.2f} against {nll0:.2f}" in text
    mcc, aurc, ece, nll = values(read_json(RESULTS / "minilm" / "second" / "kep-0.json"), "test")
    assert f"MCC {mcc:.1f}, AURC {aurc:.0f}, ECE {ece:.1f} and NLL {nll:.2f}" in text
    mcc, aurc, ece, nll = values(read_json(RESULTS / "minilm" / "softmax-0.json"), "test")
    assert f"had {mcc:.1f}, {aurc:.0f}, {ece:.1f} and {nll:.2f}" in text


def test_results_are_small_and_hold_no_weights() -> None:
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 10_000_000
    assert not [path for path in files if path.suffix == ".safetensors"]
