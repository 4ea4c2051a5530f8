"""Every metric by name: its title, unit and direction, and what it is computed from.

Values are computed and kept in raw units; this is how tables, pages and comparisons write them.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

Needs = Literal["probs", "ood_scores", "stopwatch"]


@dataclass(frozen=True)
class Metric:
    """How a metric is called, written and compared.

    Attributes:
        name: Its key in results, and the name of its function.
        title: Its name in headings.
        is_higher_better: Whether larger values are better.
        factor: What the paper multiplies raw values by.
        is_share: Whether raw values are shares, which pages write in percent.
        meaning: What it says, in a few words.
        needs: Probabilities and targets, the scores of two sets, or a stopwatch.
    """

    name: str
    title: str
    is_higher_better: bool
    factor: float
    is_share: bool
    meaning: str
    needs: Needs = "probs"

    @property
    def arrow(self) -> str:
        """Which way is better, in headings."""
        return "↑" if self.is_higher_better else "↓"

    @property
    def sign(self) -> int:
        """1 where larger is better, −1 where smaller is."""
        return 1 if self.is_higher_better else -1

    def text(self, value: float) -> str:
        """A raw value in percent, if it is a share, or as it is."""
        if not math.isfinite(value):
            return "not finite"
        return f"{100 * value:.2f}" if self.is_share else f"{value:.4f}"

    def paper_text(self, value: float) -> str:
        """A raw value in the paper's unit, with as many digits as it prints."""
        # times range over orders of magnitude
        digits = ".3g" if self.needs == "stopwatch" else ".2f"
        return f"{self.factor * value:{digits}}"


# the paper's metrics of one set, in the order of its tables
OF_A_SET = (
    Metric("accuracy", "Accuracy", True, 100, True, "share of right answers"),
    Metric("mcc", "MCC", True, 100, False, "Matthews correlation; 0 is guessing"),
    Metric("aurc", "AURC", False, 1000, False, "area under the risk–coverage curve"),
    Metric("auroc", "AUROC", True, 100, True, "right answers ranked above wrong ones"),
    Metric("fpr95", "FPR95", False, 100, True, "wrong answers kept when 95% of the right ones are"),
    Metric("ece", "ECE", False, 100, True, "gap between confidence and accuracy, 15 bins"),
    Metric("nll", "NLL", False, 10, False, "negative log-likelihood"),
    Metric("brier", "Brier", False, 100, False, "squared error of the probabilities"),
)
# of one set told from another
OF_OTHER_DATA = (
    Metric(
        "ood_auroc", "AUROC", True, 100, True,
        "known inputs ranked above foreign ones", "ood_scores",
    ),
    Metric(
        "ood_aupr", "AUPR", True, 100, True,
        "average precision for known inputs", "ood_scores",
    ),
    Metric(
        "ood_fpr95", "FPR95", False, 100, True,
        "foreign inputs kept when 95% of known are", "ood_scores",
    ),
)  # fmt: skip
# scores by which sets are told apart, beside the confidence
OOD_SCORES = {
    "entropy": "entropy",
    "epistemic": "mutual information",
    "energy": "energy",
    "max_logit_pnorm": "MaxLogit-pNorm",
    "mahalanobis": "Mahalanobis++",
    "nearest_neighbour": "k nearest neighbours",
    "vim": "ViM",
    "novelty": "novelty",
}
OF_SCORES = tuple(
    replace(
        metric,
        name=f"{metric.name}_{score}",
        title=f"{metric.title}, {title}",
        meaning=f"{metric.meaning}, by {title}",
    )
    for metric in OF_OTHER_DATA
    for score, title in OOD_SCORES.items()
)
_BEYOND_THE_TABLES = (
    Metric("eaurc", "E-AURC", False, 1000, False, "AURC beyond that of the best ranking"),
    Metric("aupr_success", "AUPR success", True, 100, True, "average precision for right answers"),
    Metric("aupr_error", "AUPR error", True, 100, True, "average precision for wrong answers"),
)
_TIMES = (
    Metric("seconds_per_epoch", "s/epoch", False, 1, False, "time of an epoch", "stopwatch"),
    Metric("forward_seconds", "forward (s)", False, 1, False, "time of a batch", "stopwatch"),
)

METRICS = {m.name: m for m in (*OF_A_SET, *OF_OTHER_DATA, *OF_SCORES, *_BEYOND_THE_TABLES, *_TIMES)}
