"""The top of the page: a verdict per model and the table of metrics, as plain values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from kepsvgp.metrics import risk_coverage_curve
from kepsvgp.report.curves import coverage_at_risk, ece_of_a_calibrated_model
from kepsvgp.report.models import Comparison, Member, Model

# the risk that the cards speak of: the first that some model must abstain for
ACCEPTED_RISKS = (0.05, 0.01)
# an ECE that chance alone explains in so small a test set says nothing
TOO_MUCH_CHANCE = 0.1


class Metric(NamedTuple):
    """How a metric is called, written and compared."""

    key: str
    title: str
    better: Literal["high", "low"]
    percent: bool
    digits: int
    says: str

    def text(self, value: float) -> str:
        """The value as the page writes it, in percent where that is the custom."""
        if not math.isfinite(value):
            return "not finite"
        return f"{100 * value:.{self.digits}f}" if self.percent else f"{value:.{self.digits}f}"


METRICS = (
    Metric("accuracy", "Accuracy", "high", True, 2, "share of right answers"),
    Metric("mcc", "MCC", "high", False, 4, "Matthews correlation; 0 is guessing"),
    Metric("aurc", "AURC", "low", False, 4, "area under the risk–coverage curve"),
    Metric("auroc", "AUROC", "high", True, 2, "right answers ranked above wrong ones"),
    Metric("fpr95", "FPR95", "low", True, 2, "wrong answers kept when 95% of the right ones are"),
    Metric("ece", "ECE", "low", True, 2, "gap between confidence and accuracy, 15 bins"),
    Metric("nll", "NLL", "low", False, 4, "negative log-likelihood"),
    Metric("brier", "Brier", "low", False, 4, "squared error of the probabilities"),
)
OOD_METRICS = (
    Metric("ood_auroc", "AUROC", "high", True, 2, "known inputs ranked above foreign ones"),
    Metric("ood_aupr", "AUPR", "high", True, 2, "average precision for known inputs"),
    Metric("ood_fpr95", "FPR95", "low", True, 2, "foreign inputs kept when 95% of known are"),
)


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


class Row(NamedTuple):
    """A line of a table."""

    model: int
    label: str
    seeds: int
    cells: tuple[Cell, ...]


class Table(NamedTuple):
    """Metrics of all models on one split."""

    split: str
    metrics: tuple[Metric, ...]
    rows: tuple[Row, ...]


def metric_table(comparison: Comparison, split: str, metrics: Sequence[Metric]) -> Table:
    """Mean ± sd over seeds of every metric that some model has, the best marked."""
    shown = [m for m in metrics if any(model.values(split, m.key) for model in comparison.models)]
    columns = [_column(comparison.models, split, metric) for metric in shown]
    rows = [
        Row(place, model.label, len(model.members), tuple(column[place] for column in columns))
        for place, model in enumerate(comparison.models)
    ]
    return Table(split, tuple(shown), tuple(rows))


def _column(models: Sequence[Model], split: str, metric: Metric) -> list[Cell]:
    values = [tuple(model.values(split, metric.key)) for model in models]
    means = [float(np.mean(v)) if v else math.nan for v in values]
    finite = [mean for mean in means if math.isfinite(mean)]
    texts = [metric.text(mean) if v else "" for v, mean in zip(values, means, strict=True)]
    best = None
    # as written: equal digits are equally good
    if len({metric.text(mean) for mean in finite}) > 1:
        best = metric.text(max(finite) if metric.better == "high" else min(finite))
    return [
        Cell(v, text, spread(v, metric), text == best)
        for v, text in zip(values, texts, strict=True)
    ]


def spread(values: Sequence[float], metric: Metric) -> str:
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
    num_seeds: int

    @property
    def calibration(self) -> Literal["calibrated", "too few", "slightly off", "off"]:
        """Calibrated is: the ECE is no more than chance explains; off is: 5 points or more.

        Where chance explains more than 10 points there are too few examples to call it so.
        """
        if self.ece <= self.noise:
            return "calibrated" if self.noise <= TOO_MUCH_CHANCE else "too few"
        return "slightly off" if self.ece < 0.05 else "off"

    @property
    def words(self) -> str:
        """The state of its calibration in plain words."""
        if self.calibration == "calibrated":
            return "calibrated"
        if self.calibration == "too few":
            return "too few to tell"
        side = "over-confident" if self.confidence > self.accuracy else "under-confident"
        return side if self.calibration == "off" else f"slightly {side}"


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
    accuracy, confidence, ece, noise, coverage = np.mean(parts, axis=0).tolist()
    return Verdict(accuracy, confidence, ece, noise, coverage, risk, len(parts))


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
