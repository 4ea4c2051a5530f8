"""The paper's metrics as plain functions of finished arrays, in raw units.

`calibration` judges probabilities, `ranking` predictions and their confidence, `ood` scores that
tell two sets apart, `selective` gives thresholds with guarantees, `bootstrap` intervals of
differences, and `all_metrics` everything of the paper at once; `registry` says how each is called
and written. They are computed over whole sets, and no value depends on the order of the examples.
"""

from kepsvgp.metrics.bootstrap import Interval as Interval
from kepsvgp.metrics.bootstrap import paired_bootstrap as paired_bootstrap
from kepsvgp.metrics.bootstrap import paired_bootstrap_ood as paired_bootstrap_ood
from kepsvgp.metrics.calibration import brier as brier
from kepsvgp.metrics.calibration import ece as ece
from kepsvgp.metrics.calibration import nll as nll
from kepsvgp.metrics.features import Mahalanobis as Mahalanobis
from kepsvgp.metrics.features import ViM as ViM
from kepsvgp.metrics.features import nearest_neighbour_score as nearest_neighbour_score
from kepsvgp.metrics.inputs import Outcome as Outcome
from kepsvgp.metrics.inputs import UndefinedMetricWarning as UndefinedMetricWarning
from kepsvgp.metrics.inputs import outcome as outcome
from kepsvgp.metrics.ood import confidence_score as confidence_score
from kepsvgp.metrics.ood import energy_score as energy_score
from kepsvgp.metrics.ood import max_logit_pnorm_score as max_logit_pnorm_score
from kepsvgp.metrics.ood import ood_metrics as ood_metrics
from kepsvgp.metrics.ranking import accuracy as accuracy
from kepsvgp.metrics.ranking import aupr_error as aupr_error
from kepsvgp.metrics.ranking import aupr_success as aupr_success
from kepsvgp.metrics.ranking import aurc as aurc
from kepsvgp.metrics.ranking import auroc as auroc
from kepsvgp.metrics.ranking import eaurc as eaurc
from kepsvgp.metrics.ranking import fpr95 as fpr95
from kepsvgp.metrics.ranking import mcc as mcc
from kepsvgp.metrics.registry import METRICS as METRICS
from kepsvgp.metrics.selective import risk_coverage_curve as risk_coverage_curve
from kepsvgp.metrics.selective import smallest_risk as smallest_risk
from kepsvgp.metrics.selective import threshold_for_coverage as threshold_for_coverage
from kepsvgp.metrics.selective import threshold_for_risk as threshold_for_risk
from kepsvgp.metrics.summary import all_metrics as all_metrics
