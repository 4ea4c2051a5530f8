"""Compares the arms of examples/minilm.py by their kept answers: `python -m tools.minilm FOLDER`.

Writes `results/minilm-cola.json` or `minilm-imdb.json`. Temperatures and rules are fitted on
validation sentences; intervals are over seeds and test examples together.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kepsvgp import Abstainer, Prediction
from kepsvgp.data.sets.foreign import distance
from kepsvgp.inference.novelty import gives_scale
from kepsvgp.methods import ensemble, temperature
from kepsvgp.metrics import all_metrics, confidence_score, ood_metrics, paired_bootstrap
from kepsvgp.metrics.registry import METRICS
from kepsvgp.runs.record import library_versions
from tools.tables import ROOT

NAMES = ("accuracy", "mcc", "aurc", "auroc", "ece", "nll", "brier")
TITLES = {
    "softmax": "softmax",
    "temperature": "softmax + TS",
    "evidence": "posterior, τ by the evidence",
    "validation": "posterior, τ by validation",
    "linear": "posterior, without samples",
    "scaled": "posterior, without samples + TS",
    "fine-tuned": "posterior, fine-tuned",
    "dropout": "MC dropout",
    "laplace": "last-layer Laplace",
    "five": "five softmax models",
}
SCALED = {"temperature": "softmax", "scaled": "linear"}
HELD_OUT = ("validation", "calibration")
PAIRS = (
    ("evidence", "softmax"),
    ("validation", "softmax"),
    ("linear", "softmax"),
    ("linear", "temperature"),
    ("fine-tuned", "softmax"),
    ("linear", "five"),
    ("scaled", "temperature"),
    ("scaled", "five"),
)
RISKS, FALSE_ALARM = (0.2, 0.25), 0.05
LEVELS = (0.01, 0.05, 0.1)


class Answers:
    """What the arms answered, as the example kept it."""

    def __init__(self, folder: Path, seeds: Sequence[int]) -> None:
        self.folder, self.seeds = folder, seeds
        self.load = cache(self._load)

    def _load(self, seed: int, arm: str, name: str) -> Prediction:
        if arm in SCALED:
            validation = self.load(seed, SCALED[arm], "validation")
            assert validation.targets is not None
            t = temperature.best_temperature(validation.probs, validation.targets)
            return temperature.scale(self.load(seed, SCALED[arm], name), t)
        return Prediction.load(self.folder / f"{seed}-{arm}-{name}.safetensors")

    def test(self, arm: str) -> list[Prediction]:
        """An arm's answers to the test set, seed by seed."""
        if arm == "five":
            return [ensemble.average(self.test("softmax"))]
        return [self.load(seed, arm, "test") for seed in self.seeds]

    @property
    def arms(self) -> list[str]:
        """Those that are there."""
        files = {arm: f"{self.seeds[0]}-{SCALED.get(arm, arm)}-test" for arm in TITLES}
        files["five"] = files["softmax"]
        return [arm for arm in TITLES if (self.folder / f"{files[arm]}.safetensors").is_file()]

    @property
    def foreign(self) -> list[str]:
        """The sets of foreign texts, near ones first."""
        files = self.folder.glob(f"{self.seeds[0]}-softmax-*.safetensors")
        names = {file.stem.removeprefix(f"{self.seeds[0]}-softmax-") for file in files}
        return sorted(names - {"test", *HELD_OUT}, key=lambda name: (distance(name), name))[::-1]


def columns(names: Sequence[str]) -> list[dict[str, Any]]:
    """Columns of metrics, in the paper's units."""
    heads = {name: METRICS[name].title for name in names} | {"accuracy": "ACC"}
    return [
        {"key": name, "title": f"{heads[name]} {METRICS[name].arrow}",
         "scale": METRICS[name].factor}
        for name in names
    ]  # fmt: skip


def shares(names: Sequence[str], arrow: str) -> list[dict[str, Any]]:
    """Columns of shares in percent, a set each."""
    return [
        {"key": name, "title": f"{name.replace('_', ' ')} {arrow}".strip(),
         "scale": 100}
        for name in names
    ]  # fmt: skip


def of_arms(answers: Answers) -> dict[str, Any]:
    """Every arm's metrics on the test set, and the differences of some."""
    tests = {arm: answers.test(arm) for arm in answers.arms}
    rows = {}
    for arm, predictions in tests.items():
        found = [all_metrics(p.probs, p.targets) for p in predictions if p.targets is not None]
        rows[arm] = _row(TITLES[arm], {name: [each[name] for each in found] for name in NAMES})
    differences = {}
    for first, second in PAIRS:
        if first in tests and second in tests:
            a, b = (torch.stack([p.probs for p in tests[arm]]) for arm in (first, second))
            targets = tests[first][0].targets
            assert targets is not None
            found = paired_bootstrap(a, b, targets, metrics=NAMES)
            differences[f"{first} − {second}"] = found
    return {"columns": columns(NAMES), "rows": rows, "differences": {"last": differences}}


def of_foreign(answers: Answers) -> dict[str, Any]:
    """How well each score tells foreign texts from the test set: AUROC."""
    scores: dict[str, tuple[str, Callable[[Prediction], torch.Tensor]]] = {
        "confidence": ("softmax", lambda p: confidence_score(p.probs)),
        "epistemic": ("linear", lambda p: p.epistemic),
        "novelty": ("linear", _novelty),
    }
    rows = {}
    for score, (arm, of) in scores.items():
        values = {
            name: [
                ood_metrics(
                    of(answers.load(seed, arm, "test")),
                    of(answers.load(seed, arm, name)),
                    positive="out",
                )["ood_auroc"]
                for seed in answers.seeds
            ]
            for name in answers.foreign
        }
        rows[score] = _row(OF_SCORES[score], values)
    return {"columns": shares(answers.foreign, "↑"), "rows": rows}


OF_SCORES = {"confidence": "confidence, softmax", "epistemic": "epistemic", "novelty": "novelty"}


def of_alarms(answers: Answers) -> dict[str, Any]:
    """The share of test examples that are taken for foreign at each level."""
    found = {
        f"{level:.0%}": [
            float((p.novelty_p <= level).float().mean())
            for p in answers.test("linear")
            if p.novelty_p is not None
        ]
        for level in LEVELS
    }
    heads = [{"key": key, "title": f"at {key}", "scale": 100} for key in found]
    return {"columns": heads, "rows": {"novelty": _row("false alarms, %", found)}}


def of_answered(answers: Answers) -> dict[str, Any]:
    """Shares that are answered under a rule, of the test set and of foreign ones."""
    names = ["test", *answers.foreign]
    rows = {}
    for risk in RISKS:
        for arm, alarm in (("softmax", None), ("linear", None), ("linear", FALSE_ALARM)):
            found: dict[str, list[float]] = {name: [] for name in ["risk", *names]}
            for seed in answers.seeds:
                calibration = answers.load(seed, arm, "calibration")
                # the others gave novelty its scale
                kept = calibration[~gives_scale(len(calibration))]
                rule = Abstainer.fit(kept, max_risk=risk, max_false_alarm=alarm)
                for name in names:
                    prediction = answers.load(seed, arm, name)
                    answered = ~rule.abstain(prediction)
                    found[name].append(float(answered.float().mean()))
                    if name == "test":
                        wrong = prediction.predicted != prediction.targets
                        found["risk"].append(float(wrong[answered].float().mean().nan_to_num()))
            title = "softmax" if arm == "softmax" else "posterior"
            title = title if alarm is None else "posterior and novelty"
            key = f"{arm}-{risk}" + ("" if alarm is None else "-familiar")
            rows[key] = _row(f"{title}, risk {risk:.0%}", found)
    heads = [{"key": "risk", "title": "wrong answers", "scale": 100}, *shares(names, "")]
    return {"columns": heads, "rows": rows}


def _novelty(prediction: Prediction) -> torch.Tensor:
    assert prediction.novelty is not None
    return prediction.novelty


def _row(title: str, values: dict[str, list[float]]) -> dict[str, Any]:
    return {"title": title, "last": {k: [round(v, 12) for v in vs] for k, vs in values.items()}}


def main() -> None:
    """Reads the answers in a folder and writes the file of results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", choices=("cola", "imdb"), default="cola")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = parser.parse_args()
    answers = Answers(options.folder, options.seeds)
    made = {
        "arms": of_arms, "foreign": of_foreign, "alarms": of_alarms, "answered": of_answered
    }  # fmt: skip
    command = f"python examples/minilm.py --data {options.data}"
    content = {
        "title": f"MiniLM on {'CoLA' if options.data == 'cola' else 'IMDB'}, converted",
        "shows": "A plainly fine-tuned model given its posterior, and its rivals; three epochs.",
        "versions": library_versions(),
        "sizes": {
            name: len(answers.load(options.seeds[0], "softmax", name))
            for name in (*HELD_OUT, "test")
        },
        "tables": {name: make(answers) | {"command": command} for name, make in made.items()},
    }
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    file = ROOT / "results" / f"minilm-{options.data}.json"
    file.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{file}\n")


if __name__ == "__main__":
    main()
