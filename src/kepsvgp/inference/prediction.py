"""Prediction, and where its uncertainty comes from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from kepsvgp.attention.base import stochastic_layers
from kepsvgp.attention.novelty import last_attention
from kepsvgp.errors import UserError, told
from kepsvgp.files import replacing
from kepsvgp.inference.arrays import as_numbers, class_numbers
from kepsvgp.inference.calls import call, sampled_logits, to_device
from kepsvgp.inference.mode import evaluating
from kepsvgp.inference.observed import Observed, observed
from kepsvgp.metrics.inputs import as_tensor, check_probs, outcome
from kepsvgp.metrics.summary import all_metrics

Average = Literal["probs", "logits"]

# words about the samples, which are no tensors
_ABOUT = ("num_samples", "seed", "average")


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predictive distribution over classes for each example, with its uncertainty.

    Every method ends in one of these, so that metrics, tables and reports know nothing of
    methods. `entropy` is the total uncertainty, `aleatoric` the mean entropy of the
    samples, `epistemic` the rest: how much the samples disagree.

    Examples:
        >>> Prediction.from_arrays([[0.9, 0.1], [0.4, 0.6]]).predicted
        tensor([0, 1])
    """

    probs: Float[Tensor, "example class"]
    aleatoric: Float[Tensor, " example"]
    """Expected entropy of the sampled distributions."""
    logits: Float[Tensor, "sample example class"] | None = None
    """Sampled logits, where they were asked for."""
    targets: Int[Tensor, " example"] | None = None
    """The true labels, where they are known."""
    index: Int[Tensor, " example"] | None = None
    """Positions of the examples in their split, where they are known."""
    num_samples: int | None = None
    """Number of samples that were averaged, where it is known."""
    seed: int | Literal["unknown"] | None = None
    """What they were drawn with; None where there was nothing to draw, or nobody said."""
    average: Average | Literal["linear"] | None = None
    """What was averaged over several samples, where it is known; `linear`: the distribution of
    the linearised model, without any."""
    novelty: Float[Tensor, " example"] | None = None
    """How foreign the input is, where `fit_novelty` has shown the model familiar ones."""
    novelty_p: Float[Tensor, " example"] | None = None
    """Its conformal p-value: at most α for a share α, at most, of inputs like those of the
    calibration."""

    @property
    def predicted(self) -> Int[Tensor, " example"]:
        """The most probable class."""
        return self.probs.argmax(dim=-1)

    @property
    def confidence(self) -> Float[Tensor, " example"]:
        """The probability of the most probable class."""
        return self.probs.max(dim=-1).values

    @property
    def entropy(self) -> Float[Tensor, " example"]:
        """Total uncertainty, H[p] in nats."""
        return entropy(self.probs)

    @property
    def epistemic(self) -> Float[Tensor, " example"]:
        """Mutual information, H[p] − E H[p_s]; rounding below zero is cut off."""
        return (self.entropy - self.aleatoric).clamp_min(0)

    def __len__(self) -> int:
        return len(self.probs)

    def __getitem__(self, rows: slice | Tensor) -> "Prediction":
        """The prediction for some of the examples."""
        values = {
            name: value[:, rows] if name == "logits" else value[rows]
            for name, value in self._present().items()
        }
        return Prediction(**values, **self._about())

    def cpu(self) -> "Prediction":
        """The same in the memory of the CPU."""
        return replace(self, **{name: value.cpu() for name, value in self._present().items()})

    @classmethod
    def from_logits(
        cls, logits: Float[Tensor, "sample example class"], average: Average = "probs"
    ) -> "Prediction":
        """Averages sampled logits: p = mean softmax, or the softmax of the mean.

        With `average="logits"` the parts of the uncertainty need not add up to the total.
        """
        if average not in ("probs", "logits"):
            raise UserError(f"average must be 'probs' or 'logits'; got {average!r}.")
        # a check of the data, which a traced graph cannot hold
        if not torch.compiler.is_compiling() and not logits.isfinite().all():
            raise UserError(
                "the model must give finite logits; some are NaN or infinite. Look for such "
                "numbers in the inputs and the weights, and for inputs of extreme size."
            )
        # in float32 at least: half precision would round small probabilities to zero
        logits = logits if logits.dtype == torch.float64 else logits.float()
        sampled = logits.softmax(dim=-1)
        probs = logits.mean(dim=0).softmax(dim=-1) if average == "logits" else sampled.mean(dim=0)
        count = logits.shape[0]
        aleatoric = entropy(sampled).mean(dim=0)
        return cls(probs, aleatoric, num_samples=count, average=average if count > 1 else None)

    @classmethod
    def from_arrays(cls, probs: Any, targets: Any = None, *, classes: Any = None) -> "Prediction":
        """The prediction of any model at all, from its probabilities and the true labels.

        Args:
            probs: Examples × classes, or for each example the probability of the second of two.
            targets: Numbers of classes, counted from 0, or names among `classes`.
            classes: Names of the classes in the order of the columns, as the `classes_` of
                scikit-learn.
        """
        values = as_tensor(probs if isinstance(probs, Tensor) else as_numbers(probs, "probs"))
        classes = None if classes is None else np.ravel(classes)
        values = torch.stack([1 - values, values], dim=1) if values.ndim == 1 else values
        checked = check_probs(values)
        if classes is not None and len(classes) != checked.shape[1]:
            raise UserError(
                f"classes must be {checked.shape[1]} names, one for each column of probs; got "
                f"{len(classes)}."
            )
        if targets is not None:
            numbers = class_numbers(targets, classes)
            if numbers.shape != checked.shape[:1]:
                raise UserError(
                    f"targets must be one for each of the {len(checked)} rows of probs; got shape "
                    f"{numbers.shape}."
                )
            targets = outcome(checked, as_tensor(numbers)).labels
        return cls(checked, entropy(checked), targets=targets)

    @classmethod
    def concatenate(cls, parts: Sequence["Prediction"]) -> "Prediction":
        """One prediction for the examples of all parts, in their order.

        What the parts do not agree on is not known of the whole.
        """
        if len({frozenset(part._present()) for part in parts}) != 1:
            raise UserError(
                "parts must be one prediction or more, all with the same fields; got "
                f"{' and '.join(', '.join(part._present()) for part in parts) or 'none'}."
            )
        values = {
            name: torch.cat([getattr(part, name) for part in parts], dim=int(name == "logits"))
            for name in parts[0]._present()
        }
        known: dict[str, Any] = {"seed": "unknown"}
        known |= set.intersection(*({*part._about().items()} for part in parts))
        return cls(**values, **known)

    def metrics(self) -> dict[str, float]:
        """Every metric of the paper by name, from the probabilities and the known labels."""
        if self.targets is None:
            raise UserError("targets must be known for metrics; this prediction has none.")
        return all_metrics(self.probs, self.targets)

    def save(self, path: Path) -> None:
        """Writes the prediction as a safetensors file, as a whole or not at all."""
        tensors = {name: value.contiguous() for name, value in self._present().items()}
        about = {name: str(word) for name, word in self._about().items() if word is not None}
        with replacing(path) as temporary:
            save_file(tensors, temporary, metadata=about)

    @classmethod
    def load(cls, path: Path) -> "Prediction":
        """Reads what `save` wrote."""
        if not path.is_file():
            raise UserError(f"{path} must hold a saved prediction; there is no such file.")
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            words = {name: about[name] for name in _ABOUT if name in about}
            numbers = {name: int(word) for name, word in words.items() if _is_number(word)}
            known: Any = words | numbers
            return cls(**tensors, **known)
        except (SafetensorError, TypeError, ValueError, OSError) as error:
            raise UserError(
                f"{path} must hold a saved prediction; it is something else ({error}). "
                "Delete it and evaluate again."
            ) from None

    def _present(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def _about(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _ABOUT}


def _is_number(word: str) -> bool:
    return word.removeprefix("-").isdecimal()


@runtime_checkable
class Predictor(Protocol):
    """Anything fitted that predicts: a post-hoc method, an ensemble."""

    def predict(self, inputs: Any, *, generator: torch.Generator | None = None) -> Prediction:
        """The prediction for one batch of inputs."""
        ...


def entropy(probs: Float[Tensor, "*shape class"]) -> Float[Tensor, "*shape"]:
    """−Σ p log p in nats, with 0 log 0 = 0."""
    return -torch.special.xlogy(probs, probs).sum(dim=-1)


@told
def predict(
    model: nn.Module,
    inputs: Any,
    *,
    num_samples: int = 10,
    generator: torch.Generator | None = None,
    average: Average = "probs",
    keep_logits: bool = False,
    method: Literal["samples", "linear"] = "samples",
) -> Prediction:
    """Prediction for one batch, in evaluation mode and without gradients.

    A sample is one draw of all inducing variables, shared by the examples, so the same
    generator state gives the same answer whatever the batch. A model without stochastic layers
    is called once.

    Args:
        model: Any classifier; its stochastic layers are found by themselves.
        inputs: A tensor, or a mapping that is passed by keyword.
        num_samples: Number of Monte Carlo samples.
        generator: Source of the draws; torch's own by default.
        average: Average the samples' probabilities (the Bayesian predictive distribution) or
            their logits (as the authors' code does).
        keep_logits: Whether the result keeps the sampled logits.
        method: `"linear"` takes the logits of a model with KEP layers for linear in their inducing
            variables, hence Gaussian: one pass and one backward pass a class, no samples of the
            network, no use for the arguments above. See `kepsvgp.inference.linear`.

    Examples:
        >>> predict(convert(model), inputs, generator=torch.Generator().manual_seed(0)).probs.shape
        torch.Size([40, 10])
    """
    if method == "linear":
        from kepsvgp.inference.linear import predict_linear

        return with_novelty(predict_linear(model, inputs), model, inputs)
    seed = seed_of(generator) if stochastic_layers(model) else None
    found = answer(model, inputs, num_samples, generator)
    prediction = Prediction.from_logits(found.logits, average)
    kept = found.logits if keep_logits else None
    return replace(prediction, seed=seed, logits=kept, **found.scores())


@dataclass(frozen=True, slots=True)
class Direct:
    """A model's own prediction: one pass, or the mean over the draws of a stochastic one."""

    model: nn.Module
    num_samples: int = 10
    average: Average = "probs"

    def predict(self, inputs: Any, *, generator: torch.Generator | None = None) -> Prediction:
        """The model's predictive distribution."""
        return predict(
            self.model,
            inputs,
            num_samples=self.num_samples,
            generator=generator,
            average=self.average,
        )


def answer(
    model: nn.Module, inputs: Any, num_samples: int, generator: torch.Generator | None
) -> Observed:
    """The logits of every sample, and what was seen of the inputs on the way."""
    if num_samples < 1:
        raise UserError(f"num_samples must be at least 1; got {num_samples}.")
    # tensors of inference mode do not tell when they are changed in place, which samples rely on
    with torch.inference_mode(False), torch.no_grad(), evaluating(model) as evaluated:
        found = observed(
            evaluated,
            lambda: sampled_logits(evaluated, inputs, num_samples, generator),
            lambda: call(evaluated, inputs),
        )
    if found.logits.ndim != 3 or found.logits.shape[-1] < 2:
        raise UserError(
            "model must be a classifier with logits (batch, class) of two classes or more; got "
            f"{tuple(found.logits.shape[1:])}."
        )
    kind = getattr(getattr(model, "config", None), "problem_type", None)
    if kind in ("regression", "multi_label_classification"):
        raise UserError(f"model must choose one of its classes; its problem_type is {kind}.")
    return found


def with_novelty(prediction: Prediction, model: nn.Module, inputs: Any) -> Prediction:
    """The prediction that another method made of a model, and how foreign the inputs are to it."""
    layer = last_attention(model)
    if layer is None or layer.novelty is None:
        return prediction
    with torch.no_grad(), evaluating(model) as evaluated:
        at_mean = partial(call, evaluated, inputs)
        found = observed(evaluated, lambda: at_mean().unsqueeze(0), at_mean)
    return replace(prediction, **found.scores())


def seed_of(generator: torch.Generator | None) -> int | Literal["unknown"]:
    """The seed of a generator from which nothing was drawn yet."""
    if generator is None:
        return "unknown"
    seed = generator.initial_seed()
    fresh = torch.Generator(generator.device).manual_seed(seed)
    if not torch.equal(fresh.get_state(), generator.get_state()):
        return "unknown"
    # torch keeps a negative seed as what it is modulo 2⁶⁴
    return seed - 2**64 if seed >= 2**63 else seed


def predict_batches(
    predictor: nn.Module | Predictor,
    batches: Iterable[Any],
    *,
    num_samples: int = 10,
    seed: int = 0,
    average: Average = "probs",
    keep_logits: bool = False,
    device: torch.device | None = None,
) -> Prediction:
    """The prediction for a whole split, in the order of its examples.

    Every batch has the same draws, those of `seed`, so the result does not depend on how the
    examples were batched. Batches are `(inputs, labels, index)`.
    """
    parts = []
    for inputs, labels, index in batches:
        generator = torch.Generator().manual_seed(seed)
        untouched = generator.get_state()
        inputs = to_device(inputs, device)
        if isinstance(predictor, nn.Module):
            part = predict(
                predictor,
                inputs,
                num_samples=num_samples,
                generator=generator,
                average=average,
                keep_logits=keep_logits,
            )
        else:
            part = predictor.predict(inputs, generator=generator)
        # what asks for no random numbers has no seed
        of_draws = None if torch.equal(generator.get_state(), untouched) else seed
        logits = part.logits if keep_logits else None
        part = replace(part, logits=logits, targets=labels, index=index, seed=of_draws)
        parts.append(part.cpu())
    if not parts:
        raise UserError("batches must hold at least one example; got none.")
    whole = Prediction.concatenate(parts)
    assert whole.index is not None
    return whole[whole.index.argsort()]
