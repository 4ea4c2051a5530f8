"""Run folders in the true format, with predictions drawn instead of trained."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kepsvgp.config.file import dump_config
from kepsvgp.config.sections import RunConfig
from kepsvgp.inference.prediction import Prediction
from kepsvgp.metrics import UndefinedMetricWarning, all_metrics, confidence_score, ood_metrics
from kepsvgp.report.models import Comparison, compare
from kepsvgp.runs.folder import RunFolder, find_runs
from kepsvgp.runs.inspection import Inspection

CLASSES = tuple("0123456789")


def draw(
    labels: Tensor,
    num_classes: int = 10,
    *,
    skill: float = 2.0,
    sharpness: float = 2.0,
    spread: float = 0.0,
    novel: float | None = None,
    seed: int = 0,
) -> Prediction:
    """Predictions of a model that knows this much, is this sure and wavers this much.

    Labels of −1, as outside the distribution, help it nothing. `novel` is how foreign the
    examples are to it on average; None where it does not say.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(labels), num_classes, generator=generator)
    hardness = torch.rand(len(labels), 1, generator=generator) * 2
    known = torch.nn.functional.one_hot(labels.clamp_min(0), num_classes) * (labels >= 0)[:, None]
    logits = sharpness * (noise + skill * hardness * known)
    samples = 8 if spread else 1
    wavering = spread * torch.randn(samples, len(labels), num_classes, generator=generator)
    prediction = Prediction.from_logits(logits * 1.0 + wavering)
    index = torch.arange(len(labels))
    score = None if novel is None else novel + torch.randn(len(labels), generator=generator)
    # as if of 99 examples for calibration
    p = None if score is None else (1 + (99 * torch.special.ndtr(-score)).floor()) / 100
    return Prediction(
        prediction.probs, prediction.aleatoric, targets=labels, index=index,
        novelty=score, novelty_p=p,
    )  # fmt: skip


def measured(splits: Mapping[str, Prediction]) -> dict[str, dict[str, float]]:
    """The metrics of each split, as `kepsvgp evaluate` stores them."""
    metrics = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        for name, prediction in splits.items():
            if name.startswith("ood/"):
                metrics[name] = ood_metrics(
                    confidence_score(splits["test"].probs),
                    confidence_score(prediction.probs),
                    positive="in",
                )
            else:
                assert prediction.targets is not None
                metrics[name] = all_metrics(prediction.probs, prediction.targets)
            metrics[name]["seconds_per_1000"] = 0.25
    return metrics


def write_run(
    folder: Path,
    methods: Mapping[str, Mapping[str, Prediction]],
    *,
    config: RunConfig | None = None,
    checkpoint: str = "score",
    classes: Sequence[str] = CLASSES,
    notes: Sequence[str] = (),
    splits: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    inspection: Inspection | None = None,
) -> Path:
    """A run folder with these predictions: {method: {split: prediction}}.

    All of its epochs are finished, or the first so many. `splits` is the record of its data.
    """
    config = config or RunConfig(method="kep")
    run = RunFolder(folder)
    # no other run has the same
    versions = {"folder": str(folder.resolve())}
    run.files.write_text(
        "config.toml", dump_config(config.model_copy(update={"versions": versions}))
    )
    planned = config.train.epochs
    record = {
        "task": "image",
        "classes": list(classes),
        "input": {"channels": 1, "height": 8, "width": 8},
        "splits": dict(splits or {"checksums": {}}),
        "notes": [{"text": note, "about": None} for note in notes],
        "parameters": 123_456,
        "epochs": planned,
        "finished": epochs is None,
    }
    run.files.write_json("run.json", record)
    run.write_history(history(config, epochs or planned))
    for method, predictions in methods.items():
        run.add_metrics(checkpoint, method, measured(predictions))
        for split, prediction in predictions.items():
            run.write_prediction(checkpoint, method, split, prediction)
    if inspection is not None:
        run.write_inspection(inspection)
    return folder


def history(config: RunConfig, epochs: int) -> list[dict[str, Any]]:
    lines = []
    for epoch in range(1, epochs + 1):
        fall = 2.0 * 0.7**epoch + 0.02 * config.seed
        kep = config.method == "kep"
        train = {"nll": fall, "kl": 40.0 / epoch if kep else 0.0, "ksvd": 0.1**epoch * kep}
        entry = {
            "epoch": epoch,
            "lr": 1e-3 * (1 - (epoch - 1) / epochs),
            "train": {"total": sum(train.values()), **train},
            "val": {"accuracy": 1 - 0.3 * 0.8**epoch, "mcc": 1 - 0.4 * 0.8**epoch, "nll": fall},
            "seconds": 3.5 + 0.5 * kep,
            "data_wait": 0.01,
            "val_seconds": 0.2,
        }
        lines.append(entry)
    return lines


def made_inspection(rank: int | None, *, fall: float = 0.6, layers: int = 2) -> Inspection:
    """An inspection whose singular values fall by a constant factor."""
    parts = []
    for number in range(layers):
        values = [(fall + 0.1 * number) ** place for place in range(16)]
        values = [value / sum(values) for value in values]
        layer = {"name": f"blocks.{number}.attention", "heads": 4, "singular_values": values}
        learnt: dict[str, Any] = {"kind": "softmax"}
        if rank is not None and number == layers - 1:
            learnt = {
                "kind": "kep",
                "rank": rank,
                "explained": sum(values[:rank]),
                "alignment": {"left": [0.9] * rank, "right": [0.8] * rank},
                "overlap": {"left": 0.81, "right": 0.77},
                "chance": {"left": 0.15, "right": 0.14},
                "activity": {
                    "word": "collapsed",
                    "effective_dimension": 7.3,
                    "allowed": 2.5e-3,
                    "epistemic": 1.1e-4,
                    "prior": 0.3,
                },
                "findings": ["the scores are far from the exact vectors"],
            }
        parts.append(layer | learnt)
    return Inspection.model_validate({"examples": 64, "split": "test", "layers": parts})


def compared(*paths: Path, **options: Any) -> list[Comparison]:
    """The comparisons of these runs."""
    return compare(find_runs(paths), **options)
