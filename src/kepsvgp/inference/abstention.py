"""When not to answer: where the model is unsure, and where the input is foreign to it."""

import math
from dataclasses import MISSING, asdict, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kepsvgp.errors import UserError
from kepsvgp.files import CheckedFolder, read_json, write_json
from kepsvgp.inference.prediction import Average, Prediction
from kepsvgp.maths.ksvd import in_float64
from kepsvgp.metrics.selective import smallest_risk, threshold_for_risk

FILE = "abstainer.json"
Reason = Literal["", "unsure", "foreign"]
_UNKNOWN = (
    "prediction must say how its samples were drawn; nobody knows, and a promise holds for these "
    "draws alone. Predict with generator=torch.Generator().manual_seed(0). Averages over members, "
    "which are no draws, go through Prediction.from_arrays(probs)."
)


@dataclass(frozen=True, slots=True)
class Abstainer:
    """A rule that answers only where the model is confident enough and the input not foreign.

    Two promises, each made where it is asked for, and for inputs of the same distribution as the
    calibration set:

    - With probability `confidence` over the calibration set, the error rate among the answered
      examples is at most `max_risk` (selection with guaranteed risk; see
      `kepsvgp.metrics.selective.threshold_for_risk`). Where no threshold keeps it, `threshold` is
      infinite, nothing is answered, and `smallest_risk` is what could be promised instead.
    - An example is taken for foreign with probability `max_false_alarm` at most, over the
      calibration set and the example (split conformal prediction on `Prediction.novelty`).

    Given the novelty at which an input becomes foreign, the calibration examples below it are as
    any others below it: the first promise is made on them, and both need no second set.

    They are promises for the very functions that answered the calibration examples: predict with
    as many samples, averaged alike and drawn with the same seed, as `predict_batches` does.

    Examples:
        >>> probs, labels = [[0.9, 0.1]] * 200 + [[0.6, 0.4]] * 200, [0] * 300 + [1] * 100
        >>> rule = Abstainer.fit(Prediction.from_arrays(probs, labels), max_risk=0.05)
        >>> rule.abstain(Prediction.from_arrays([[0.9, 0.1], [0.4, 0.6]]))
        tensor([False,  True])
    """

    threshold: float
    """Answer where the probability of the predicted class is at least this."""
    max_risk: float | None
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
    average: Average | Literal["linear"] | None = None
    """What was averaged over them, where it is known; see `Prediction.average`."""
    smallest_risk: float | None = None
    """The smallest risk that these calibration examples allow to promise."""
    max_false_alarm: float | None = None
    novelty_threshold: float | None = None
    """An input is foreign where its novelty is above this."""

    @classmethod
    def fit(
        cls,
        prediction: Prediction,
        labels: Int[Tensor, " example"] | None = None,
        max_risk: float | None = 0.05,
        confidence: float = 0.95,
        *,
        max_false_alarm: float | None = None,
    ) -> "Abstainer":
        """The rule for a promise, from examples that neither trained nor selected the model.

        Args:
            prediction: The predictions for the calibration examples.
            labels: Their true labels; those in `prediction` by default.
            max_risk: Largest error rate among answered examples; None promises none.
            confidence: Probability with which that holds.
            max_false_alarm: Largest share of familiar inputs that are taken for foreign; None
                takes none for foreign.
        """
        shares = {
            "max_risk": max_risk, "confidence": confidence, "max_false_alarm": max_false_alarm
        }  # fmt: skip
        for name, value in shares.items():
            if value is not None and not 0 < value < 1:
                raise UserError(f"{name} must lie in (0, 1); got {value}.")
        prediction = prediction.cpu()
        is_sampled = prediction.num_samples is not None and prediction.num_samples > 1
        if prediction.seed == "unknown" or (prediction.seed is None and is_sampled):
            raise UserError(_UNKNOWN)
        rows, limit = torch.arange(len(prediction)), None
        if max_false_alarm is not None:
            rows, limit = _familiar(_novelty(prediction), max_false_alarm)
        kept = prediction.confidence[rows]
        threshold, coverage, risk, least = 0.0, 1.0, math.nan, None
        if max_risk is not None:
            correct, delta = _correct(prediction, labels)[rows], 1 - confidence
            threshold, coverage, risk, _ = threshold_for_risk(kept, correct, max_risk, delta=delta)
            least = smallest_risk(kept, correct, delta=delta)
        return cls(
            threshold, max_risk, confidence, coverage * len(rows) / len(prediction), risk,
            len(prediction), prediction.num_samples, prediction.seed, prediction.average,
            smallest_risk=least, max_false_alarm=max_false_alarm, novelty_threshold=limit,
        )  # fmt: skip

    def abstain(self, prediction: Prediction) -> Bool[Tensor, " example"]:
        """True where the answer should be withheld, for either reason."""
        return self.unsure(prediction) | self.foreign(prediction)

    def unsure(self, prediction: Prediction) -> Bool[Tensor, " example"]:
        """True where the model is not confident enough.

        A threshold is one for as many samples as it was fitted with, fewer are more confident,
        and for their draws: other functions err elsewhere.
        """
        self._check_draws(prediction)
        return ~(in_float64(prediction.confidence) >= self.threshold)

    def foreign(self, prediction: Prediction) -> Bool[Tensor, " example"]:
        """True where the input is unlike those of the calibration."""
        if self.novelty_threshold is None:
            return torch.zeros_like(in_float64(prediction.confidence), dtype=torch.bool)
        self._check_draws(prediction)
        return ~(_novelty(prediction) <= self.novelty_threshold)

    def reasons(self, prediction: Prediction) -> list[Reason]:
        """Why each answer is withheld; empty where it is not."""
        foreign, unsure = self.foreign(prediction).tolist(), self.unsure(prediction).tolist()
        return [
            "foreign" if is_foreign else "unsure" if is_unsure else ""
            for is_foreign, is_unsure in zip(foreign, unsure, strict=True)
        ]

    def _check_draws(self, prediction: Prediction) -> None:
        """Refuses predictions made otherwise than those of the rule, as far as it knows them."""
        for name, what in (
            ("num_samples", "average {} samples"), ("seed", "be drawn with seed {}"),
            ("average", "be made with average {!r}"),
        ):  # fmt: skip
            mine, its = getattr(self, name), getattr(prediction, name)
            if mine is not None and mine != its:
                came = "nobody knows" if its in (None, "unknown") else f"it has {its}"
                raise UserError(
                    f"prediction must {what.format(mine)}, as those that the rule was fitted to; "
                    f"of this one {came}, and the promise is not for it. Predict as then, with a "
                    "new generator of the same seed or predict_batches, or fit the rule again."
                )
        if prediction.seed == "unknown":
            raise UserError(_UNKNOWN)

    @property
    def words(self) -> str:
        """The promises, and what it takes to keep them."""
        of = f"{self.size} calibration examples"
        parts = []
        if self.max_risk is not None:
            sure = f"with {self.confidence:.1%} certainty"
            promise = f"at most {self.max_risk:.1%} of the answers wrong, {sure}"
            if math.isinf(self.threshold):
                least = f"{self.smallest_risk:.1%}" if self.smallest_risk else "a larger risk"
                parts.append(
                    f"{promise}: no threshold keeps this on {of}; every answer is withheld. The "
                    f"least that can be promised is {least}: allow as much, or calibrate on more"
                )
            else:
                parts.append(
                    f"{promise}: answers from a probability of {self.threshold:.4g} on, which were "
                    f"{self.coverage:.1%} of {of} ({self.risk:.1%} wrong)"
                )
        if self.max_false_alarm is not None:
            parts.append(
                f"at most {self.max_false_alarm:.1%} of inputs like the {of} taken for foreign: "
                f"those of a novelty above {self.novelty_threshold:.4g}"
            )
        return "; ".join(parts)

    def save(self, folder: Path | str) -> None:
        """Writes the rule beside a model, as that of its weights."""
        values = asdict(self) | {"weights": _weights(Path(folder))}
        # JSON has no infinity, and no risk of no answers
        numbers = {name: value for name, value in values.items() if isinstance(value, float)}
        values |= {name: None for name, value in numbers.items() if not math.isfinite(value)}
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
        needed = {field.name for field in fields(cls) if field.default is MISSING}
        if not isinstance(values, dict) or not needed <= values.keys() <= names:
            raise UserError(f"{path} must be a saved Abstainer; fit it again.")
        found = _weights(path.parent)
        if None not in (weights, found) and weights != found:
            raise UserError(
                f"{path} must be the rule of the model beside it; it was fitted to other weights, "
                "for which alone its promise holds. Fit it again, or delete it."
            )
        for name, unsaid in (("threshold", math.inf), ("risk", math.nan)):
            values[name] = unsaid if values[name] is None else values[name]
        return cls(**values)


def _weights(folder: Path) -> str | None:
    """The checksum of the weights in a folder, where they are ours."""
    return CheckedFolder(folder).checksum("model.safetensors")


def _correct(
    prediction: Prediction, labels: Int[Tensor, " example"] | None
) -> Bool[Tensor, " example"]:
    labels = prediction.targets if labels is None else labels
    if labels is None or len(labels) != len(prediction):
        raise UserError(
            f"labels must be those of the {len(prediction)} predicted examples; got "
            f"{'none' if labels is None else len(labels)}."
        )
    return prediction.predicted == labels.cpu()


def _novelty(prediction: Prediction) -> Float[Tensor, " example"]:
    if prediction.novelty is None:
        raise UserError(
            "prediction must have its novelty, to tell what is foreign; it has none. Show the "
            "model its training inputs with fit_novelty, and predict again."
        )
    return in_float64(prediction.novelty)


def _familiar(
    novelty: Float[Tensor, " example"], max_false_alarm: float
) -> tuple[Int[Tensor, " familiar"], float]:
    """The ⌈(n + 1)(1 − α)⌉-th smallest, above which a new one is with probability α at most.

    And the examples below: that one is there by choice, and the others as they come.
    """
    # in decimals as written, as 0.95 · 20 must not become 19.000…01
    share = Fraction(str(max_false_alarm))
    position = math.ceil((1 - share) * (len(novelty) + 1))
    if position > len(novelty):
        raise UserError(
            f"max_false_alarm={max_false_alarm} must have at least {math.ceil(1 / share) - 1} "
            f"calibration examples; got {len(novelty)}. Allow more false alarms, or calibrate on "
            "more."
        )
    values, order = novelty.sort(stable=True)
    limit = values[position - 1]
    last = int((values <= limit).sum()) - 1
    return order[:last], float(limit)
