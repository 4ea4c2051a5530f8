"""The numbers that the authors' program begins with, in our parameters."""

from typing import Any

import torch
from torch import nn

from kepsvgp.maths import svgp


@torch.no_grad()
def start_as_program(layer: Any) -> None:
    """λ = e^(−2U), u ~ N(0, 1) for means and what L has below its diagonal, log L_ii ~ N(0, 1).

    Ours are whitened: v = Λ⁻¹ u. Coefficients of landmarks, or free ones, are orthonormal over the
    heads, each of Frobenius norm 1 if there are at least as many of them as heads.
    """
    nn.init.uniform_(layer.log_lambda).mul_(-2.0)
    to_v = torch.exp(-layer.log_lambda).unsqueeze(-1)
    nn.init.normal_(layer.v_mean).mul_(to_v)
    u_tril = svgp.lower_cholesky(nn.init.normal_(layer.v_tril_raw))
    layer.set_factor(to_v.unsqueeze(1) * u_tril)
    for name in ("w_e", "w_r"):
        if hasattr(layer, name):
            nn.init.orthogonal_(getattr(layer, name))
