"""The trained model asked directly.

For a softmax model that is MSP, the maximum softmax probability; for a model with stochastic
layers (KEP-SVGP, SGPA, SNGP, SV-DKL) the mean over Monte Carlo samples. There is nothing to
fit and nothing to save beyond the model.

References:
    Hendrycks and Gimpel, 2017, arXiv:1610.02136.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kepsvgp.files import read_json, write_json
from kepsvgp.inference.prediction import Average, Prediction, predict


@dataclass(frozen=True, slots=True)
class Direct:
    """A model's own prediction."""

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

    def save(self, folder: Path) -> None:
        """Writes how the model is asked; the model is saved where it was trained."""
        write_json(
            folder / "direct.json", {"num_samples": self.num_samples, "average": self.average}
        )


def fit(model: nn.Module, *, num_samples: int = 10, average: Average = "probs") -> Direct:
    """There is nothing to fit."""
    return Direct(model, num_samples, average)


def load(folder: Path, model: nn.Module) -> Direct:
    """Reads what `save` wrote, for the model that it belongs to."""
    about = read_json(folder / "direct.json", "num_samples", "average", alone=True)
    return Direct(model, about["num_samples"], about["average"])
