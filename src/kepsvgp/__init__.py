"""Uncertainty-aware self-attention with kernel-eigen pair sparse variational GPs.

The examples of the public names ask a classifier about a batch, such as these:

    >>> import torch
    >>> from transformers import ViTConfig, ViTForImageClassification
    >>> size = {"image_size": 8, "patch_size": 2, "num_channels": 1, "hidden_size": 64}
    >>> config = ViTConfig(**size, num_hidden_layers=2, num_attention_heads=4)
    >>> config.num_labels = 10
    >>> model = ViTForImageClassification(config)
    >>> inputs, labels = torch.rand(40, 1, 8, 8), torch.arange(40) % 10
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kepsvgp.attention import KEPAttention as KEPAttention
    from kepsvgp.conversion import convert as convert
    from kepsvgp.conversion import load_pretrained as load_pretrained
    from kepsvgp.conversion import parameter_groups as parameter_groups
    from kepsvgp.conversion import save_pretrained as save_pretrained
    from kepsvgp.inference.abstention import Abstainer as Abstainer
    from kepsvgp.inference.export import export as export
    from kepsvgp.inference.novelty import fit_novelty as fit_novelty
    from kepsvgp.inference.posterior import find_spread as find_spread
    from kepsvgp.inference.posterior import fit_posterior as fit_posterior
    from kepsvgp.inference.prediction import Prediction as Prediction
    from kepsvgp.inference.prediction import predict as predict
    from kepsvgp.integrations.huggingface import KEPTrainer as KEPTrainer
    from kepsvgp.integrations.lightning import KEPModule as KEPModule
    from kepsvgp.training.objective import LossTerms as LossTerms
    from kepsvgp.training.objective import loss as loss

__version__ = version("kepsvgp")

# Public names and where they live. They are imported on first use, so that the command
# line can print its help without loading torch.
_PUBLIC = {
    "Abstainer": "kepsvgp.inference.abstention",
    "KEPAttention": "kepsvgp.attention",
    "KEPModule": "kepsvgp.integrations.lightning",
    "KEPTrainer": "kepsvgp.integrations.huggingface",
    "LossTerms": "kepsvgp.training.objective",
    "Prediction": "kepsvgp.inference.prediction",
    "convert": "kepsvgp.conversion",
    "export": "kepsvgp.inference.export",
    "find_spread": "kepsvgp.inference.posterior",
    "fit_posterior": "kepsvgp.inference.posterior",
    "fit_novelty": "kepsvgp.inference.novelty",
    "load_pretrained": "kepsvgp.conversion",
    "loss": "kepsvgp.training.objective",
    "parameter_groups": "kepsvgp.conversion",
    "predict": "kepsvgp.inference.prediction",
    "save_pretrained": "kepsvgp.conversion",
}
# what needs an extra is reachable, but not part of `import *`
_WITH_EXTRAS = ("KEPModule", "KEPTrainer")
__all__ = sorted(set(_PUBLIC) - set(_WITH_EXTRAS))  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return import_module("kepsvgp.metrics")
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC, "metrics"]
