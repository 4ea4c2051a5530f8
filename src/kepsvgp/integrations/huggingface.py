"""A Hugging Face `Trainer` with the objective, and with Monte Carlo evaluation."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kepsvgp.config.defaults import KL_WEIGHT, KSVD_WEIGHT
from kepsvgp.conversion import trained_parameters
from kepsvgp.conversion.hub import register
from kepsvgp.errors import UserError
from kepsvgp.inference.calls import logits_of
from kepsvgp.inference.prediction import predict
from kepsvgp.training.objective import LossTerms, loss

try:
    from transformers import Trainer
except ImportError:
    raise UserError("This needs transformers: pip install 'kepsvgp[hf]'.") from None

register()


class KEPTrainer(Trainer):
    """Fine-tunes a converted classifier on −ELBO plus the KSVD penalty.

    The loss of a micro-batch is a mean, and the trainer divides it by the number of micro-batches
    of a step: the KL then counts once a step. Beside the loss its terms `nll`, `kl` and `ksvd` are
    logged, unweighted, as means over the micro-batches since the last time. Evaluation averages
    Monte Carlo samples, and the logits that `compute_metrics` sees are logarithms of the averaged
    probabilities.

    Args:
        args: As of `Trainer`.
        ksvd_weight: Weight η of the KSVD penalty.
        kl_weight: Weight β of the KL; 1 is the ELBO.
        num_train: Number of training examples; the length of `train_dataset` by default.
        new_learning_rate: Learning rate of what is new in converted layers; that of the rest by
            default.
        num_samples: Monte Carlo samples in evaluation.
        seed: Seed of their draws, the same for every batch.
        kwargs: As of `Trainer`.

    Examples:
        >>> from transformers import TrainingArguments
        >>> rows = [{"pixel_values": x, "labels": y} for x, y in zip(inputs, labels)]
        >>> given = TrainingArguments("trained", max_steps=2, save_strategy="no", use_cpu=True)
        >>> trainer = KEPTrainer(convert(model), given, train_dataset=rows, new_learning_rate=1e-3)
        >>> steps = trainer.train().global_step  # doctest: +ELLIPSIS
        {...
    """

    # our loss is a mean over the micro-batch, which the trainer has to divide
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        *args: Any,
        ksvd_weight: float = KSVD_WEIGHT,
        kl_weight: float = KL_WEIGHT,
        num_train: int | None = None,
        new_learning_rate: float | None = None,
        num_samples: int = 10,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = False
        self.ksvd_weight, self.kl_weight = ksvd_weight, kl_weight
        self.num_train, self.new_learning_rate = num_train, new_learning_rate
        self.num_samples, self.seed = num_samples, seed
        self._terms: list[Tensor] = []

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The objective of a micro-batch; in evaluation mode its cross-entropy alone."""
        inputs = dict(inputs)
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        smoothing = self.args.label_smoothing_factor
        if model.training:
            bare = self.accelerator.unwrap_model(model)
            terms = loss(
                outputs, labels, bare, num_train=self._num_train(), ksvd_weight=self.ksvd_weight,
                kl_weight=self.kl_weight, label_smoothing=smoothing,
            )  # fmt: skip
            self._terms.append(torch.stack(terms[1:]).detach())
            total = terms.total
        else:
            total = F.cross_entropy(logits_of(outputs), labels, label_smoothing=smoothing)
        return (total, outputs) if return_outputs else total

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Negative log-likelihood, log-probabilities and labels of one batch."""
        inputs = dict(self._prepare_inputs(inputs))
        labels = inputs.pop("labels", None)
        generator = torch.Generator().manual_seed(self.seed)
        result = predict(model, inputs, num_samples=self.num_samples, generator=generator)
        log_probs = result.probs.clamp_min(torch.finfo(result.probs.dtype).tiny).log()
        nll = None if labels is None else F.nll_loss(log_probs, labels)
        return (nll, None, None) if prediction_loss_only else (nll, log_probs, labels)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs a loss with the terms it is made of, over all processes."""
        if "loss" in logs and self._terms:
            mean = self.accelerator.reduce(torch.stack(self._terms).mean(dim=0), "mean")
            assert isinstance(mean, Tensor)
            logs |= dict(zip(LossTerms._fields[1:], mean.tolist(), strict=True))
            self._terms.clear()
        super().log(logs, start_time)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The trainer's optimizer, with the converted layers in a group of their own."""
        fresh = self.optimizer is None
        optimizer = super().create_optimizer(model)
        trained = self.model if model is None else model
        assert isinstance(trained, nn.Module)
        new = trained_parameters(trained)
        if fresh and self.new_learning_rate is not None:
            _split_off(optimizer, new, self.new_learning_rate)
        return optimizer

    def _num_train(self) -> int:
        if self.num_train is None:
            if not hasattr(self.train_dataset, "__len__"):
                raise UserError(
                    "num_train must be given: train_dataset has no length, and the KL needs the "
                    "number of training examples."
                )
            self.num_train = len(self.train_dataset)  # pyright: ignore[reportArgumentType]
        return self.num_train


def _split_off(
    optimizer: torch.optim.Optimizer, new: set[nn.Parameter], learning_rate: float
) -> None:
    """Moves what is new in converted layers to a last group, without weight decay."""
    settings = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    moved = [p for group in optimizer.param_groups for p in group["params"] if p in new]
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if p not in new]
    settings |= {"params": moved, "lr": learning_rate, "weight_decay": 0.0}
    optimizer.add_param_group(settings)
