"""Run folders, read and checked; nothing here trains, predicts or needs torch."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from safetensors import SafetensorError, safe_open

from kepsvgp.config.file import check_config
from kepsvgp.data.benchmark import Note, read_notes
from kepsvgp.errors import UserError
from kepsvgp.files import RUN, check_run, check_tensors, read_json, read_json_lines, read_tree
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.inspection import Inspection

# {checkpoint: {method: {split: {metric: value}}}}
Metrics = dict[str, dict[str, dict[str, dict[str, Any]]]]


@dataclass(frozen=True)
class SplitPredictions:
    """What one method said about one split, in the order of the split's positions."""

    probs: Float[ndarray, "example class"]
    aleatoric: Float[ndarray, " example"]
    labels: Int[ndarray, " example"]
    index: Int[ndarray, " example"]

    @property
    def confidence(self) -> Float[ndarray, " example"]:
        """The probability of the most probable class."""
        return self.probs.max(axis=1)

    @property
    def predicted(self) -> Int[ndarray, " example"]:
        """The most probable class."""
        return self.probs.argmax(axis=1)

    @property
    def correct(self) -> Bool[ndarray, " example"]:
        """Whether the most probable class is the label."""
        return self.predicted == self.labels

    @property
    def entropy(self) -> Float[ndarray, " example"]:
        """Total uncertainty, −Σ p log p."""
        probs = self.probs.astype(np.float64)
        return -(probs * np.log(np.maximum(probs, 1e-300))).sum(axis=1)


@dataclass(frozen=True)
class Run:
    """One training run: its configuration and everything that was measured on it."""

    folder: Path
    config: dict[str, Any]
    metrics: Metrics
    record: dict[str, Any]
    history: list[dict[str, Any]]
    spectra: Inspection | None

    @property
    def method(self) -> str:
        """The method it was trained with."""
        return str(self.config.get("method", "model"))

    @property
    def seed(self) -> int:
        """The seed it was trained with."""
        return int(self.config.get("seed", 0))

    @property
    def benchmark(self) -> str:
        """The name of its data."""
        return str(self.config.get("data", {}).get("name", "data"))

    @property
    def title(self) -> str:
        """What its data are called: a benchmark's name, or that of the user's own data."""
        path = Path(self.config.get("data", {}).get("path", ""))
        name = path.stem if path.suffix.lower() in (".csv", ".tsv") else path.name
        return name or self.benchmark

    @property
    def parameters(self) -> int | None:
        """The number of weights, where it was recorded."""
        return self.record.get("parameters")

    @property
    def classes(self) -> list[str] | None:
        """Names of the classes, where they were recorded."""
        return self.record.get("classes")

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was reduced, generated or missing when it was trained."""
        return read_notes(self.record.get("notes", []))

    def checkpoint(self, wanted: str | None = None) -> str:
        """The checkpoint to show: `wanted`, else what the run's own rule selected."""
        chosen = wanted or str(self.config.get("train", {}).get("select", "score"))
        if chosen in self.metrics:
            return chosen
        if wanted is None and self.metrics:
            return next(iter(self.metrics))
        raise UserError(
            f"{self.folder} must have been evaluated at the checkpoint '{chosen}'; it has "
            f"{', '.join(self.metrics) or 'none'}. Evaluate it with `kepsvgp evaluate`."
        )

    def splits(self, checkpoint: str, method: str) -> list[str]:
        """The splits for which there are predictions, such as `test` and `ood/svhn`."""
        folder = self.folder / "predictions" / checkpoint / method
        files = sorted(folder.rglob("*.safetensors"))
        return [file.relative_to(folder).with_suffix("").as_posix() for file in files]

    def predictions(self, checkpoint: str, method: str, split: str) -> SplitPredictions | None:
        """The predictions for a split, by position; None where there are none."""
        path = self.folder / "predictions" / checkpoint / method / f"{split}.safetensors"
        name = self.record.get(RUN, "")
        return read_predictions(path, run=name) if path.exists() else None


def read_predictions(path: Path, *, run: str = "") -> SplitPredictions:
    """One file of predictions; a damaged one, or one of another run, is named by a `UserError`."""
    remedy = "Write it again with `kepsvgp evaluate`."
    check_run(path, check_tensors(path, "predictions", remedy).get(RUN), run, remedy)
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} must be a safetensors file of predictions; it is damaged ({error}). "
            "Write it again with `kepsvgp evaluate`."
        ) from None
    missing = [name for name in ("probs", "aleatoric") if name not in tensors]
    if missing or tensors["probs"].ndim != 2:
        raise UserError(
            f"{path} must hold probs (example, class) and aleatoric (example); "
            f"it holds {', '.join(sorted(tensors)) or 'nothing'}. "
            "Write it again with `kepsvgp evaluate`."
        )
    probs = tensors["probs"].astype(np.float32, copy=False)
    labels = tensors.get("targets", np.full(len(probs), -1)).astype(np.int64, copy=False)
    index = tensors.get("index", np.arange(len(probs))).astype(np.int64, copy=False)
    order = np.argsort(index, kind="stable")
    aleatoric = tensors["aleatoric"].astype(np.float32, copy=False)
    return SplitPredictions(probs[order], aleatoric[order], labels[order], index[order])


def read_run(folder: Path) -> Run:
    """A run folder; what makes it no run, or not yet evaluated, is a `UserError`."""
    if not (folder / "config.toml").exists():
        raise UserError(
            f"{folder} must be a run folder, which has a config.toml; it has none. "
            "Give folders that `kepsvgp train` made."
        )
    if not (folder / "metrics.json").exists():
        raise UserError(
            f"{folder} has no metrics.json: it was not evaluated. "
            f"Run `kepsvgp evaluate {folder}` first."
        )
    record_file = folder / "run.json"
    record = read_json(record_file, "classes") if record_file.exists() else {}
    check_config(folder / "config.toml", record)
    name = record.get(RUN, "")
    return Run(
        folder=folder,
        config=_read_toml(folder / "config.toml"),
        metrics=read_tree(folder / "metrics.json", 3, run=name),
        record=record,
        history=read_json_lines(folder / "history.jsonl", run=name),
        spectra=RunFolder(folder).inspection(),
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} must hold valid TOML; it is damaged ({error}).") from None
