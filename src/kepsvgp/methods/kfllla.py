r"""KFLLLA: a Kronecker-factored Laplace approximation of the last layer.

Around the trained head (W, b) the posterior's precision is  G ⊗ A + τ I  for the weights and
B + τ I  for the biases, with the curvature factors that laplace-torch computes on the training
set: G = Σ ∂²/∂f², A = mean φφᵀ. With their eigenvectors (U, g), (V, a) and (C, c) the variance
of logit k at features φ, and the probit approximation of the predictive distribution, are

    v_k = Σ_ij U_ki² (Vᵀφ)_j² / (g_i a_j + τ) + Σ_i C_ki² / (c_i + τ)
    p   = softmax(f_k / √(1 + π/8 · v_k))

The prior precision τ is the one of a grid with the smallest validation NLL. A stochastic
model is fitted with one draw for each training example, as it was trained; its samples are
predicted one by one and their probabilities averaged.

References:
    Kristiadi et al., 2020, arXiv:2002.10118. Daxberger et al., 2021, arXiv:2106.14806.
"""

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from kepsvgp.attention.base import stochastic_layers
from kepsvgp.errors import UserError
from kepsvgp.inference.pooled import gather_pooled, pooled
from kepsvgp.inference.prediction import Prediction, seed_of, with_novelty
from kepsvgp.methods.base import Library
from kepsvgp.methods.post_hoc import PostHoc, Trained
from kepsvgp.models.blocks import Classifier


class LastLayerLaplace(PostHoc):
    """KFLLLA of a trained network."""

    name, title = "kfllla", "KFLLLA"
    library = Library("laplace", "laplace-torch", "laplace")

    def fit(self, trained: Trained) -> "KFLLLA":
        """Fits the curvature to the training set and the prior to the validation set."""
        (direct,) = trained.direct
        return fit(
            checked(direct.model),
            trained.train(),
            trained.val(),
            num_samples=direct.num_samples,
            seed=trained.seed,
            device=trained.device,
        )

    def kept(self, fitted: "KFLLLA") -> dict[str, Tensor]:
        """The curvature and the prior."""
        prior = torch.tensor(fitted.prior_precision, dtype=torch.float64)
        return {**fitted.curvature._asdict(), "prior_precision": prior}

    def restore(self, kept: Mapping[str, Tensor], trained: Trained) -> "KFLLLA":
        """The posterior that was fitted."""
        (direct,) = trained.direct
        model, prior = checked(direct.model), kept["prior_precision"].item()
        device = next(model.parameters()).device
        curvature = Curvature(*(kept[name].to(device) for name in Curvature._fields))
        return KFLLLA(model, curvature, prior, direct.num_samples)


class Curvature(NamedTuple):
    """Eigendecompositions of the curvature of the last layer."""

    class_values: Float[Tensor, " class"]
    class_vectors: Float[Tensor, "class class"]
    feature_values: Float[Tensor, " dim"]
    feature_vectors: Float[Tensor, "dim dim"]
    bias_values: Float[Tensor, " class"]
    bias_vectors: Float[Tensor, "class class"]


@dataclass(frozen=True, slots=True)
class KFLLLA:
    """A trained classifier with a Gaussian posterior over its last layer."""

    model: Classifier
    curvature: Curvature
    prior_precision: float
    num_samples: int = 10

    def predict(self, inputs: Any, *, generator: torch.Generator | None = None) -> Prediction:
        """The probit approximation, averaged over the samples of a stochastic model."""
        seed = seed_of(generator) if stochastic_layers(self.model) else None
        features = pooled(self.model, inputs, num_samples=self.num_samples, generator=generator)
        logits = probit_logits(self.model.head, features, self.curvature, self.prior_precision)
        prediction = replace(Prediction.from_logits(logits), seed=seed)
        return with_novelty(prediction, self.model, inputs)


def fit(
    model: Classifier,
    train_batches: Iterable[Any],
    val_batches: Iterable[Any],
    *,
    num_samples: int = 10,
    prior_precision: float | None = None,
    seed: int = 0,
    device: torch.device | None = None,
) -> KFLLLA:
    """Fits the curvature on training batches and the prior precision on validation batches.

    Args:
        model: A classifier with a linear head.
        train_batches: Batches `(inputs, labels, index)` of the training set, not augmented.
        val_batches: The same of the validation set.
        num_samples: Samples of a stochastic model.
        prior_precision: τ, where it is not to be searched for.
        seed: Seed of a stochastic model's draws.
        device: Where the model is, if not on the CPU.
    """
    checked(model)
    features, labels = gather_pooled(model, train_batches, None, seed=seed, device=device)
    curvature = last_layer_curvature(model.head, features[0], labels)
    if prior_precision is None:
        features, labels = gather_pooled(model, val_batches, num_samples, seed=seed, device=device)
        prior_precision = best_prior_precision(model.head, features, labels, curvature)
    return KFLLLA(model, curvature, prior_precision, num_samples)


def last_layer_curvature(
    head: nn.Module, features: Float[Tensor, "example dim"], labels: Int[Tensor, " example"]
) -> Curvature:
    """The Kronecker factors of the generalised Gauss-Newton matrix, by laplace-torch."""
    LastLayerLaplace().check_installed()
    with warnings.catch_warnings():
        # what its own dependencies use is not for our users to mend
        warnings.simplefilter("ignore")
        from laplace import Laplace
    # laplace-torch looks for the last of several layers
    posterior: Any = Laplace(
        nn.Sequential(nn.Identity(), head),
        "classification",
        subset_of_weights="last_layer",
        hessian_structure="kron",
    )
    posterior.fit(DataLoader(TensorDataset(features, labels), batch_size=256))
    (class_values, feature_values), (bias_values,) = posterior.H.eigenvalues
    (class_vectors, feature_vectors), (bias_vectors,) = posterior.H.eigenvectors
    parts = (
        class_values, class_vectors, feature_values, feature_vectors, bias_values, bias_vectors
    )  # fmt: skip
    # in the order in which they are saved, so that a reloaded method computes to the same bit
    return Curvature(*(part.contiguous() for part in parts))


def logit_variance(
    features: Float[Tensor, "*sample example dim"], curvature: Curvature, prior_precision: float
) -> Float[Tensor, "*sample example class"]:
    """Posterior variance of every logit."""
    c = curvature
    # Σ_ij U_ki² (Vᵀφ)_j² / (g_i a_j + τ)
    spread = 1 / (c.class_values.outer(c.feature_values) + prior_precision)
    along = (features @ c.feature_vectors).square()
    weights = along @ spread.mT @ c.class_vectors.square().mT
    # Σ_i C_ki² / (c_i + τ)
    return weights + c.bias_vectors.square() @ (1 / (c.bias_values + prior_precision))


def probit_logits(
    head: nn.Module,
    features: Float[Tensor, "*sample example dim"],
    curvature: Curvature,
    prior_precision: float,
) -> Float[Tensor, "*sample example class"]:
    """F / √(1 + π/8 · v)."""
    with torch.no_grad():
        variance = logit_variance(features, curvature, prior_precision)
        return head(features) / (1 + math.pi / 8 * variance).sqrt()


def best_prior_precision(
    head: nn.Module,
    features: Float[Tensor, "sample example dim"],
    labels: Int[Tensor, " example"],
    curvature: Curvature,
) -> float:
    """The precision from 10⁻³ to 10³ with the smallest NLL."""

    def nll(prior_precision: float) -> float:
        logits = probit_logits(head, features, curvature, prior_precision)
        log_probs = logits.log_softmax(dim=-1).logsumexp(dim=0) - math.log(len(logits))
        return float(F.nll_loss(log_probs, labels))

    return min(torch.logspace(-3, 3, 100).tolist(), key=nll)


def checked(model: nn.Module) -> Classifier:
    """The same model, if it is one that KFLLLA can be fitted to."""
    head = getattr(model, "head", None)
    if not (isinstance(model, Classifier) and isinstance(head, nn.Linear)):
        raise UserError(
            "kfllla must have a classifier of kepsvgp with a linear head; got "
            f"{type(model).__name__} with {type(head).__name__}."
        )
    return model
