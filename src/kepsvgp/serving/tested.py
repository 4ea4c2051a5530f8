"""Predictions for a labelled set: of any model at all, from a file, or of a saved one, made here.

A file has one row for each example. CSV, TSV and JSONL name their columns: `label`, `prob_CLASS`
for each class or `prob` for the second of two, and where known `score`, `group` and `text`. NPZ
has the arrays `probs` and `labels`, and `classes`, `scores`, `groups` and `texts`.
"""

import json
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kepsvgp.conversion.folder import is_pretrained
from kepsvgp.data.sets import images, table
from kepsvgp.data.tables import read_header, read_table
from kepsvgp.errors import UserError
from kepsvgp.files import replacing
from kepsvgp.inference.arrays import as_numbers, class_numbers
from kepsvgp.inference.prediction import Prediction
from kepsvgp.metrics import UndefinedMetricWarning, aurc, auroc, fpr95
from kepsvgp.metrics.inputs import as_scores
from kepsvgp.serving.rows import json_lines
from kepsvgp.serving.saved import SavedModel, open_folder

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".npz", ".safetensors")
_OPTIONAL = {"score": "scores", "group": "groups", "text": "texts"}
_PROB = "prob_"


class Tested(NamedTuple):
    """What a model answered to a labelled set, and what is known of the examples.

    Attributes:
        prediction: With the true labels.
        classes: Names of the classes.
        texts: What a person would look at.
        groups: A name for each example, by which results are divided.
        scores: The model's own measure of how sure it is, where it is not the probability.
    """

    prediction: Prediction
    classes: tuple[str, ...]
    texts: Sequence[str] | None = None
    groups: Sequence[str] | None = None
    scores: Float[Tensor, " example"] | None = None

    @property
    def labels(self) -> Int[Tensor, " example"]:
        """The true classes."""
        if self.prediction.targets is None:
            raise UserError("targets must be known for all examples; this prediction has none.")
        return self.prediction.targets

    def save(self, path: Path) -> None:
        """Writes an NPZ file that `read_tested` reads."""
        arrays = {
            "probs": self.prediction.probs.numpy(),
            "labels": self.labels.numpy(),
            "classes": np.array(self.classes),
            "texts": None if self.texts is None else np.array(self.texts),
            "groups": None if self.groups is None else np.array(self.groups),
            "scores": None if self.scores is None else self.scores.numpy(),
        }
        known = {name: value for name, value in arrays.items() if value is not None}
        with replacing(path) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **known)


def as_tested(given: Tested | Prediction) -> Tested:
    """A prediction whose classes have no names but their numbers."""
    if isinstance(given, Tested):
        return given
    return Tested(given, tuple(map(str, range(given.probs.shape[1]))))


def measured(given: Tested) -> dict[str, dict[str, float]]:
    """Metrics of the whole set (`test`), of its groups, and of a ranking by its scores."""
    parts = {"test": given.prediction.metrics()}
    with warnings.catch_warnings():
        # a small group may have no mistakes
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        for name in dict.fromkeys(given.groups or ()):
            rows = torch.tensor([group == name for group in given.groups or ()])
            values = given.prediction[rows].metrics() | {"count": float(rows.sum())}
            parts[f"group/{name}"] = values
    if given.scores is not None:
        right = given.prediction.predicted == given.labels
        ranked = {"aurc": aurc, "auroc": auroc, "fpr95": fpr95}
        parts["score"] = {name: metric(given.scores, right) for name, metric in ranked.items()}
    return parts


def open_tested(
    paths: Sequence[Path],
    *,
    text_column: str = "text",
    label_column: str = "label",
    num_samples: int = 10,
    seed: int = 0,
) -> dict[str, Tested]:
    """Predictions by name: files of them and, asked about the labelled data named last, models."""
    folders = [path for path in paths if is_pretrained(path)]
    *models, data = paths if folders else [*paths, Path()]
    if folders and (is_pretrained(data) or not models):
        raise UserError(
            f"{data} must be followed by labelled data: a CSV file of texts and labels, or a "
            "folder with one folder of images per class."
        )
    names = _names(models)
    found: dict[str, Tested] = {}
    for name, path in zip(names, models, strict=True):
        if path in folders:
            saved = open_folder(path, num_samples=num_samples, seed=seed)
            found[name] = predict_labelled(
                saved, read_labelled(saved, data, text_column, label_column)
            )
        else:
            found[name] = read_tested(path, label_column)
    return found


def _names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, or the whole where two have the same."""
    short = [path.name if path.is_dir() else path.stem for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


class Labelled(NamedTuple):
    """Texts or images, and the numbers of their classes."""

    items: Sequence[Any]
    labels: Int[Tensor, " example"]

    def part(self, rows: Int[Tensor, " row"]) -> "Labelled":
        """Some of the examples."""
        return Labelled([self.items[row] for row in rows.tolist()], self.labels[rows])


def read_labelled(
    saved: SavedModel, data: Path, text_column: str = "text", label_column: str = "label"
) -> Labelled:
    """Texts and their labels in a file, or images in a folder for each class."""
    if saved.task == "text" and not data.is_file():
        raise UserError(f"{data} must be a CSV or TSV file of texts and labels; it is no file.")
    if saved.task == "text":
        pairs = table.read(data, text_column, label_column)
    else:
        pairs = images.images_by_class(data)
    items, labels = zip(*pairs, strict=True)
    numbers = class_numbers(labels, _by_name_or_number(labels, saved.classes))
    return Labelled(items, torch.from_numpy(numbers))


def predict_labelled(saved: SavedModel, given: Labelled) -> Tested:
    """A saved model's prediction for labelled texts or images."""
    prediction = replace(saved.predict_all(given.items), targets=given.labels)
    texts = [str(item) for item in given.items] if saved.task == "text" else None
    return Tested(prediction, saved.classes, texts)


def read_tested(path: Path, label_column: str = "label") -> Tested:
    """The predictions in a file."""
    suffix = path.suffix.lower()
    if not path.is_file() or suffix not in SUFFIXES:
        came = "its name ends otherwise" if path.is_file() else "there is no such file"
        came = "it is a folder of another kind" if path.is_dir() else came
        raise UserError(
            f"{path} must be a file of predictions ({', '.join(SUFFIXES)}), or a folder that "
            f"`kepsvgp convert` or save_pretrained wrote; {came}."
        )
    if suffix == ".safetensors":
        return as_tested(Prediction.load(path))
    try:
        arrays = _npz(path) if suffix == ".npz" else _columns(path, label_column)
        return _tested(**arrays)
    except UserError as error:
        raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def _tested(
    probs: Any, labels: Any, classes: Any = None, scores: Any = None, **about: Any
) -> Tested:
    probs, labels = as_numbers(probs, "probs"), np.atleast_1d(labels)
    count = 2 if probs.ndim < 2 else probs.shape[-1]
    names = tuple(map(str, range(count) if classes is None else classes))
    if len(set(names)) < len(names):
        raise UserError(f"classes must have different names; got {', '.join(names)}.")
    prediction = Prediction.from_arrays(probs, labels, classes=_by_name_or_number(labels, names))
    for name, values in {"scores": scores, **about}.items():
        if values is not None and len(values) != len(prediction):
            raise UserError(
                f"{name} must be one for each of {len(prediction)} examples; got {len(values)}."
            )
    words: Any = {name: [str(value) for value in values] for name, values in about.items()}
    if scores is not None:
        scores = as_scores(as_numbers(scores, "scores"), "scores")
    return Tested(prediction, names, scores=scores, **words)


def _by_name_or_number(labels: Iterable[Any], classes: Sequence[str]) -> Sequence[str]:
    """What labels call the classes: their names, or numbers from 0 where no name is among them."""
    given, numbers = {str(label) for label in labels}, [str(n) for n in range(len(classes))]
    return numbers if given <= set(numbers) and not given & set(classes) else classes


def _npz(path: Path) -> dict[str, Any]:
    known = ("probs", "labels", "classes", *_OPTIONAL.values())
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays, names = {name: file[name] for name in known if name in file}, list(file)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(
            f"it must be an NPZ file of plain arrays; reading failed ({error})."
        ) from None
    if not {"probs", "labels"} <= arrays.keys():
        raise UserError(
            f"it must have the arrays probs and labels; got {', '.join(names) or 'none'}."
        )
    return arrays


def _columns(path: Path, label_column: str) -> dict[str, Any]:
    """The arrays of a CSV, TSV or JSONL file."""
    is_table = path.suffix.lower() in (".csv", ".tsv")
    header, rows = _table_rows(path, label_column) if is_table else _json_rows(path)
    probs = [name for name in header if name.startswith(_PROB)] or ["prob"]
    wanted = [label_column, *probs, *(name for name in _OPTIONAL if name in header)]
    missing = [name for name in wanted if name not in header]
    if missing or not rows:
        raise UserError(
            f"it must have rows with {label_column} and prob_CLASS for each class, or prob for the "
            f"second of two; it has {len(rows)} rows of {', '.join(header) or 'nothing'}."
        )
    values = [[_cell(row, name, number) for name in wanted] for number, row in enumerate(rows, 1)]
    by_name = dict(zip(wanted, map(list, zip(*values, strict=True)), strict=True))
    arrays = {plural: by_name[name] for name, plural in _OPTIONAL.items() if name in by_name}
    if probs == ["prob"]:
        return arrays | {"labels": by_name[label_column], "probs": by_name["prob"]}
    together = np.array([by_name[name] for name in probs]).T
    classes = [name.removeprefix(_PROB) for name in probs]
    return arrays | {"labels": by_name[label_column], "probs": together, "classes": classes}


def _cell(row: Mapping[str, Any], name: str, number: int) -> Any:
    value = row.get(name)
    if name != "score" and not name.startswith("prob"):
        return str(value).strip()
    try:
        return float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        raise UserError(f"row {number} must have a number as {name}; got {value!r}.") from None


def _table_rows(path: Path, label_column: str) -> tuple[list[str], list[dict[str, Any]]]:
    header = read_header(path)
    names = [name for name in header if name.startswith("prob") or name in _OPTIONAL]
    wanted = {f"column {name}": name for name in names} | {"--label-column": label_column}
    rows = []
    for row in read_table(path, wanted):
        if row.problem is not None:
            raise UserError(f"row {row.number}: {row.problem}.")
        rows.append(dict(zip(wanted.values(), row.fields, strict=True)))
    return header, rows


def _json_rows(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    rows = []
    for number, line, _ in json_lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"line {number} must be JSON; it is not ({error}).") from None
        if not isinstance(row, dict):
            raise UserError(f"line {number} must be a JSON object; got {type(row).__name__}.")
        listed = row.pop("probs", [])
        if not isinstance(listed, dict | list):
            raise UserError(f"line {number} must have a list as probs; got {listed!r}.")
        named = listed if isinstance(listed, dict) else dict(enumerate(listed))
        rows.append(row | {f"{_PROB}{name}": value for name, value in named.items()})
    return list(rows[0]) if rows else [], rows
