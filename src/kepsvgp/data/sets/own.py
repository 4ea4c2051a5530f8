"""The user's own data: how it is divided when it does not come divided.

Both kinds may come as one set, which is split here with each class in proportion, or as parts
named `train`, `test` and, if wished, `val`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from kepsvgp.config.sections import DataConfig
from kepsvgp.data.benchmark import Note, Split
from kepsvgp.errors import UserError
from kepsvgp.files import absolute


def place(config: DataConfig, kind: str) -> Path:
    """Where the user's data of this kind are, from the root."""
    path = absolute(config.path or "")
    if not path.exists():
        raise UserError(
            f"data.path must be {kind}; there is nothing at {path}. A relative path is looked "
            "for from the folder in which the command runs."
        )
    return path


class Labelled(NamedTuple):
    """Items of any kind (paths, texts), part after part, the class of each, and their rows."""

    items: list
    labels: Int[Tensor, " item"]
    classes: tuple[str, ...]
    split: Split


def divide(
    parts: Mapping[str, Sequence[tuple[object, str]]], config: DataConfig, *, source: object
) -> Labelled:
    """The items that are used, of those with class names under `all`, or `train`, `test` and `val`.

    An error names the `source`.
    """
    train_part = parts["all"] if "all" in parts else parts["train"]
    classes = tuple(sorted({name for _, name in train_part}, key=_natural))
    if len(classes) < 2:
        found = f"only '{classes[0]}'" if classes else "none"
        raise UserError(f"{source} must have two classes or more; it has {found}.")
    number = {name: label for label, name in enumerate(classes)}
    items, labels, rows = [], [], {}
    for part, pairs in parts.items():
        for _, name in pairs:
            if name not in number:
                raise UserError(
                    f"{source}: the {part} part must have classes of the train part only; "
                    f"'{name}' is not among {', '.join(classes)}."
                )
        rows[part] = torch.arange(len(items), len(items) + len(pairs))
        items += [item for item, _ in pairs]
        labels += [number[name] for _, name in pairs]
    everything = torch.tensor(labels)
    split = _split(rows, everything, config, source).limited(config)
    used = [items[row] for row in split.rows.tolist()]
    return Labelled(used, everything[split.rows], classes, split)


def contents(items: Sequence[object], labels: Int[Tensor, " item"]) -> str:
    """SHA-256 of items in their order, each with its class."""
    pairs = list(zip(map(str, items), labels.tolist(), strict=True))
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def repeated(items: Sequence[object], split: Split, what: str) -> tuple[Note, ...]:
    """A note on items of the test set that were trained on too; none where there are none."""
    num_test = len(split.test)
    trained, tested = set(items[: len(split.train)]), items[len(items) - num_test :]
    shared = sum(item in trained for item in tested)
    note = f"{shared} of {num_test} {what} of the test set are in the training set too"
    return (Note(note),) if shared else ()


def _split(rows: Mapping[str, Tensor], labels: Tensor, config: DataConfig, source: object) -> Split:
    val, test, seed = config.val_fraction, config.test_fraction, config.seed
    if "all" in rows:
        return stratified_split(labels, val=val, test=test, seed=seed, source=source)
    generator = torch.Generator().manual_seed(seed)
    test_rows = rows["test"][torch.randperm(len(rows["test"]), generator=generator)]
    if "val" in rows:
        train_rows = rows["train"][torch.randperm(len(rows["train"]), generator=generator)]
        val_rows = rows["val"]
        # the first of a file or folder may be of one class
        if config.val_limit is not None and config.val_limit < len(val_rows):
            val_rows = val_rows[torch.randperm(len(val_rows), generator=generator)]
        return Split(train_rows, val_rows, test_rows)
    inner = stratified_split(labels[rows["train"]], val=val, test=0.0, seed=seed, source=source)
    return Split(rows["train"][inner.train], rows["train"][inner.val], test_rows)


def stratified_split(
    labels: torch.Tensor, *, val: float, test: float, seed: int, source: object
) -> Split:
    """A seeded random split in which each class has its share of every part, at least one."""
    generator = torch.Generator().manual_seed(seed)
    parts: tuple[list, list, list] = ([], [], [])
    for label in range(int(labels.max()) + 1):
        members = (labels == label).nonzero().squeeze(1)
        members = members[torch.randperm(len(members), generator=generator)]
        num_test = max(1, round(test * len(members))) if test else 0
        num_val = max(1, round(val * len(members)))
        if num_test + num_val >= len(members):
            raise UserError(
                f"{source} must have enough examples of each class for every part; class number "
                f"{label} has {len(members)}, of which {num_val + num_test} are held out."
            )
        parts[2].append(members[:num_test])
        parts[1].append(members[num_test : num_test + num_val])
        parts[0].append(members[num_test + num_val :])
    # mixed again, so that the first few of a part have all classes
    train, val_rows, test_rows = (
        rows[torch.randperm(len(rows), generator=generator)]
        for rows in (torch.cat(part) for part in parts)
    )
    return Split(train, val_rows, test_rows)


def _natural(name: str) -> tuple[int, int, str]:
    # "10" after "9", and numbers before words
    return (0, len(name), name) if name.isdecimal() else (1, 0, name)
