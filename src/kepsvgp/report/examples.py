"""Which examples the page carries, and their pictures and texts.

A page cannot hold ten thousand pictures. It holds those a reader will ask for first: for
every model its most confident mistakes and its least confident answers, over all classes
and within each. Every other example is still listed, by number, class and probability.
"""

import base64
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray
from PIL import Image

from kepsvgp.data import Examples, load_benchmark
from kepsvgp.data.benchmark import Note, is_same_split
from kepsvgp.errors import UserError
from kepsvgp.report.answers import Answers
from kepsvgp.report.models import Comparison

MAX_EXAMPLES = 600
MAX_FOREIGN = 120
MAX_BYTES = 1_500_000
MAX_CHARACTERS = 12_000
MAX_SIDE = 64
PER_LIST = 24
PER_CLASS = 4
SMALL_P = 0.05


class Pictures(NamedTuple):
    """Images side by side in one PNG, row after row."""

    uri: str
    columns: int
    width: int
    height: int


class Shown(NamedTuple):
    """Examples of one split that the page carries, by position in the split."""

    positions: list[int]
    pictures: Pictures | None
    texts: list[str] | None


NOTHING = Shown([], None, None)


@runtime_checkable
class Viewed(Protocol):
    """Examples that a person can look at."""

    def raw(self, position: int) -> np.ndarray | str:
        """An image of bytes (H, W, C), or a text."""
        ...

    def __len__(self) -> int: ...


class Source(NamedTuple):
    """The data behind a comparison, if it is at hand, and what is to be said about it."""

    test: Viewed | None
    foreign: Mapping[str, Viewed]
    notes: tuple[Note, ...] = ()


def find_source(comparison: Comparison) -> Source:
    """Loads the data that the runs were tested on; its absence is a note, not an error."""
    data = comparison.trained[0].config.data
    try:
        # contextual features are for models; a page shows the text
        benchmark = load_benchmark(data.model_copy(update={"encoder": None}))
    except (UserError, OSError, ImportError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        note = (
            f"The data set is not at hand, so there are no pictures, texts or class names: {reason}"
        )
        return Source(None, {}, (Note(note),))
    now = benchmark.split_record()
    same = all(is_same_split(run.record()["splits"], now) for run in comparison.runs)
    if not same or not _same_labels(comparison.test, benchmark.test):
        note = "The data at hand are not those the runs were tested on, so no examples are shown."
        return Source(None, {}, (Note(note),))
    return Source(benchmark.test, benchmark.ood, benchmark.notes)


def _same_labels(answers: Answers | None, examples: Examples) -> bool:
    if answers is None:
        return True
    labels = examples.labels.numpy()
    inside = int(answers.index.max(initial=-1)) < len(labels)
    return inside and np.array_equal(labels[answers.index], answers.labels)


def choose(predictions: Sequence[Answers], limit: int = MAX_EXAMPLES) -> list[int]:
    """Rows of the test set to carry, most wanted first, at most `limit`."""
    ranked: list[Iterable[tuple[float, int]]] = []
    for prediction in predictions:
        confidence, correct = prediction.confidence, prediction.correct
        least, most = np.argsort(confidence, kind="stable"), np.argsort(-confidence, kind="stable")
        mistakes, hits = most[~correct[most]], least[correct[least]]
        ranked += [_places(rows, PER_LIST) for rows in (mistakes, hits, least)]
        for label in np.unique(prediction.labels):
            for rows in (mistakes, hits):
                # a class's own list matters less than the list of all
                own = rows[prediction.labels[rows] == label]
                ranked.append(_places(own, PER_LIST, of=PER_CLASS))
        ranked.append((PER_LIST + place, int(row)) for place, row in enumerate(least))
    wanted = sorted(pair for pairs in ranked for pair in pairs)
    return list(dict.fromkeys(row for _, row in wanted))[:limit]


def _places(rows: Int[ndarray, " row"], per_list: int, of: int | None = None):
    """(place, row) of the first rows; a short list of `of` is stretched over `per_list`."""
    count = of or per_list
    return [(place * per_list / count, int(row)) for place, row in enumerate(rows[:count])]


def choose_foreign(predictions: Sequence[Answers], limit: int = MAX_FOREIGN) -> list[int]:
    """Rows of an out-of-distribution set: those that each model is surest about.

    And those of them that it finds foreign all the same.
    """
    lists = []
    for prediction in predictions:
        surest = np.argsort(-prediction.confidence, kind="stable")
        lists.append(_places(surest, PER_LIST))
        if prediction.novelty_p is not None:
            caught = surest[prediction.novelty_p[surest] <= SMALL_P]
            lists.append(_places(caught, PER_LIST))
    wanted = sorted(pair for pairs in lists for pair in pairs)
    return list(dict.fromkeys(row for _, row in wanted))[:limit]


def show(examples: Viewed, positions: Sequence[int], *, max_bytes: int = MAX_BYTES) -> Shown:
    """Pictures or texts of the examples at `positions`, as many of the first as fit."""
    if not positions:
        return NOTHING
    first = examples.raw(positions[0])
    if isinstance(first, str):
        return _show_texts(examples, positions, max_bytes)
    images = [_small(np.asarray(examples.raw(position))) for position in positions]
    pictures, size = _sprite(images)
    while size > max_bytes and len(images) > 1:
        images = images[: max(1, min(len(images) - 1, int(len(images) * max_bytes / size)))]
        pictures, size = _sprite(images)
    return Shown(list(positions[: len(images)]), pictures, None)


def _show_texts(examples: Viewed, positions: Sequence[int], max_bytes: int) -> Shown:
    texts: list[str] = []
    room = max_bytes
    for position in positions:
        text = str(examples.raw(position))
        if len(text) > MAX_CHARACTERS:
            text = f"{text[:MAX_CHARACTERS]} … ({len(text):,} characters)"
        room -= len(text.encode(errors="replace"))
        if room < 0:
            break
        texts.append(text)
    return Shown(list(positions[: len(texts)]), None, texts)


def _small(image: UInt8[ndarray, "height width channel"]) -> UInt8[ndarray, "h w channel"]:
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    picture.thumbnail((MAX_SIDE, MAX_SIDE))
    return np.asarray(picture).reshape(picture.height, picture.width, -1)


def _sprite(images: list[ndarray]) -> tuple[Pictures, int]:
    """One PNG of all images, and its size in bytes. All have the size of the largest."""
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    channels = images[0].shape[2]
    columns = max(1, math.ceil(math.sqrt(len(images))))
    rows = math.ceil(len(images) / columns)
    canvas = np.zeros((rows * height, columns * width, channels), dtype=np.uint8)
    for place, image in enumerate(images):
        top, left = place // columns * height, place % columns * width
        canvas[top : top + image.shape[0], left : left + image.shape[1]] = image
    stream = io.BytesIO()
    picture = Image.fromarray(canvas[..., 0] if channels == 1 else canvas[..., :3])
    picture.save(stream, format="PNG", optimize=True)
    data = stream.getvalue()
    uri = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return Pictures(uri, columns, width, height), len(data)
