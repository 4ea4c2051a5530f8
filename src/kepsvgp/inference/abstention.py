"""When not to answer: a threshold on confidence that keeps the error rate below a promise."""

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from jaxtyping import Bool, Int
from torch import Tensor

from kepsvgp.errors import UserError
from kepsvgp.files import CheckedFolder, read_json, write_json
from kepsvgp.inference.prediction import Prediction
from kepsvgp.metrics.selective import threshold_for_risk

FILE = "abstainer.json"


@dataclass(frozen=True, slots=True)
class Abstainer:
    """A rule that answers only where the model is confident enough.

    With probability `confidence` over the calibration set, the error rate among the answered
    examples of the same distribution is at most `max_risk` (selection with guaranteed risk; see
    `kepsvgp.metrics.selective.threshold_for_risk`). Where no threshold keeps the promise,
    `threshold` is infinite and nothing is answered.

    It is a promise for the very functions that answered the calibration examples: predict with
    as many samples, averaged alike and drawn with the same seed, as `predict_batches` does.
    """

    threshold: float
    """Answer where the probability of the predicted class is at least this."""
    max_risk: float
    confidence: float
    coverage: float
    """Share of the calibration examples that are answered."""
    risk: float
    """Error rate among them."""
    size: int
    """Number of calibration examples."""
    num_samples: int | None = None
    """Number of samples behind each of their predictions, where it is known."""
    seed: int | None = None
    """What these were drawn with, where it is known."""

    @classmethod
    def fit(
        cls,
        prediction: Prediction,
        labels: Int[Tensor, " example"] | None = None,
        max_risk: float = 0.05,
        confidence: float = 0.95,
    ) -> "Abstainer":
        """The rule for a promise, from examples that neither trained nor selected the model.

        Args:
            prediction: The predictions for the calibration examples.
            labels: Their true labels; those in `prediction` by default.
            max_risk: Largest error rate among answered examples.
            confidence: Probability with which that holds.
        """
        labels = prediction.targets if labels is None else labels
        if labels is None or len(labels) != len(prediction):
            raise UserError(
                f"labels must be those of the {len(prediction)} predicted examples; got "
                f"{'none' if labels is None else len(labels)}."
            )
        for name, value in (("max_risk", max_risk), ("confidence", confidence)):
            if not 0 < value < 1:
                raise UserError(f"{name} must lie in (0, 1); got {value}.")
        correct = prediction.predicted == labels
        found = threshold_for_risk(prediction.confidence, correct, max_risk, delta=1 - confidence)
        return cls(
            threshold=found.threshold,
            max_risk=max_risk,
            confidence=confidence,
            coverage=found.coverage,
            risk=found.risk,
            size=len(prediction),
            num_samples=prediction.num_samples,
            seed=prediction.seed,
        )

    def abstain(self, prediction: Prediction) -> Bool[Tensor, " example"]:
        """True where the answer should be withheld.

        A threshold is one for as many samples as it was fitted with, fewer are more confident,
        and for their draws: other functions err elsewhere.
        """
        if None not in (self.num_samples, prediction.num_samples) and (
            self.num_samples != prediction.num_samples
        ):
            raise UserError(
                f"prediction must average {self.num_samples} samples, as those that the rule was "
                f"fitted to; it has {prediction.num_samples}, for which its promise does not hold. "
                "Predict with as many samples, or fit the rule again."
            )
        if None not in (self.seed, prediction.seed) and self.seed != prediction.seed:
            raise UserError(
                f"prediction must be drawn with seed {self.seed}, as those that the rule was "
                f"fitted to; it has seed {prediction.seed}, for which its promise does not hold. "
                "Predict with the same seed, or fit the rule again."
            )
        return ~(prediction.confidence.double() >= self.threshold)

    @property
    def words(self) -> str:
        """The promise, and what it takes to keep it."""
        sure = f"with {self.confidence:.1%} certainty"
        promise = f"at most {self.max_risk:.1%} of the answers wrong, {sure}"
        if math.isinf(self.threshold):
            return (
                f"{promise}: no threshold keeps this on {self.size} calibration examples; every "
                "answer is withheld. Allow a larger risk, or calibrate on more examples."
            )
        return (
            f"{promise}: answers from a probability of {self.threshold:.4g} on, which were "
            f"{self.coverage:.1%} of {self.size} calibration examples ({self.risk:.1%} wrong)"
        )

    def save(self, folder: Path | str) -> None:
        """Writes the rule beside a model, as that of its weights."""
        values = asdict(self) | {"weights": _weights(Path(folder))}
        # JSON has no infinity
        values["threshold"] = None if math.isinf(self.threshold) else self.threshold
        write_json(Path(folder) / FILE, values)

    @staticmethod
    def is_saved(folder: Path | str) -> bool:
        """Whether there is a rule in this folder."""
        return (Path(folder) / FILE).is_file()

    @classmethod
    def load(cls, folder: Path | str) -> "Abstainer":
        """Reads what `save` wrote; the rule of other weights than those beside it is refused."""
        path = Path(folder) / FILE
        values = read_json(path)
        # older rules know neither their weights nor their samples, nor how these were drawn
        weights = values.pop("weights", None) if isinstance(values, dict) else None
        names = {field.name for field in fields(cls)}
        needed = names - {"num_samples", "seed"}
        if not isinstance(values, dict) or not needed <= values.keys() <= names:
            raise UserError(f"{path} must be a saved Abstainer; fit it again.")
        found = _weights(path.parent)
        if None not in (weights, found) and weights != found:
            raise UserError(
                f"{path} must be the rule of the model beside it; it was fitted to other weights, "
                "for which alone its promise holds. Fit it again, or delete it."
            )
        if values["threshold"] is None:
            values["threshold"] = math.inf
        return cls(**values)


def _weights(folder: Path) -> str | None:
    """The checksum of the weights in a folder, where they are ours."""
    return CheckedFolder(folder).checksum("model.safetensors")
