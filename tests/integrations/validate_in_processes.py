"""Validates one model on the same examples in as many processes as it is told, and prints what."""

import json
import logging
import sys
import warnings

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from kepsvgp import KEPAttention

warnings.simplefilter("ignore")
import lightning  # noqa: E402

from kepsvgp.integrations.lightning import KEPModule  # noqa: E402


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
        self.attention = KEPAttention(8, 2, rank=3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x)
        return self.head((tokens + self.attention(tokens)).mean(1))


if __name__ == "__main__":
    devices = int(sys.argv[1])
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    # the first process has the even rows, the second the odd ones: their labels differ
    examples = TensorDataset(torch.randn(40, 5, 4), torch.arange(40) % 2)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto",
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    (values,) = trainer.validate(
        KEPModule(Small(), num_train=40), DataLoader(examples, batch_size=10), verbose=False
    )
    if trainer.is_global_zero:
        print("measured", json.dumps(values))
