r"""Temperature scaling: one number that sharpens or softens a trained model's probabilities.

    p_T ∝ p^(1/T),   T > 0 minimising the negative log-likelihood of the validation set.

For one pass of a softmax model that is softmax(logits / T). Of a stochastic model or an
ensemble the averaged prediction is scaled. The label never changes, and since T = 1 is among
the candidates the validation NLL never grows.

References:
    Guo et al., 2017, arXiv:1706.04599.
"""

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar
from torch import Tensor

from kepsvgp.errors import UserError
from kepsvgp.inference.prediction import Prediction, Predictor, entropy, predict_batches
from kepsvgp.maths.ksvd import in_float64
from kepsvgp.methods.post_hoc import PostHoc, Trained


class Temperature(PostHoc):
    """Temperature scaling of a trained method."""

    name, title = "temperature", "Temperature scaling"

    def fit(self, trained: Trained) -> "TemperatureScaling":
        """Fits the temperature to the validation set."""
        return fit(trained.direct[0], trained.val(), seed=trained.seed, device=trained.device)

    def kept(self, fitted: "TemperatureScaling") -> dict[str, Tensor]:
        """The temperature."""
        return {"temperature": torch.tensor(fitted.temperature, dtype=torch.float64)}

    def restore(self, kept: Mapping[str, Tensor], trained: Trained) -> "TemperatureScaling":
        """The temperature that was fitted."""
        return TemperatureScaling(trained.direct[0], kept["temperature"].item())


@dataclass(frozen=True, slots=True)
class TemperatureScaling:
    """Another method's prediction with its temperature put right."""

    base: Predictor
    temperature: float

    def predict(self, inputs: Any, *, generator: torch.Generator | None = None) -> Prediction:
        """The base's prediction, scaled."""
        return scale(self.base.predict(inputs, generator=generator), self.temperature)


def fit(
    base: Predictor, batches: Iterable[Any], *, seed: int = 0, device: torch.device | None = None
) -> TemperatureScaling:
    """The temperature that is best for validation batches `(inputs, labels, index)`."""
    prediction = predict_batches(base, batches, seed=seed, device=device)
    assert prediction.targets is not None
    return TemperatureScaling(base, best_temperature(prediction.probs, prediction.targets))


def scale(prediction: Prediction, temperature: float) -> Prediction:
    """p^(1/T), normalised; the aleatoric share of the uncertainty is kept as it was."""
    probs = (_log(prediction.probs) / temperature).softmax(dim=-1).to(prediction.probs)
    probs = _keep_label(probs, prediction.predicted)
    share = prediction.aleatoric / prediction.entropy.clamp_min(1e-12)
    aleatoric = entropy(probs) * share.clamp_max(1.0)
    return replace(prediction, probs=probs, aleatoric=aleatoric, logits=None)


def best_temperature(
    probs: Float[Tensor, "example class"], labels: Int[Tensor, " example"]
) -> float:
    """The minimiser of the negative log-likelihood."""
    if len(labels) == 0:
        raise UserError("temperature scaling must have validation examples; got none.")
    if (probs.argmax(dim=-1) == labels).all():
        warnings.warn(
            "the temperature is left at 1: the validation set has no error, so that the sharpest "
            "probabilities would fit it best. More validation examples may have one.",
            stacklevel=2,
        )
        return 1.0
    logits = _log(probs)

    def nll(log_t: float) -> float:
        return float(F.cross_entropy(logits * math.exp(-log_t), labels))

    # it falls and then grows with T, and for labels no better than chance falls without end
    found = minimize_scalar(nll, bounds=(-5.0, 5.0), options={"xatol": 1e-9}).x
    # no search is above suspicion: T = 1 stays unless it is beaten
    return math.exp(found) if nll(found) < nll(0.0) else 1.0


def _keep_label(probs: Tensor, label: Tensor) -> Tensor:
    """Puts the label back on top where rounding has made its probability equal to another's."""
    top = probs.max(dim=-1, keepdim=True).values
    is_lost = probs.argmax(dim=-1, keepdim=True) != label.unsqueeze(-1)
    above = torch.nextafter(top, torch.full_like(top, 2.0))
    raised = probs.scatter(-1, label.unsqueeze(-1), above)
    return torch.where(is_lost, raised, probs)


def _log(probs: Tensor) -> Tensor:
    # in float64, and with a floor under probabilities that were rounded to zero
    return in_float64(probs).clamp_min(torch.finfo(torch.float32).tiny).log()
