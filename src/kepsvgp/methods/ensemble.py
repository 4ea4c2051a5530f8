"""Deep Ensembles: the mean of the probabilities of independently trained models.

With KEP-SVGP members it is the paper's KEP-SVGP Ensembles. What the members disagree about is
epistemic, beside what each of them does not know itself.

References:
    Lakshminarayanan et al., 2017, arXiv:1612.01474.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kepsvgp.errors import UserError
from kepsvgp.files import read_json, write_json
from kepsvgp.inference.prediction import Prediction, Predictor


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Predictors of equal weight, and the names of the runs that they came from."""

    members: tuple[Predictor, ...]
    names: tuple[str, ...]

    def predict(self, inputs: Any, *, generator: torch.Generator | None = None) -> Prediction:
        """Mean of the members' probabilities and of their expected entropies."""
        return average([m.predict(inputs, generator=generator) for m in self.members])

    def save(self, folder: Path) -> None:
        """Writes which runs the members are; they are saved where they were trained."""
        write_json(folder / "ensemble.json", {"members": list(self.names)})


def fit(members: Sequence[Predictor], names: Sequence[str]) -> Ensemble:
    """There is nothing to fit; an ensemble of fewer than two is refused."""
    if len(members) < 2:
        raise UserError(f"an ensemble must have at least two members; got {len(members)}.")
    return Ensemble(tuple(members), tuple(names))


def member_names(folder: Path) -> list[str]:
    """The runs that a saved ensemble is made of."""
    return read_json(folder / "ensemble.json", "members")["members"]


def load(folder: Path, members: Sequence[Predictor]) -> Ensemble:
    """Reads what `save` wrote, for members in the order of `member_names`."""
    return fit(members, member_names(folder))


def average(predictions: Sequence[Prediction]) -> Prediction:
    """The prediction of members that predicted the same examples."""
    first = predictions[0]
    return Prediction(
        torch.stack([p.probs for p in predictions]).mean(dim=0),
        torch.stack([p.aleatoric for p in predictions]).mean(dim=0),
        None,
        first.targets,
        first.index,
    )
