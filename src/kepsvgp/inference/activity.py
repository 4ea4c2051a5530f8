"""Do the KEP layers of a model do anything? How much their draws say, against what they could.

All is told by the model linearised in v (`kepsvgp.inference.linear`), layer by layer, on examples
that it was not trained on; they stand for as many as were.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kepsvgp.attention.kep import KEPAttention
from kepsvgp.inference.linear import (
    factor_of,
    gaussian_logits,
    in_blocks,
    kep_layers,
    labelled,
    linearise,
)
from kepsvgp.inference.mode import frozen
from kepsvgp.inference.prediction import Prediction
from kepsvgp.maths import gauss_newton, svgp

Word = Literal["active", "silent", "collapsed", "prior noise"]

# what a training set does not determine one value of hardly reaches the answer;
LEAST_DIMENSION = 1.0
# an honest posterior disagrees by about d_eff / 2N: one far below has lost its spread, and one
# whose covariance is far nearer to the prior's than an honest one has not been told anything
LEAST_SHARE = 0.5

ADVICE: dict[Word, str] = {
    "active": "",
    "silent": "what it draws hardly reaches the answer: another model.kep.projection or "
    "ksvd_loss, a smaller objective.ksvd_weight, or longer training may help",
    "collapsed": "its draws agree more than the data warrant: `kepsvgp refit` gives it a posterior "
    "that is as wide as they do",
    "prior noise": "its posterior is as wide as the prior, as if nothing had been seen: `kepsvgp "
    "refit` gives it the spread that the data warrant, a smaller objective.kl_weight may too",
}


@dataclass(frozen=True, slots=True)
class Activity:
    """What a layer's draws do to the answers, in nats a mean over examples.

    Attributes:
        word: `silent`, where the training set does not determine a single value of the layer;
            `prior noise`, where q(v) is as wide as the prior and should not be; `collapsed`, where
            draws from q(v) disagree by less than half of what d_eff / 2N allows; else `active`.
        effective_dimension: d_eff, how many values the training set determines.
        allowed: d_eff / 2N, about the epistemic part of an honest posterior.
        epistemic: That of q(v).
        prior: That of a spread as wide as the prior's.
    """

    word: Word
    effective_dimension: float
    allowed: float
    epistemic: float
    prior: float


def activity(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    num_train: int,
    device: torch.device | None = None,
) -> dict[str, Activity]:
    """How active every KEP layer is, by its name in the model.

    Layers with noise by token are left out: their draws are no draws of v.

    Args:
        model: A trained classifier with KEP layers.
        batches: Labelled examples that it was not trained on; some hundred suffice.
        num_train: How many examples it was trained on.
        device: Where the batches go.
    """
    copy, layers = frozen(model), kep_layers(model)
    sums = [_Sums(layer) for layer in layers]
    for inputs, _ in labelled(batches, device):
        logits, jacobians = linearise(copy, inputs)
        for total, jacobian in zip(sums, jacobians, strict=True):
            total.add(logits, jacobian)
    names = {module: name for name, module in model.named_modules()}
    return {
        names[layer]: total.activity(num_train)
        for layer, total in zip(layers, sums, strict=True)
        if layer.noise == "joint"
    }


class _Sums:
    """Sums over examples, of one layer with the others at their mean."""

    def __init__(self, layer: KEPAttention) -> None:
        self.factor = factor_of(layer)
        self.count, self.posterior, self.prior = 0, 0.0, 0.0
        self.matrix = torch.zeros_like(self.factor)

    def add(
        self,
        logits: Float[Tensor, "example class"],
        jacobian: Float[Tensor, "example class head value rank"],
    ) -> None:
        blocks, flat = in_blocks(jacobian, self.factor.shape[-1]), jacobian.flatten(2)
        self.posterior += _epistemic(logits, gauss_newton.logit_covariance(blocks, self.factor))
        self.prior += _epistemic(logits, flat @ flat.mT)
        self.matrix += gauss_newton.matrix(blocks, logits)
        self.count += len(logits)

    def activity(self, num_train: int) -> Activity:
        # the examples stand for the training set
        spectrum = torch.linalg.eigvalsh(self.matrix * (num_train / self.count)).clamp_min(0)
        size = gauss_newton.effective_dimension(spectrum, 1.0).item()
        allowed, epistemic = size / (2 * num_train), self.posterior / self.count
        # KL(N(m, L Lᵀ) ‖ N(m, I)), and that of an honest covariance (I + G)⁻¹
        kl = svgp.inducing_kl(self.factor.new_zeros(1, *spectrum.shape), self.factor.unsqueeze(0))
        honest = 0.5 * (spectrum.log1p() - spectrum / (1 + spectrum)).sum()
        word: Word = "active"
        if size < LEAST_DIMENSION:
            word = "silent"
        elif kl.item() < LEAST_SHARE * honest.item():
            word = "prior noise"
        elif epistemic < LEAST_SHARE * allowed:
            word = "collapsed"
        return Activity(word, size, allowed, epistemic, self.prior / self.count)


def _epistemic(logits: Tensor, covariance: Tensor) -> float:
    return Prediction.from_logits(gaussian_logits(logits, covariance)).epistemic.sum().item()
