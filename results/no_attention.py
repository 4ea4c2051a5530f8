"""Trains CoLA's Transformer from features alone without any attention, and measures it.

    python results/no_attention.py RUNS SEED…

What it gives, with the paper's schedule, is in `no-attention/`: it tells whether a model whose
attention layers give nothing but noise is better for the noise, or for the lack of attention.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from kepsvgp.config.file import load_config
from kepsvgp.data import load_benchmark
from kepsvgp.methods.registry import get_method
from kepsvgp.models import build
from kepsvgp.ops.denormals import flushed_denormals
from kepsvgp.runs.evaluation import default_device, evaluate
from kepsvgp.runs.folder import CHECKPOINTS
from kepsvgp.training.loop import train


class NoAttention(nn.Module):
    """Stands where softmax attention would, and says nothing."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()

    def forward(self, x: Tensor, mask: Tensor | None = None, **kwargs: object) -> Tensor:
        """Nothing, for every token."""
        return torch.zeros_like(x)


def main(folder: Path, seeds: list[str]) -> None:
    """A run for each seed, measured under each rule for the epoch."""
    build.SoftmaxAttention = NoAttention
    for seed in seeds:
        config = load_config("cola", ["method=msp", "model.embedding_dim=0", f"seed={seed}"])
        benchmark = load_benchmark(config.data)
        with flushed_denormals():
            run = train(config, benchmark, folder / f"seed{seed}", resume=True)
            for rule in CHECKPOINTS:
                method = get_method("msp", run, benchmark, rule, device=default_device())
                about = {"method": "msp", "checkpoint": rule, "splits": ["test"]}
                evaluate(run, benchmark, method, **about)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
