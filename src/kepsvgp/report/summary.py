"""The top of the page as plain values: the table of metrics, a verdict per model, who leads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from kepsvgp.metrics import paired_bootstrap, risk_coverage_curve
from kepsvgp.metrics.registry import Metric
from kepsvgp.report.curves import coverage_at_risk, ece_of_a_calibrated_model
from kepsvgp.report.models import Comparison, Member, Model

# the risk that the cards speak of: the first that some model must abstain for
ACCEPTED_RISKS = (0.05, 0.01)
# from here on an ECE is no small matter
LARGE_ECE = 0.05
RESAMPLES = 400


class Cell(NamedTuple):
    """One number of a table, over the seeds of a model."""

    values: tuple[float, ...]
    text: str
    spread: str
    best: bool

    @property
    def mean(self) -> float | None:
        """The mean over seeds; None where there is no value."""
        return float(np.mean(self.values)) if self.values else None


class Table(NamedTuple):
    """Metrics of all models on one split: {model: one cell a metric}."""

    split: str
    metrics: tuple[Metric, ...]
    rows: dict[str, tuple[Cell, ...]]


def metric_table(comparison: Comparison, split: str, metrics: Sequence[Metric]) -> Table:
    """Mean ± sd over seeds of every metric that some model has, the best marked."""
    shown = [m for m in metrics if any(model.values(split, m.name) for model in comparison.models)]
    columns = [_column(comparison.models, split, metric) for metric in shown]
    rows = {
        model.label: tuple(column[place] for column in columns)
        for place, model in enumerate(comparison.models)
    }
    return Table(split, tuple(shown), rows)


def _column(models: Sequence[Model], split: str, metric: Metric) -> list[Cell]:
    values = [tuple(model.values(split, metric.name)) for model in models]
    means = [float(np.mean(v)) if v else math.nan for v in values]
    finite = [mean for mean in means if math.isfinite(mean)]
    texts = [metric.text(mean) if v else "" for v, mean in zip(values, means, strict=True)]
    best = None
    # as written: equal digits are equally good
    if len({metric.text(mean) for mean in finite}) > 1:
        best = metric.text(max(finite) if metric.is_higher_better else min(finite))
    return [
        Cell(v, text, _spread(v, metric), text == best)
        for v, text in zip(values, texts, strict=True)
    ]


def _spread(values: Sequence[float], metric: Metric) -> str:
    """The standard deviation over seeds; empty for a single seed."""
    return metric.text(float(np.std(values, ddof=1))) if len(values) > 1 else ""


@dataclass(frozen=True)
class Verdict:
    """What the card of a model says. Shares are means over its seeds."""

    accuracy: float
    confidence: float
    ece: float
    noise: float
    coverage: float
    risk: float

    @property
    def calibration(self) -> Literal["calibrated", "too few", "slightly off", "off"]:
        """Calibrated is: the ECE is no more than chance explains; off is: 5 points or more.

        Where chance alone explains 5 points, there are too few examples to find a model off.
        """
        if self.ece <= self.noise:
            return "calibrated" if self.noise < LARGE_ECE else "too few"
        return "slightly off" if self.ece < LARGE_ECE else "off"

    @property
    def words(self) -> str:
        """The state of its calibration in plain words."""
        side = "over-confident" if self.confidence > self.accuracy else "under-confident"
        return {
            "calibrated": "calibrated",
            "too few": "too few examples to say",
            "slightly off": f"slightly {side}",
            "off": side,
        }[self.calibration]


def accepted_risk(comparison: Comparison) -> float:
    """5%, or 1% where every model stays within 5% without abstaining."""
    tests = [member.test for member in comparison.members if member.test is not None]
    errors = [1 - test.correct.mean() for test in tests if len(test.labels)]
    usual, strict = ACCEPTED_RISKS
    return strict if errors and max(errors) <= usual else usual


def verdict(model: Model, *, risk: float = ACCEPTED_RISKS[0]) -> Verdict | None:
    """The card of a model; None where its predictions were not kept."""
    parts = [part for member in model.members if (part := _verdict(member, risk)) is not None]
    if not parts:
        return None
    return Verdict(*np.mean(parts, axis=0).tolist(), risk=risk)


def _verdict(member: Member, risk: float) -> tuple[float, float, float, float, float] | None:
    if member.test is None or len(member.test.labels) == 0:
        return None
    confidence, correct = member.test.confidence, member.test.correct
    metrics = member.metrics("test")
    return (
        float(metrics.get("accuracy", correct.mean())),
        float(confidence.mean(dtype=np.float64)),
        float(metrics.get("ece", math.nan)),
        ece_of_a_calibrated_model(confidence),
        coverage_at_risk(risk_coverage_curve(confidence, correct), risk),
    )


def leaders(models: Sequence[Model]) -> list[Model]:
    """The models of the lowest AURC that cannot be told apart, the best first."""
    known = [m for m in models if m.values("test", "aurc") and m.tests]
    ranked = sorted(known, key=lambda model: np.mean(model.values("test", "aurc")))
    behind = (place for place, m in enumerate(ranked) if is_clearly_better(ranked[0], m))
    return ranked[: next(behind, len(ranked))]


def is_clearly_better(model: Model, other: Model) -> bool:
    """Whether a lower AURC is more than chance of the test set and, if there are some, of seeds.

    What other seeds could change is part of the interval.
    """
    ours, theirs = (np.stack([test.probs for test in m.tests]) for m in (model, other))
    labels = model.tests[0].labels
    found = paired_bootstrap(ours, theirs, labels, metrics=["aurc"], num_resamples=RESAMPLES)
    return found["aurc"].high < 0
