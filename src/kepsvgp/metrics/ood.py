"""Out-of-distribution detection: scores, and how well they separate two sets.

Every score is larger where the model is more uncertain. Which of the two sets is the positive
class changes AUPR and FPR95 (not AUROC) and the literature is divided, so it is always said:

- `positive="out"`: find the foreign examples by high scores;
- `positive="in"`: find the familiar examples by low scores.
"""

import math
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kepsvgp.errors import UserError
from kepsvgp.metrics import curves
from kepsvgp.metrics.curves import Tally
from kepsvgp.metrics.inputs import Array, as_scores, as_tensor, check_option, warn_undefined

Side = Literal["in", "out"]


def confidence_score(probs: Float[Array, "example class"]) -> Float[Tensor, " example"]:
    """−max_c p_c: the negative of the confidence."""
    return -as_tensor(probs).amax(dim=-1)


def energy_score(
    logits: Float[Array, "*sample example class"], *, temperature: float = 1.0
) -> Float[Tensor, " example"]:
    """−T ln Σ_c exp(f_c / T), averaged over samples where there are any.

    References:
        Liu et al., 2020, arXiv:2010.03759, equation 4.
    """
    if not temperature > 0:
        raise UserError(f"temperature must be positive; got {temperature}.")
    energy = -temperature * torch.logsumexp(as_tensor(logits) / temperature, dim=-1)
    return _sample_mean(energy)


def max_logit_pnorm_score(
    logits: Float[Array, "*sample example class"], *, p: float = 4.0
) -> Float[Tensor, " example"]:
    """−max_c z_c / ‖z‖_p of the centred logits z, averaged over samples where there are any.

    References:
        Cattelan and Silva, 2024, arXiv:2305.15508, section 4.
    """
    if not p > 0:
        raise UserError(f"p must be positive; got {p}.")
    f = as_tensor(logits)
    z = f - f.mean(dim=-1, keepdim=True)
    norm = z.abs().pow(p).sum(dim=-1).pow(1 / p)
    # equal logits prefer no class
    return _sample_mean(-z.amax(dim=-1) / norm.clamp_min(torch.finfo(norm.dtype).tiny))


def ood_metrics(
    in_scores: Float[Array, " familiar"], out_scores: Float[Array, " foreign"], *, positive: Side
) -> dict[str, float]:
    """How well scores tell two sets apart, with one warning if a set is empty.

    `ood_auroc` is the probability that a foreign example scores above a familiar one, ties counting
    ½, whichever is the positive class; `ood_aupr` the average precision of finding that class,
    `ood_fpr95` the share of the other one taken for it at the first recall of at least 95 %.
    """
    both = pooled(in_scores, out_scores, positive)
    if len(in_scores) == 0 or len(out_scores) == 0:
        warn_undefined(Detection._fields, "it needs at least one example of each set")
        return dict.fromkeys(Detection._fields, math.nan)
    found = detection(curves.tally(curves.order_by(both.scores), both.is_positive))
    return {name: float(value) for name, value in found._asdict().items()}


class Detection(NamedTuple):
    """How well one ranking finds its positives."""

    ood_auroc: Float[Tensor, "*resample"]
    ood_aupr: Float[Tensor, "*resample"]
    ood_fpr95: Float[Tensor, "*resample"]


def detection(counts: Tally) -> Detection:
    """All metrics of one ranking of both sets."""
    return Detection(
        ood_auroc=curves.area_under_roc(counts),
        ood_aupr=curves.average_precision(counts),
        ood_fpr95=curves.false_positive_rate(counts, 0.95),
    )


class Pooled(NamedTuple):
    """Both sets in one, the familiar examples first; the positive class has high scores."""

    scores: Float[Tensor, " example"]
    is_positive: Bool[Tensor, " example"]


def pooled(in_scores: Array, out_scores: Array, positive: Side) -> Pooled:
    """The scores of both sets, turned round if the familiar ones are sought."""
    check_option("positive", positive, get_args(Side))
    inside, outside = as_scores(in_scores, "in_scores"), as_scores(out_scores, "out_scores")
    scores = torch.cat([inside, outside])
    is_out = torch.arange(len(scores)) >= len(inside)
    return Pooled(scores, is_out) if positive == "out" else Pooled(-scores, ~is_out)


def _sample_mean(scores: Tensor) -> Tensor:
    return scores.flatten(end_dim=-2).mean(dim=0) if scores.ndim > 1 else scores
