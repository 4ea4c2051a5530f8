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
from kepsvgp.report import curves
from kepsvgp.report.examples import (
    Shown,
    Source,
    choose,
    choose_foreign,
    show,
)
from kepsvgp.report.models import Comparison, Member, Model
from kepsvgp.report.runs import SplitPredictions
from kepsvgp.report.summary import METRICS, OOD_METRICS, Metric
from kepsvgp.runs.inspection import Inspection

TYPES = {"u1": "<u1", "u2": "<u2", "u4": "<u4", "f4": "<f4"}
TOP_CLASSES = 5
NUM_QUANTILES = 1001
MAX_FOREIGN_POINTS = 800
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
    data = np.ascontiguousarray(values).astype(TYPES[kind]).tobytes()
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
    benchmark = source.benchmark
    recorded = next((m.run.classes for m in comparison.members if m.run.classes), None)
    classes = recorded or [f"class {k}" for k in range(comparison.num_classes)]
    foreign = comparison.splits("ood/")
    shown = None
    shown_foreign: dict[str, Shown] = {}
    leaders = [model.members[0] for model in comparison.models]
    if benchmark is not None and test is not None:
        rows = choose([m.test for m in leaders if m.test is not None])
        shown = show(benchmark.test, [int(test.index[row]) for row in rows])
        for split in foreign:
            shown_foreign[split] = _show_foreign(benchmark.ood, split, leaders)
    return finite(
        {
            "title": comparison.title,
            "task": benchmark.task if benchmark is not None else None,
            "classes": classes,
            "positions": None if test is None else pack(test.index, "u4"),
            "labels": None if test is None else pack_labels(test.labels),
            "entropyScale": math.log(max(comparison.num_classes, 2)),
            "metrics": [_metric(metric) for metric in METRICS],
            "oodMetrics": [_metric(metric) for metric in OOD_METRICS],
            "shown": None if shown is None else _shown(shown),
            "foreign": {name: _shown(part) for name, part in shown_foreign.items()},
            "models": [_model(model, foreign, shown, shown_foreign) for model in comparison.models],
            "trainings": _trainings(comparison),
        }
    )


def _metric(metric: Metric) -> dict[str, Any]:
    return {
        "key": metric.key,
        "title": metric.title,
        "better": metric.better,
        "percent": metric.percent,
        "digits": metric.digits,
    }


def _show_foreign(ood: Any, split: str, leaders: Sequence[Member]) -> Shown:
    name = split.removeprefix("ood/")
    predictions = [p for m in leaders if (p := m.predictions(split)) is not None]
    if name not in ood or not predictions:
        return Shown([], None, None)
    # models may have been asked about other examples under the same name
    predictions = [p for p in predictions if np.array_equal(p.index, predictions[0].index)]
    examples = ood[name]
    rows = choose_foreign(predictions)
    positions = [int(predictions[0].index[row]) for row in rows]
    if positions and max(positions) >= len(examples):
        return Shown([], None, None)
    return show(examples, positions, max_bytes=300_000)


def _shown(shown: Shown) -> dict[str, Any]:
    return {
        "positions": shown.positions,
        "pictures": None if shown.pictures is None else shown.pictures._asdict(),
        "texts": shown.texts,
    }


def _model(
    model: Model, foreign: list[str], shown: Shown | None, shown_foreign: dict[str, Shown]
) -> dict[str, Any]:
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
        "runs": [_run(member, foreign, shown, shown_foreign) for member in model.members],
    }


def _run(
    member: Member, foreign: list[str], shown: Shown | None, shown_foreign: dict[str, Shown]
) -> dict[str, Any]:
    test = member.test
    validation = member.predictions("val")
    return {
        "seed": member.run.seed,
        "checkpoint": member.checkpoint,
        "test": None if test is None else _test(test, shown),
        "val": None
        if validation is None
        else {
            "confidence": pack(validation.confidence, "f4"),
            "correct": pack(validation.correct, "u1"),
        },
        "foreign": {
            split: _foreign(found, shown_foreign.get(split))
            for split in foreign
            if (found := member.predictions(split)) is not None and len(found.probs)
        },
    }


def _trainings(comparison: Comparison) -> list[dict[str, Any]]:
    """Each run once, whatever number of methods were evaluated on it."""
    trainings = {}
    for place, model in enumerate(comparison.models):
        for member in model.members:
            run = member.run
            if run.folder not in trainings:
                trainings[run.folder] = {
                    "model": place,
                    "label": model.label,
                    "seed": run.seed,
                    "history": history_series(run.history),
                    "spectra": None if run.spectra is None else _spectra(run.spectra),
                }
    return list(trainings.values())


def _spectra(spectra: Inspection) -> dict[str, Any]:
    layers = [layer.model_dump() | {"cumulative": layer.cumulative} for layer in spectra.layers]
    return {"examples": spectra.examples, "layers": layers}


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


def _test(test: SplitPredictions, shown: Shown | None) -> dict[str, Any]:
    scale = math.log(max(test.probs.shape[1], 2))
    bins = curves.reliability(test.confidence, test.correct)
    return {
        "confidence": pack(test.confidence, "f4"),
        "predicted": pack_labels(test.predicted),
        "entropy": pack_share(test.entropy, scale),
        "aleatoric": pack_share(test.aleatoric, scale),
        "reliability": {
            "edges": bins.edges.tolist(),
            "count": bins.count.tolist(),
            "confidence": bins.confidence.tolist(),
            "accuracy": bins.accuracy.tolist(),
            "low": bins.interval.low.tolist(),
            "high": bins.interval.high.tolist(),
        },
        "top": None if shown is None else _top(test, shown.positions),
    }


def _foreign(found: SplitPredictions, shown: Shown | None) -> dict[str, Any]:
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
        "top": None if shown is None else _top(found, shown.positions),
    }


def _top(predictions: SplitPredictions, positions: Sequence[int]) -> dict[str, Any] | None:
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
    }
