"""Deep Ensembles: the mean of the probabilities of independently trained models.

With KEP-SVGP members it is the paper's KEP-SVGP Ensembles. What the members disagree about is
epistemic, beside what each of them does not know itself.

References:
    Lakshminarayanan et al., 2017, arXiv:1612.01474.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kepsvgp.config.comparison import other_inputs
from kepsvgp.data.benchmark import is_same_split
from kepsvgp.errors import UserError
from kepsvgp.inference.prediction import Prediction, Predictor
from kepsvgp.methods.post_hoc import PostHoc, Trained
from kepsvgp.runs.folder import RunFolder


class DeepEnsemble(PostHoc):
    """An ensemble of runs of one method."""

    name, title = "ensemble", "Deep ensemble"
    is_ensemble = True
    title_on = "{} ensemble"

    def check_runs(self, runs: Sequence[RunFolder]) -> None:
        """Refuses members that do not answer the same question, and one that is there twice."""
        super().check_runs(runs)
        first, *others = runs
        record, seen = first.record(), {first.identity(): first.path}
        for run in others:
            name = run.identity()
            if name in seen:
                raise UserError(
                    f"members of an ensemble must be different runs; {run.path} is the same as "
                    f"{seen[name]}. Train another seed, or leave it out."
                )
            seen[name] = run.path
            theirs = run.record()
            same_inputs = all(theirs[key] == record[key] for key in ("task", "classes", "input"))
            same_name = theirs["splits"].get("name") == record["splits"].get("name")
            same_rows = is_same_split(record["splits"], theirs["splits"])
            if not (same_inputs and same_name and same_rows):
                raise UserError(
                    f"members of an ensemble must be trained on the same data, split alike; "
                    f"{run.path} was trained on other data than {first.path}. Leave it out."
                )
            other = other_inputs(first.config(), run.config())
            if other:
                raise UserError(
                    f"members of an ensemble must take the same inputs; {', '.join(other)} of "
                    f"{run.path} differ from those of {first.path}. Leave it out."
                )

    def fit(self, trained: Trained) -> "Ensemble":
        """There is nothing to fit."""
        return Ensemble(trained.direct)


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Two or more predictors of equal weight."""

    members: tuple[Predictor, ...]

    def __post_init__(self) -> None:
        if len(self.members) < 2:
            raise UserError(f"an ensemble must have at least two members; got {len(self.members)}.")

    def predict(self, inputs: Any, *, generator: torch.Generator | None = None) -> Prediction:
        """Mean of the members' probabilities and of their expected entropies."""
        return average([m.predict(inputs, generator=generator) for m in self.members])


def average(predictions: Sequence[Prediction]) -> Prediction:
    """The prediction of members that predicted the same examples.

    Their novelty is averaged too; the mean of p-values is none.
    """
    first = predictions[0]
    novelty = [p.novelty for p in predictions if p.novelty is not None]
    return Prediction(
        torch.stack([p.probs for p in predictions]).mean(dim=0),
        torch.stack([p.aleatoric for p in predictions]).mean(dim=0),
        None,
        first.targets,
        first.index,
        novelty=torch.stack(novelty).mean(dim=0) if len(novelty) == len(predictions) else None,
    )
