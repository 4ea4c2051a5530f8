"""A file of inputs in, a file of predictions out, a chunk at a time."""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from kepsvgp.data.tables import csv_cell
from kepsvgp.errors import UserError, printable
from kepsvgp.files import replacing
from kepsvgp.inference.abstention import Abstainer
from kepsvgp.inference.prediction import Prediction
from kepsvgp.runs.folder import HISTORY
from kepsvgp.serving.rows import Row, open_images, open_texts
from kepsvgp.serving.saved import SavedModel, open_folder

FIELDS: tuple[str, ...] = (
    "row", "label", "probability", "total", "aleatoric", "epistemic", "novelty", "novelty_p",
    "abstain", "reason",
)  # fmt: skip

Write = Callable[[dict[str, Any]], None]


def predict_file(
    model: Path,
    source: Path,
    out: Path | None = None,
    *,
    num_samples: int = 10,
    max_risk: float | None = None,
    confidence: float = 0.95,
    max_false_alarm: float | None = None,
    column: str = "text",
    skip_bad: bool = False,
    batch_size: int = 256,
    seed: int = 0,
) -> int:
    """Predicts every input of `source`; returns how many were skipped as broken.

    Args:
        model: A run folder or one that `save_pretrained` wrote.
        source: Texts as CSV, TSV or JSONL, or a folder of images.
        out: A `.csv` or `.jsonl` file, written as a whole or not at all; None for CSV on
            standard output.
        num_samples: Number of Monte Carlo samples.
        max_risk: Largest share of wrong answers; None takes the rule saved with the model, if
            there is one, and otherwise withholds nothing.
        confidence: Probability with which that holds.
        max_false_alarm: Largest share of familiar inputs that are withheld as foreign; None
            withholds none, unless a saved rule does.
        column: Column or field of the texts.
        skip_bad: Whether broken rows are skipped, instead of ending everything.
        batch_size: Inputs at a time.
        seed: Seed of the samples.
    """
    if out is not None and out.suffix.lower() not in (".csv", ".jsonl"):
        raise UserError(f"--out must end in .csv or .jsonl; got {out.name}.")
    if out is not None and out.resolve() == source.resolve():
        raise UserError(f"--out must not be the input itself; got {out} for both.")
    if out is not None and out.resolve() == (model / HISTORY).resolve():
        raise UserError(f"--out must not be a file of the run; {out} is its history.")
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1; got {batch_size}.")
    console = Console(stderr=True)
    saved = open_folder(model, num_samples=num_samples, seed=seed)
    inputs = open_images(source) if saved.task == "image" else open_texts(source, column)
    rule = find_rule(saved, max_risk, confidence, max_false_alarm)
    if rule is not None:
        console.print(rule.words, highlight=False, soft_wrap=True)
    skipped = 0
    with ExitStack() as stack:
        write = stack.enter_context(_writer(out))
        pool = stack.enter_context(ThreadPoolExecutor(os.cpu_count()))
        bar = stack.enter_context(Progress(console=console, disable=not console.is_terminal))
        task = bar.add_task("predicting", total=inputs.size)
        # decoding of images releases the interpreter's lock; long texts are cut as they come
        while loaded := list(pool.map(partial(_load, saved), islice(inputs.rows, batch_size))):
            for row in loaded:
                if row.problem is not None:
                    _report(source, row, console, skip_bad)
                    skipped += 1
            good = [row for row in loaded if row.problem is None]
            if good:
                prediction = saved.predict([row.content for row in good])
                for entry in entries(good, prediction, saved.classes, rule):
                    write(entry)
            if out is None:
                sys.stdout.flush()
            bar.update(task, completed=loaded[-1].position)
    if skipped:
        console.print(f"{skipped} broken rows skipped", highlight=False)
    return skipped


def entries(
    rows: list[Row], prediction: Prediction, classes: tuple[str, ...], rule: Abstainer | None
) -> Iterator[dict[str, Any]]:
    """One line of output for each input."""
    unknown = [None] * len(rows)
    reasons = unknown if rule is None else rule.reasons(prediction)
    novelty = (
        unknown if score is None else score.tolist()
        for score in (prediction.novelty, prediction.novelty_p)
    )
    columns = (
        prediction.predicted.tolist(),
        prediction.confidence.tolist(),
        prediction.entropy.tolist(),
        prediction.aleatoric.tolist(),
        prediction.epistemic.tolist(),
        *novelty,
    )
    for row, reason, label, *numbers in zip(rows, reasons, *columns, strict=True):
        abstain = None if reason is None else reason != ""
        values = (row.name, classes[label], *numbers, abstain, reason)
        yield dict(zip(FIELDS, values, strict=True))


def _load(saved: SavedModel, row: Row) -> Row:
    """The row with its input read, or with what is wrong with it."""
    if row.problem is not None:
        return row
    try:
        return row._replace(content=saved.load(row.content))
    except UserError as error:
        return row._replace(problem=str(error))


def find_rule(
    saved: SavedModel,
    max_risk: float | None,
    confidence: float,
    max_false_alarm: float | None = None,
) -> Abstainer | None:
    """The rule for promises or, where none is asked for, the one saved with the model, if any."""
    if max_risk is None and max_false_alarm is None:
        return Abstainer.load(saved.path) if Abstainer.is_saved(saved.path) else None
    return saved.abstainer(max_risk, confidence, max_false_alarm)


def _report(source: Path, row: Row, console: Console, skip_bad: bool) -> None:
    message = f"{source}, row {row.name}: {row.problem}"
    if not skip_bad:
        end = "" if message.endswith(".") else "."
        raise UserError(f"{message}{end} Mend it, or skip such rows with --skip-bad.")
    console.print(f"skipped {printable(message)}", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _writer(out: Path | None) -> Iterator[Write]:
    if out is None and sys.stdout is None:
        raise UserError("standard output must be open; it is closed. Name a file with --out.")
    if out is None:
        with _patient(sys.stdout) as stream:
            yield _csv_writer(stream)
        return
    # names of files need not be text; a backslash escape is one in JSON too
    with (
        replacing(out) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream,
    ):
        yield _csv_writer(stream) if out.suffix.lower() == ".csv" else _json_writer(stream)


@contextmanager
def _patient(stream: Any) -> Iterator[Any]:
    """Standard output that shows what it cannot encode, and may be closed by who reads it."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    try:
        yield stream
        stream.flush()
    except BrokenPipeError:
        # what is still unwritten would raise again when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        sys.exit(0)


def _json_writer(stream: Any) -> Write:
    return lambda entry: print(json.dumps(entry, ensure_ascii=False), file=stream)


def _csv_writer(stream: Any) -> Write:
    writer = csv.DictWriter(stream, FIELDS, lineterminator="\n")
    writer.writeheader()
    # names of classes and files must not command a spreadsheet, nor a terminal that shows them
    is_shown = stream.isatty()

    def write(entry: dict[str, Any]) -> None:
        withheld = {True: "yes", False: "no", None: ""}[entry["abstain"]]
        plain = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in entry.items()}
        for name in ("row", "label"):
            cell = csv_cell(plain[name])
            plain[name] = printable(cell) if is_shown else cell
        writer.writerow(plain | {"abstain": withheld})

    return write
