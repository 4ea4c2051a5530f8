"""Defaults that the layers, the objective, the configurations and the integrations share."""

from typing import Literal

# where the directions of the singular pairs come from; see `KEPAttention`
PROJECTION: Literal["dual"] = "dual"
# standard deviation of q(v) at the start; that of the prior is 1
POSTERIOR_SCALE = 0.1
# J̃², which leaves the scale of the scores alone; the paper's J² shrinks it
KSVD_LOSS: Literal["relative"] = "relative"
# η, the weight of the KSVD penalty in the objective; the paper's, of J², are 1 and 10
KSVD_WEIGHT = 0.01
# β, the weight of KL / num_train; 1 is the evidence lower bound
KL_WEIGHT = 1.0
