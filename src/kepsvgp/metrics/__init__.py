"""The paper's metrics as plain functions of finished arrays, in raw units.

`calibration` judges probabilities, `ranking` predictions and their confidence, `ood` scores that
tell two sets apart, `selective` gives thresholds and sets with guarantees, `bootstrap` intervals
of differences, and `all_metrics` everything of the paper at once; `registry` says how each is
called and written. They are computed over whole sets, and no value depends on the order of the
examples.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kepsvgp.metrics.registry import METRICS as METRICS

if TYPE_CHECKING:
    from kepsvgp.metrics.bootstrap import Interval as Interval
    from kepsvgp.metrics.bootstrap import paired_bootstrap as paired_bootstrap
    from kepsvgp.metrics.bootstrap import paired_bootstrap_ood as paired_bootstrap_ood
    from kepsvgp.metrics.calibration import brier as brier
    from kepsvgp.metrics.calibration import ece as ece
    from kepsvgp.metrics.calibration import ece_adaptive as ece_adaptive
    from kepsvgp.metrics.calibration import ece_classwise as ece_classwise
    from kepsvgp.metrics.calibration import nll as nll
    from kepsvgp.metrics.features import Mahalanobis as Mahalanobis
    from kepsvgp.metrics.features import ViM as ViM
    from kepsvgp.metrics.features import nearest_neighbour_score as nearest_neighbour_score
    from kepsvgp.metrics.inputs import Outcome as Outcome
    from kepsvgp.metrics.inputs import UndefinedMetricWarning as UndefinedMetricWarning
    from kepsvgp.metrics.inputs import outcome as outcome
    from kepsvgp.metrics.ood import confidence_score as confidence_score
    from kepsvgp.metrics.ood import energy_score as energy_score
    from kepsvgp.metrics.ood import entropy_score as entropy_score
    from kepsvgp.metrics.ood import max_logit_pnorm_score as max_logit_pnorm_score
    from kepsvgp.metrics.ood import max_logit_score as max_logit_score
    from kepsvgp.metrics.ood import mutual_information_score as mutual_information_score
    from kepsvgp.metrics.ood import ood_aupr as ood_aupr
    from kepsvgp.metrics.ood import ood_auroc as ood_auroc
    from kepsvgp.metrics.ood import ood_fpr95 as ood_fpr95
    from kepsvgp.metrics.ood import ood_metrics as ood_metrics
    from kepsvgp.metrics.ranking import accuracy as accuracy
    from kepsvgp.metrics.ranking import aupr_error as aupr_error
    from kepsvgp.metrics.ranking import aupr_success as aupr_success
    from kepsvgp.metrics.ranking import aurc as aurc
    from kepsvgp.metrics.ranking import auroc as auroc
    from kepsvgp.metrics.ranking import eaurc as eaurc
    from kepsvgp.metrics.ranking import fpr95 as fpr95
    from kepsvgp.metrics.ranking import mcc as mcc
    from kepsvgp.metrics.selective import ConformalRule as ConformalRule
    from kepsvgp.metrics.selective import conformal_sets as conformal_sets
    from kepsvgp.metrics.selective import fit_conformal as fit_conformal
    from kepsvgp.metrics.selective import risk_coverage_curve as risk_coverage_curve
    from kepsvgp.metrics.selective import smallest_risk as smallest_risk
    from kepsvgp.metrics.selective import threshold_for_coverage as threshold_for_coverage
    from kepsvgp.metrics.selective import threshold_for_risk as threshold_for_risk
    from kepsvgp.metrics.summary import all_metrics as all_metrics

# Public names by module. They are imported on first use, so that the registry comes without torch.
_NAMES = {
    "bootstrap": "Interval paired_bootstrap paired_bootstrap_ood",
    "calibration": "brier ece ece_adaptive ece_classwise nll",
    "features": "Mahalanobis ViM nearest_neighbour_score",
    "inputs": "Outcome UndefinedMetricWarning outcome",
    "ood": "confidence_score energy_score entropy_score max_logit_pnorm_score max_logit_score "
    "mutual_information_score ood_aupr ood_auroc ood_fpr95 ood_metrics",
    "ranking": "accuracy aupr_error aupr_success aurc auroc eaurc fpr95 mcc",
    "selective": "ConformalRule conformal_sets fit_conformal risk_coverage_curve smallest_risk "
    "threshold_for_coverage threshold_for_risk",
    "summary": "all_metrics",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
