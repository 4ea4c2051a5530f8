"""What the page's program receives: one JSON object, its arrays packed as base64.

Confidences are kept to the bit (float32), so that thresholds, coverage and risk in the
browser are those of the predictions; entropies are rounded to 1/65535 of log K.
"""

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from kepsvgp.config.comparison import flatten
from kepsvgp.data.sets.foreign import distance
from kepsvgp.metrics.registry import OF_A_SET
from kepsvgp.report import curves
from kepsvgp.report.answers import Answers
from kepsvgp.report.examples import (
    NOTHING,
    Shown,
    Source,
    Viewed,
    choose,
    choose_foreign,
    show,
)
from kepsvgp.report.models import Comparison, Member, Model
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.inspection import Inspection

TOP_CLASSES = 5
NUM_QUANTILES = 1001
MAX_FOREIGN_POINTS = 800
# no slider asks for more false alarms
MOST_ALARMS = 0.25
TITLES = {
    "lr": "Learning rate",
    "train.total": "Objective",
    "train.nll": "Cross-entropy",
    "train.kl": "KL of q(u)",
    "train.ksvd": "KSVD loss",
    "val.accuracy": "Validation accuracy",
    "val.mcc": "Validation MCC",
    "val.nll": "Validation NLL",
}


def pack(values: ndarray, kind: str) -> dict[str, str]:
    """An array as base64 of its little-endian bytes."""
    data = np.ascontiguousarray(values).astype(f"<{kind}").tobytes()
    return {"type": kind, "data": base64.b64encode(data).decode()}


def pack_labels(labels: ndarray) -> dict[str, str]:
    """Class numbers in one byte where they fit, else in two."""
    return pack(labels, "u1" if labels.max(initial=0) < 256 else "u2")


def pack_share(values: ndarray, scale: float) -> dict[str, str]:
    """Values in [0, scale] as 16-bit fractions of `scale`."""
    return pack(np.rint(np.clip(values / scale, 0.0, 1.0) * 65535), "u2")


def finite(value: Any) -> Any:
    """The same value with what JSON cannot say, such as NaN, as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def comparison_payload(comparison: Comparison, source: Source) -> dict[str, Any]:
    """Everything the page's program needs for one benchmark."""
    test = comparison.test
    leaders = [model.members[0] for model in comparison.models]
    shown = None
    foreign = dict.fromkeys(comparison.splits("ood/"), NOTHING)
    if source.test is not None and test is not None:
        rows = choose([member.test for member in leaders if member.test is not None])
        shown = show(source.test, [int(test.index[row]) for row in rows])
        foreign |= {
            split: _show_foreign(source.foreign[name], split, leaders)
            for split in foreign
            if (name := split.removeprefix("ood/")) in source.foreign
        }
    return finite(
        {
            "title": comparison.title,
            "classes": comparison.classes,
            "positions": None if test is None else pack(test.index, "u4"),
            "labels": None if test is None else pack_labels(test.labels),
            "entropyScale": math.log(max(comparison.num_classes, 2)),
            "metrics": [
                {"key": metric.name, "title": metric.title, "percent": metric.is_share}
                for metric in OF_A_SET
            ],
            "shown": None if shown is None else _shown(shown),
            "foreign": {split: _shown(part) for split, part in foreign.items()},
            "distance": {split: distance(split) for split in foreign},
            "models": [_model(model, shown, foreign) for model in comparison.models],
            "trainings": [_training(run, comparison) for run in comparison.runs],
        }
    )


def _show_foreign(examples: Viewed, split: str, leaders: Sequence[Member]) -> Shown:
    """The examples that the models are surest about, of those they were all asked about."""
    found = [answers for member in leaders if (answers := member.answers(split)) is not None]
    found = [answers for answers in found if np.array_equal(answers.index, found[0].index)]
    positions = [int(found[0].index[row]) for row in choose_foreign(found)] if found else []
    if max(positions, default=0) >= len(examples):
        return NOTHING
    return show(examples, positions, max_bytes=300_000)


def _shown(shown: Shown) -> dict[str, Any]:
    pictures = None if shown.pictures is None else shown.pictures._asdict()
    return shown._asdict() | {"pictures": pictures}


def _model(model: Model, shown: Shown | None, foreign: dict[str, Shown]) -> dict[str, Any]:
    splits = dict.fromkeys(name for member in model.members for name in member.splits)
    return {
        "label": model.label,
        # {split: {metric: [one value per seed]}}, straight from metrics.json
        "metrics": {
            split: {
                key: model.values(split, key)
                for key in dict.fromkeys(k for m in model.members for k in m.metrics(split))
            }
            for split in splits
        },
        "runs": [_run(member, shown, foreign) for member in model.members],
    }


def _run(member: Member, shown: Shown | None, foreign: dict[str, Shown]) -> dict[str, Any]:
    test, val = member.test, member.answers("val")
    curve = None
    if val is not None:
        curve = {"confidence": pack(val.confidence, "f4"), "correct": pack(val.correct, "u1")}
    others = {split: found for split in foreign if (found := member.answers(split)) is not None}
    others = {split: found for split, found in others.items() if len(found.probs)}
    return {
        "seed": member.seed,
        "checkpoint": member.checkpoint,
        "test": None if test is None else _test(test, shown),
        "val": curve,
        "foreign": {split: _foreign(found, foreign[split]) for split, found in others.items()},
        "alarms": None if test is None else _alarms([test, *others.values()]),
    }


def _alarms(answers: Sequence[Answers]) -> dict[str, Any] | None:
    """From which novelty on an input has which p-value, or a smaller one.

    The p-value falls as the novelty grows, so p ≤ α is the same as a novelty of at least that of
    the least novel example with p ≤ α.
    """
    known = [(each.novelty_p, each.novelty) for each in answers if each.novelty is not None]
    if answers[0].novelty is None:
        return None
    p, novelty = (np.concatenate(values) for values in zip(*known, strict=True))
    novelty = novelty[p <= MOST_ALARMS]
    levels, which = np.unique(p[p <= MOST_ALARMS], return_inverse=True)
    least = np.full(len(levels), np.inf, dtype=novelty.dtype)
    np.minimum.at(least, which, novelty)
    return {"p": pack(levels, "f4"), "novelty": pack(least, "f4")}


def _training(run: RunFolder, comparison: Comparison) -> dict[str, Any]:
    """How a run was trained and what was seen in it, beside the first model that it is part of."""
    place, model = next(
        (place, model)
        for place, model in enumerate(comparison.models)
        if any(member.run == run for member in model.trained)
    )
    inspection = run.inspection()
    return {
        "model": place,
        "label": model.label,
        "seed": run.config().seed,
        "history": history_series(run.history()),
        "spectra": None if inspection is None else _spectra(inspection),
    }


def _spectra(found: Inspection) -> dict[str, Any]:
    layers = [layer.model_dump() | {"cumulative": layer.cumulative} for layer in found.layers]
    return {"examples": found.examples, "layers": layers}


def history_series(history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The epochs as columns: one list of numbers a key, nested keys joined by dots."""
    rows = [flatten(entry) for entry in history]
    keys = dict.fromkeys(key for row in rows for key in row)
    kept = [
        key
        for key in keys
        if key not in ("epoch", "seconds", "data_wait", "val_seconds")
        and any(isinstance(row.get(key), int | float) for row in rows)
    ]
    return {
        "epoch": [row.get("epoch", place) for place, row in enumerate(rows, start=1)],
        "series": {key: [_number(row.get(key)) for row in rows] for key in kept},
        "titles": {key: TITLES.get(key, key.replace("_", " ").replace(".", " ")) for key in kept},
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _test(test: Answers, shown: Shown | None) -> dict[str, Any]:
    scale = math.log(max(test.probs.shape[1], 2))
    bins = curves.reliability(test.confidence, test.correct)
    return {
        "confidence": pack(test.confidence, "f4"),
        "predicted": pack_labels(test.predicted),
        "entropy": pack_share(test.entropy, scale),
        "aleatoric": pack_share(test.aleatoric, scale),
        "samples": test.num_samples,
        "reliability": {name: values.tolist() for name, values in vars(bins).items()},
        "top": None if shown is None else _top(test, shown.positions),
        "novelty": None if test.novelty is None else pack(test.novelty, "f4"),
    }


def _foreign(found: Answers, shown: Shown) -> dict[str, Any]:
    """An out-of-distribution set in brief: quantiles, a histogram and some points."""
    scale = math.log(max(found.probs.shape[1], 2))
    confidence = found.confidence
    levels = np.linspace(0.0, 1.0, NUM_QUANTILES)
    step = max(1, math.ceil(len(confidence) / MAX_FOREIGN_POINTS))
    return {
        "count": len(confidence),
        "quantiles": pack(np.quantile(confidence, levels, method="nearest"), "f4"),
        "shares": curves.shares(confidence).tolist(),
        "entropy": pack_share(found.entropy[::step], scale),
        "aleatoric": pack_share(found.aleatoric[::step], scale),
        "meanAleatoric": float(found.aleatoric.mean()),
        "meanEntropy": float(found.entropy.mean()),
        "top": _top(found, shown.positions),
        "novel": _novel(found),
    }


def _novel(found: Answers) -> dict[str, Any] | None:
    """Novelty and confidence of at most as many examples as there are quantiles of novelty."""
    if found.novelty is None:
        return None
    count = len(found.novelty)
    places = np.rint(np.linspace(0, count - 1, min(count, NUM_QUANTILES))).astype(np.int64)
    rows = np.argsort(found.novelty, kind="stable")[places]
    values = {"novelty": found.novelty, "confidence": found.confidence}
    return {name: pack(each[rows], "f4") for name, each in values.items()}


def _top(predictions: Answers, positions: Sequence[int]) -> dict[str, Any] | None:
    """The most probable classes of the carried examples, and their probabilities."""
    if not np.isin(positions, predictions.index).all():
        # this model was asked about other examples
        return None
    rows = np.searchsorted(predictions.index, positions)
    probs = predictions.probs[rows]
    count = min(TOP_CLASSES, probs.shape[1])
    order = np.argsort(-probs, axis=1, kind="stable")[:, :count]
    return {
        "count": count,
        "classes": pack_labels(order),
        "probs": pack_share(np.take_along_axis(probs, order, axis=1), 1.0),
        "p": None if predictions.novelty_p is None else pack(predictions.novelty_p[rows], "f4"),
    }
