"""Every number that the pages tell of our runs is in `results/`."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import pytest

from kepsvgp.configfile import differences, load_config
from kepsvgp.files import read_json, read_json_lines

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
REPRODUCE = (ROOT / "docs" / "guides" / "reproduce.md").read_text()
CONVERT = (ROOT / "docs" / "guides" / "convert.md").read_text()
DECISIONS = (ROOT / "docs" / "decisions.md").read_text()
SMALL = ("digits", "cola", "imdb", "cifar10")
TITLES = {"digits": "digits", "cola": "CoLA", "imdb": "IMDB", "cifar10": "CIFAR-10"}


def measured(run: str, split: str) -> dict[str, Any]:
    return read_json(RESULTS / run / "metrics.json")["score"]["kep"][split]


def best(run: str, metric: str) -> float:
    """The best validation value of a run's epochs."""
    return max(line["val"][metric] for line in read_json_lines(RESULTS / run / "history.jsonl"))


def spaced(text: str) -> str:
    """Percentages as the pages write them."""
    return text.replace("%", " %")


@pytest.mark.parametrize("name", SMALL)
def test_small_profile_tells_what_was_measured(name) -> None:
    (line,) = re.findall(rf"^\| {TITLES[name]} \|.*$", REPRODUCE, flags=re.MULTILINE)
    test = measured(f"small/{name}", "test")
    score = f"MCC {test['mcc']:.3f}" if name == "cola" else f"accuracy {test['accuracy']:.1%}"
    assert spaced(score) in line
    seconds = json.loads((RESULTS / "small" / "times.json").read_text())["seconds"][name]
    ((number, unit),) = re.findall(r"\| ([\d.]+) (s|min) \|$", line)
    # told to a digit or two
    assert float(number) * {"s": 1, "min": 60}[unit] == pytest.approx(seconds, rel=0.05)


def test_small_profile_tells_how_lucky_cola_was() -> None:
    score = measured("small/cola", "val")["mcc"]
    assert f"on validation data the same run had MCC {score:.3f}" in " ".join(REPRODUCE.split())


@pytest.mark.parametrize("name", SMALL)
def test_small_profile_is_the_one_that_was_measured(name) -> None:
    kept = load_config(RESULTS / "small" / name / "config.toml")
    assert differences(kept, load_config(f"{name}-small")) == []


def test_decisions_tell_what_projections_and_clipping_gave() -> None:
    text = " ".join(DECISIONS.split())
    plain, clipped = (
        read_json_lines(RESULTS / "trials" / run / "history.jsonl")[3]["train"]["nll"]
        for run in ("cola-landmark", "cola-landmark-clipped")
    )
    assert f"of {plain:.3f} after four epochs without clipping and {clipped:.3f} with" in text
    dual, plain, clipped = (
        best(run, "accuracy")
        for run in ("embeddings/imdb-kep-1", "trials/imdb-landmark", "trials/imdb-landmark-clipped")
    )
    assert spaced(f"accuracy of {dual:.1%} on validation data, landmarks {plain:.1%}") in text
    assert spaced(f"and {clipped:.1%} with clipping") in text


def test_decisions_tell_what_the_projections_gave_on_cifar10() -> None:
    def span(folder: str, key: str) -> str:
        table = RESULTS / folder / "tables" / "table1-cifar10-small.json"
        (row,) = (row for row in json.loads(table.read_text())["rows"] if row["key"] == key)
        scores = [best(f"{folder}/runs/{run}", "accuracy") for run in row["runs"]]
        assert len(scores) == 3
        return f"{100 * min(scores):.1f} to {100 * max(scores):.1f} %"

    rows = (("cifar10", "kep"), ("cifar10-landmark", "kep"), ("cifar10", "msp"))
    dual, landmark, softmax = (span(*row) for row in rows)
    text = " ".join(DECISIONS.split())
    told = f"had {dual} on validation data, with landmarks {landmark}, softmax attention {softmax}"
    assert told in text

    def mean(folder: str) -> float:
        table = RESULTS / folder / "tables" / "table1-cifar10-small.json"
        (row,) = (row for row in json.loads(table.read_text())["rows"] if row["key"] == "kep")
        return fmean(best(f"{folder}/runs/{run}", "accuracy") for run in row["runs"])

    dual, landmark = (
        best(run, "accuracy") for run in ("embeddings/imdb-kep-1", "trials/imdb-landmark-clipped")
    )
    on_imdb = dual - landmark
    assert round(100 * on_imdb) == 11
    assert round(100 * (mean("cifar10") - mean("cifar10-landmark"))) == 7
    assert "it is eleven and seven points of accuracy ahead" in text


def test_decisions_tell_how_silent_a_dual_layer_fell() -> None:
    text = " ".join(DECISIONS.split())
    parts = read_json(RESULTS / "trials" / "epistemic.json")
    dual, landmark = parts["cola-dual-token-again"], parts["cola-landmark-clipped"]
    assert f"was {dual['epistemic']:.8f} nats of {dual['entropy']:.2f}" in text
    assert f"landmarks have {landmark['epistemic']:.4f} of {landmark['entropy']:.2f}" in text
    imdb = parts["imdb-dual"]
    assert f"stays: {imdb['epistemic']:.4f} of {imdb['entropy']:.2f}" in text


def test_decisions_tell_what_did_not_help_imdb() -> None:
    for tried, kept in (
        ("trials/imdb-softmax-dropout0.3", "embeddings/imdb-softmax-0.1"),
        ("trials/imdb-kep-rank16", "embeddings/imdb-kep-0.1"),
    ):
        least = [
            min(line["val"]["nll"] for line in read_json_lines(RESULTS / run / "history.jsonl"))
            for run in (tried, kept)
        ]
        assert least[0] > least[1]
    assert "had a higher NLL there (one seed each" in " ".join(DECISIONS.split())


def test_decisions_tell_what_dropout_gave() -> None:
    text = " ".join(DECISIONS.split())
    few, many = (best(f"trials/cola-softmax{run}", "mcc") for run in ("", "-dropout0.3"))
    assert f"MCC {many:.3f} against {few:.3f} with a dropout of 0.1" in text
    few, many = (best(f"trials/cola-landmark-clipped{run}", "mcc") for run in ("", "-dropout0.3"))
    assert f"clipping {many:.3f} against {few:.3f}" in text


def test_decisions_tell_how_far_the_trials_on_cola_lie_apart() -> None:
    text = " ".join(DECISIONS.split())
    trials = sorted(run.name for run in (RESULTS / "trials").glob("cola-*"))
    runs = [run for run in trials if "softmax" not in run]
    val = [best(f"trials/{run}", "mcc") for run in runs]
    test = [measured(f"trials/{run}", "test")["mcc"] for run in runs]
    assert f"{len(runs)} trials of KEP lie between {min(val):.3f} and {max(val):.3f} on" in text
    assert f"between {min(test):.3f} and {max(test):.3f} on the 527 test sentences" in text
    dual, again = (measured(f"trials/cola-dual{run}", "test")["mcc"] for run in ("", "-again"))
    assert f"had {dual:.3f} and {again:.3f}" in text


MINILM = (("mcc", 100, 1), ("aurc", 1000, 0), ("ece", 100, 1), ("nll", 10, 2))


def minilm(runs: Iterable[str], split: str) -> dict[str, list[float]]:
    """The columns of the guide's table for some runs."""
    found = [read_json(RESULTS / "minilm" / f"{run}.json")["metrics"][split] for run in runs]
    return {metric: [each[metric] * scale for each in found] for metric, scale, _ in MINILM}


@pytest.mark.parametrize(
    ("title", "arm"),
    [
        ("softmax", "softmax"),
        ("converted, `posterior_scale=1`", "kep"),
        ("converted, `posterior_scale=2`", "scale2/kep"),
        ("converted, `posterior_scale=3`", "scale3/kep"),
    ],
)
def test_convert_guide_tells_what_fine_tuning_gave(title, arm) -> None:
    values = minilm([f"{arm}-{seed}" for seed in range(3)], "test")
    cells = [
        f"{fmean(values[metric]):.{digits}f} ± {stdev(values[metric]):.{digits}f}"
        for metric, _, digits in MINILM
    ]
    assert f"| {title} | {' | '.join(cells)} |" in CONVERT


@pytest.mark.parametrize("arm", ["kep", "scale2", "scale3"])
def test_convert_guide_tells_how_far_the_arms_lie_apart(arm) -> None:
    found = read_json(RESULTS / "minilm" / "differences.json")[arm]
    cells = []
    for metric, scale, digits in MINILM:
        middle, low, high = (
            f"{found[metric][name] * scale:+.{digits}f}" for name in ("difference", "low", "high")
        )
        cells.append(f"{middle} [{low}, {high}]")
    assert f"| difference | {' | '.join(cells)} |".replace("-", "−") in CONVERT


def test_convert_guide_tells_of_validation() -> None:
    text = " ".join(CONVERT.split())

    def means(arm: str) -> list[str]:
        values = minilm([f"{arm}-{seed}" for seed in range(2)], "val")
        return [f"{fmean(values[metric]):.{digits}f}" for metric, _, digits in MINILM]

    two, three, softmax = map(means, ("trials/ps2", "trials/ps3", "softmax"))
    names = ("MCC", "AURC", "ECE", "NLL")
    told = [f"{name} {value}" for name, value in zip(names, two, strict=True)]
    for each in (told, three, softmax):
        assert f"{', '.join(each[:3])} and {each[3]}" in text
    nothing = read_json(RESULTS / "minilm" / "trials" / "ps10-0.json")["metrics"]["val"]["mcc"]
    assert nothing == 0


@pytest.mark.parametrize(
    ("title", "variant"),
    [
        ("the default", "default"),
        ("the same without calibration", "uncalibrated"),
        ("rank 10, calibrated", "rank10"),
        ("16 landmarks, calibrated", "landmark"),
        ("no attention at all in this layer", "none"),
    ],
)
def test_convert_guide_tells_how_close_a_warm_start_comes(title, variant) -> None:
    text = (RESULTS / "minilm" / "warm_start.json").read_text()
    found = json.loads(text)["variants"][variant]
    error = f"{found['error']:.2f}" if "error" in found else "–"
    assert f"{title} | {error} | {found['change']:.2f} | {found['cosine']:.3f} |" in CONVERT


def test_results_are_small_and_hold_no_weights() -> None:
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 10_000_000
    assert not [path for path in files if path.suffix == ".safetensors"]


def test_decisions_tell_how_near_the_scores_are_to_singular_vectors() -> None:
    table = RESULTS / "defaults" / "tables" / "defaults-digits-small.json"
    rows = {row["key"]: row["runs"] for row in json.loads(table.read_text())["rows"]}

    def spans(row: str, field: str) -> list[float]:
        files = (RESULTS / "defaults" / "runs" / run / "inspect.json" for run in rows[row])
        layers = [json.loads(file.read_text())["layers"][-1] for file in files]
        return [layer[field][side] for layer in layers for side in ("left", "right")]

    def told(values: list[float]) -> str:
        return f"{100 * min(values):.0f} to {100 * max(values):.0f} %"

    dual, landmark = (told(spans(row, "overlap")) for row in ("dual", "landmark"))
    chance = told(spans("dual", "chance") + spans("landmark", "chance"))
    text = " ".join(DECISIONS.split())
    assert f"its scores span {dual} of the leading singular subspace" in text
    assert f"those of landmarks {landmark}, random ones {chance}" in text


def test_readme_tells_how_long_the_models_took() -> None:
    def ratios(what: str) -> list[float]:
        found = []
        for data in ("imdb", "cifar10", "cola-features"):
            kep, msp = (
                median(
                    line[what]
                    for file in (RESULTS / data / "runs").glob(f"*-{method}-s*/history.jsonl")
                    for line in read_json_lines(file)
                )
                for method in ("kep", "msp")
            )
            found.append(kep / msp)
        return found

    readme = " ".join((ROOT / "README.md").read_text().split())
    told = "took {:.1f} of softmax's time on IMDB, {:.1f} on CIFAR-10, and {:.1f} on CoLA"
    assert told.format(*ratios("seconds")) in readme
    told = "and a prediction {:.1f}, {:.1f} and {:.1f} of one pass"
    assert told.format(*ratios("val_seconds")) in readme
