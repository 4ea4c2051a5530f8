"""What a model answered to a split, as arrays."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from kepsvgp.inference.prediction import Prediction


@dataclass(frozen=True)
class Answers:
    """A prediction as arrays, in the order of the split's positions.

    Labels are −1 where they are not known, as outside the distribution.
    """

    probs: Float[ndarray, "example class"]
    confidence: Float[ndarray, " example"]
    predicted: Int[ndarray, " example"]
    entropy: Float[ndarray, " example"]
    aleatoric: Float[ndarray, " example"]
    labels: Int[ndarray, " example"]
    index: Int[ndarray, " example"]
    num_samples: int | None
    novelty: Float[ndarray, " example"] | None = None
    novelty_p: Float[ndarray, " example"] | None = None
    """Their p-values; both or none."""

    @property
    def correct(self) -> Bool[ndarray, " example"]:
        """Whether the most probable class is the label."""
        return self.predicted == self.labels


def answers_of(prediction: Prediction) -> Answers | None:
    """The prediction as arrays; None where it is not finite."""
    if not bool(prediction.probs.isfinite().all()):
        return None
    count = len(prediction)
    labels = np.full(count, -1) if prediction.targets is None else prediction.targets.numpy()
    index = np.arange(count) if prediction.index is None else prediction.index.numpy()
    order = np.argsort(index, kind="stable")
    names = ("probs", "confidence", "predicted", "entropy", "aleatoric")
    if prediction.novelty is not None and prediction.novelty_p is not None:
        names += ("novelty", "novelty_p")
    known = {name: getattr(prediction, name).numpy()[order] for name in names}
    return Answers(
        **known, labels=labels[order], index=index[order], num_samples=prediction.num_samples
    )
