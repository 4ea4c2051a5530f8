"""The training objective: the negative ELBO per example, plus the KSVD penalty."""

import warnings
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from kepsvgp.attention.base import Penalties, penalised_layers
from kepsvgp.config.defaults import KL_WEIGHT, KSVD_WEIGHT
from kepsvgp.errors import UserError, told
from kepsvgp.inference.calls import logits_of
from kepsvgp.maths.ksvd import at_least_float32


class LossTerms(NamedTuple):
    """The total to minimise, and the unweighted terms it is made of.

    Examples:
        >>> terms = loss(convert(model).train()(inputs), labels, model, num_train=40)
        >>> terms._fields
        ('total', 'nll', 'kl', 'ksvd')
    """

    total: Float[Tensor, ""]
    nll: Float[Tensor, ""]
    kl: Float[Tensor, ""]
    ksvd: Float[Tensor, ""]


@told
def loss(
    output: Any,
    labels: Int[Tensor, " batch"],
    model: nn.Module,
    *,
    num_train: int,
    ksvd_weight: float = KSVD_WEIGHT,
    kl_weight: float = KL_WEIGHT,
    label_smoothing: float = 0.0,
) -> LossTerms:
    r"""Terms of the objective for one batch that `model` has just passed in training mode.

    $$-\frac{1}{B} \sum_b \log p(y_b \mid f_b)
      + \frac{\beta}{N} \mathrm{KL}[q(u)\,\|\,p(u)] + \eta\,\mathrm{KSVD}$$

    With `kl_weight` β = 1 the first two terms are exactly −ELBO / `num_train`. Differs from the
    authors' code, which puts the whole KL beside a mean of cross-entropies: that is
    `kl_weight=num_train` here. The KL and the penalty are gathered from all penalised layers of
    the model, whatever model it is; one without any has an objective of cross-entropy alone, and
    a warning says so.
    The KL is that of the whole training set: a layer with a process of its own for every
    sequence counts N times.
    Under gradient accumulation divide `total` by the number of micro-batches, and the KL counts
    once a step, as it should.

    Args:
        output: Logits `(batch, class)`, or `(sample, batch, class)` whose negative
            log-likelihood is averaged over samples, or an object that has them as `logits`.
        labels: Class indices.
        model: The model that made them.
        num_train: Number of training examples, N.
        ksvd_weight: Weight η of the KSVD penalty.
        kl_weight: Weight β of the KL; 1 is the ELBO.
        label_smoothing: As in `torch.nn.functional.cross_entropy`.

    Examples:
        >>> model = convert(model).train()
        >>> loss(model(inputs), labels, model, num_train=40).total.backward()
    """
    if not penalised_layers(model):
        warnings.warn(
            f"{type(model).__name__} has no layer with a posterior: its loss is the cross-entropy "
            "alone. Convert it first, or give the model that made the output.",
            stacklevel=3,
        )
    return objective(
        output, labels, model, num_train=num_train, ksvd_weight=ksvd_weight, kl_weight=kl_weight,
        label_smoothing=label_smoothing,
    )  # fmt: skip


def objective(
    output: Any,
    labels: Int[Tensor, " batch"],
    model: nn.Module,
    *,
    num_train: int,
    ksvd_weight: float,
    kl_weight: float,
    label_smoothing: float = 0.0,
) -> LossTerms:
    """As `loss`, for models that may have no such layers."""
    if num_train < 1:
        raise UserError(f"num_train must be the number of training examples; got {num_train}.")
    if not 0 <= label_smoothing <= 1:
        raise UserError(f"label_smoothing must lie in [0, 1]; got {label_smoothing}.")
    logits = at_least_float32(logits_of(output))
    _check_labels(labels)
    if logits.ndim not in (2, 3) or logits.shape[-2] != len(labels) or logits.shape[-1] < 2:
        raise UserError(
            f"logits must have shape ({len(labels)}, class) or (sample, {len(labels)}, class), "
            f"for as many labels and two classes or more; got {tuple(logits.shape)}."
        )
    num_samples = 1 if logits.ndim == 2 else len(logits)
    try:
        nll = F.cross_entropy(
            logits.flatten(0, -2), labels.repeat(num_samples), label_smoothing=label_smoothing
        )
    except IndexError as error:
        raise UserError(
            f"labels must be below {logits.shape[-1]}, the number of classes; {error}"
        ) from None
    layers = penalised_layers(model)
    if logits.requires_grad and not all(layer.can_train for layer in layers):
        raise UserError(
            "the layers must run with gradients, as the rest of the model does; their last pass "
            "had none, so KL and KSVD penalty would train nothing. Gradient checkpointing does "
            "this when it is reentrant: use use_reentrant=False. A layer that is not to be "
            "trained is frozen by layer.requires_grad_(False)."
        )
    penalties = [layer.penalties() for layer in layers]
    kl = sum((_whole_kl(p, num_train) for p in penalties), start=torch.zeros_like(nll))
    ksvd = torch.stack([p.ksvd for p in penalties]).sum() if penalties else torch.zeros_like(nll)
    total = nll + (kl_weight / num_train) * kl + ksvd_weight * ksvd
    return LossTerms(total, nll, kl, ksvd)


def _check_labels(labels: Any) -> None:
    if isinstance(labels, Tensor) and labels.ndim == 1 and not labels.is_floating_point():
        return
    came = type(labels).__name__
    if isinstance(labels, Tensor):
        came = f"{labels.dtype} of shape {tuple(labels.shape)}"
    raise UserError(
        "labels must be a tensor of class indices, one whole number for each example; got "
        f"{came}. Several labels for an example, or one for each token, are not served."
    )


def _whole_kl(penalties: Penalties, num_train: int) -> Tensor:
    if penalties.sequence_kl is None:
        return penalties.kl
    return penalties.kl + num_train * penalties.sequence_kl
