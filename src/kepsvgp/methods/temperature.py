r"""Temperature scaling: one number that sharpens or softens a trained model's probabilities.

    p_T ∝ p^(1/T),   T > 0 minimising the negative log-likelihood of the validation set.

For one pass of a softmax model that is softmax(logits / T). Of a stochastic model or an
ensemble the averaged prediction is scaled. The label never changes, and since T = 1 is among
the candidates the validation NLL never grows.

References:
    Guo et al., 2017, arXiv:1706.04599.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from kepsvgp.errors import UserError
from kepsvgp.inference.prediction import Prediction, Predictor, entropy, predict_batches
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
    probs = (_log(prediction.probs) / temperature).softmax(dim=-1).to(prediction.probs.dtype)
    probs = _keep_label(probs, prediction.predicted)
    share = prediction.aleatoric / prediction.entropy.clamp_min(1e-12)
    aleatoric = entropy(probs) * share.clamp_max(1.0)
    return replace(prediction, probs=probs, aleatoric=aleatoric, logits=None)


def best_temperature(
    probs: Float[Tensor, "example class"], labels: Int[Tensor, " example"]
) -> float:
    """The minimiser of the negative log-likelihood, by LBFGS on log T."""
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
    # where labels are no better than chance T grows without end: the bounds keep it finite
    log_t = torch.zeros((), dtype=logits.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [log_t], lr=0.5, max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
    )

    def nll(t: Tensor) -> Tensor:
        return F.cross_entropy(logits * torch.exp(-t), labels)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = nll(log_t)
        value.backward()
        return value

    optimizer.step(closure)
    found = log_t.detach().clamp(-_LOG_BOUND, _LOG_BOUND)
    # no line search is above suspicion: T = 1 stays unless it is beaten
    return float(found.exp()) if nll(found) < nll(torch.zeros_like(found)) else 1.0


_LOG_BOUND = 5.0


def _keep_label(probs: Tensor, label: Tensor) -> Tensor:
    """Puts the label back on top where rounding has made its probability equal to another's."""
    top = probs.max(dim=-1, keepdim=True).values
    is_lost = probs.argmax(dim=-1, keepdim=True) != label.unsqueeze(-1)
    above = torch.nextafter(top, torch.full_like(top, 2.0))
    raised = probs.scatter(-1, label.unsqueeze(-1), above)
    return torch.where(is_lost, raised, probs)


def _log(probs: Tensor) -> Tensor:
    # in float64, and with a floor under probabilities that were rounded to zero
    return probs.double().clamp_min(torch.finfo(torch.float32).tiny).log()
