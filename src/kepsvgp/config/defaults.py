"""Defaults that the layers, the objective, the configurations and the integrations share."""

from typing import Literal

# where the directions of the singular pairs come from; see `KEPAttention`
PROJECTION: Literal["dual"] = "dual"
# standard deviation of q(v) at the start; that of the prior is 1
POSTERIOR_SCALE = 0.1
# η, the weight of the KSVD penalty in the objective
KSVD_WEIGHT = 1.0
# β, the weight of KL / num_train; 1 is the evidence lower bound
KL_WEIGHT = 1.0
