"""A Lightning module with the objective, and with Monte Carlo validation."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kepsvgp.config.defaults import KL_WEIGHT, KSVD_WEIGHT
from kepsvgp.conversion import parameter_groups
from kepsvgp.errors import UserError
from kepsvgp.inference.prediction import Prediction, predict
from kepsvgp.training.objective import loss

try:
    from lightning import LightningModule
except ImportError:
    raise UserError("This needs lightning: pip install 'kepsvgp[lightning]'.") from None


class KEPModule(LightningModule):
    """Trains any classifier with KEP layers on −ELBO plus the KSVD penalty.

    Batches are `(inputs, labels, …)`, or a mapping with `labels` among its keys. Lightning
    divides the loss by the number of accumulated batches, so that the KL counts once a step.
    Override `configure_optimizers` for another optimizer or a schedule.

    Args:
        model: The classifier.
        num_train: Number of training examples.
        ksvd_weight: Weight η of the KSVD penalty.
        kl_weight: Weight β of the KL; 1 is the ELBO.
        lr: Learning rate.
        new_lr: Learning rate of what is new in converted layers; the same by default.
        weight_decay: Weight decay of all the rest.
        num_samples: Monte Carlo samples in validation, test and prediction.
        seed: Seed of their draws, the same for every batch.

    Examples:
        >>> from lightning import Trainer
        >>> module = KEPModule(convert(model.train()), num_train=40, lr=1e-5, new_lr=1e-3)
        >>> loader = torch.utils.data.DataLoader(list(zip(inputs, labels)), batch_size=20)
        >>> quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
        >>> trainer = Trainer(max_steps=2, accelerator="cpu", enable_model_summary=False, **quiet)
        >>> trainer.fit(module, loader)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        num_train: int,
        ksvd_weight: float = KSVD_WEIGHT,
        kl_weight: float = KL_WEIGHT,
        lr: float = 1e-4,
        new_lr: float | None = None,
        weight_decay: float = 0.0,
        num_samples: int = 10,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.model = model
        self.num_train, self.ksvd_weight, self.kl_weight = num_train, ksvd_weight, kl_weight
        self.lr, self.new_lr, self.weight_decay = lr, new_lr, weight_decay
        self.num_samples, self.seed = num_samples, seed

    def forward(self, inputs: Any) -> Any:
        """The model's own output."""
        return self.model(**inputs) if isinstance(inputs, Mapping) else self.model(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The objective of a batch; its terms are logged as `train/…`."""
        inputs, labels = _split(batch)
        terms = loss(
            self(inputs), labels, self.model, num_train=self.num_train,
            ksvd_weight=self.ksvd_weight, kl_weight=self.kl_weight,
        )  # fmt: skip
        logged = {f"train/{name}": value.detach() for name, value in terms._asdict().items()}
        self.log_dict(logged, batch_size=len(labels))
        return terms.total

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Logs `val/nll` and `val/accuracy` of the averaged samples."""
        self._evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Logs `test/nll` and `test/accuracy` of the averaged samples."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """The fields of a batch's `Prediction`; Lightning takes no frozen object.

        A batch may have labels, as for training, or be the inputs alone.
        """
        prediction = self._predict(_inputs(batch))
        return {"probs": prediction.probs, "aleatoric": prediction.aleatoric}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW, with a learning rate of its own for what is new in converted layers."""
        new_lr = self.lr if self.new_lr is None else self.new_lr
        groups = parameter_groups(
            self.model, lr=self.lr, new_lr=new_lr, weight_decay=self.weight_decay
        )
        return torch.optim.AdamW([group for group in groups if group["params"]])

    def _evaluate(self, batch: Any, stage: str) -> None:
        inputs, labels = _split(batch)
        prediction = self._predict(inputs)
        log_probs = prediction.probs.clamp_min(torch.finfo(prediction.probs.dtype).tiny).log()
        accuracy = (prediction.predicted == labels).float().mean()
        values = {f"{stage}/nll": F.nll_loss(log_probs, labels), f"{stage}/accuracy": accuracy}
        # over all processes, each of which has a share of the examples
        self.log_dict(values, batch_size=len(labels), sync_dist=True)

    def _predict(self, inputs: Any) -> Prediction:
        generator = torch.Generator().manual_seed(self.seed)
        return predict(self.model, inputs, num_samples=self.num_samples, generator=generator)


def _split(batch: Any) -> tuple[Any, Tensor]:
    if isinstance(batch, Mapping) and "labels" in batch:
        return _inputs(batch), batch["labels"]
    if isinstance(batch, tuple | list) and len(batch) > 1:
        return _inputs(batch), batch[1]
    raise UserError(
        "a batch must be (inputs, labels, …) or a mapping with labels among its keys; got a "
        f"{type(batch).__name__} without labels."
    )


def _inputs(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if name != "labels"}
    return batch[0] if isinstance(batch, tuple | list) else batch
