"""A run is a folder; this is what is in it and how it is read and written.

    config.toml            the complete configuration, with the seed and versions
    run.json               classes, shape of the inputs, splits and notes of the data
    model.safetensors      the checkpoint that `train.select` chose
    checkpoints/           last, score and nll, each a safetensors file
    history.jsonl          one line an epoch
    metrics.json           {checkpoint: {method: {split: {metric: value}}}}
    predictions/           <checkpoint>/<method>/<split>.safetensors
    methods/               fitted post-hoc methods
    state/                 what `--resume` needs

Every file is replaced as a whole, so that a run killed at any moment leaves none half-written.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from kepsvgp.config.comparison import differences, with_absolute_paths
from kepsvgp.config.file import CONFIG_SUM, check_config, dump_config, load_config
from kepsvgp.config.plugins import find_method
from kepsvgp.config.sections import RunConfig
from kepsvgp.data import Benchmark, load_benchmark
from kepsvgp.data.benchmark import is_same_split
from kepsvgp.errors import UserError
from kepsvgp.files import (
    RUN,
    check_name,
    checksum,
    damaged,
    read_json,
    read_json_lines,
    read_tree,
    remove_leftovers,
    write_atomic,
    write_json,
    write_json_lines,
)
from kepsvgp.inference.prediction import Prediction
from kepsvgp.models import Classifier
from kepsvgp.runs.inspection import Inspection
from kepsvgp.runs.record import library_versions, shape_from_record
from kepsvgp.runs.weights import Checkpoint, load_weights


@dataclass(frozen=True)
class RunFolder:
    """A run on disk. Nothing is read before it is asked for, and nothing is kept."""

    path: Path

    @property
    def config_file(self) -> Path:
        """The complete configuration."""
        return self.path / "config.toml"

    @property
    def record_file(self) -> Path:
        """What the data were, so that the model can be built without them."""
        return self.path / "run.json"

    @property
    def history_file(self) -> Path:
        """One JSON object for each epoch."""
        return self.path / "history.jsonl"

    @property
    def metrics_file(self) -> Path:
        """What was measured."""
        return self.path / "metrics.json"

    @property
    def inspection_file(self) -> Path:
        """What `kepsvgp inspect` saw in its attention layers."""
        return self.path / "inspect.json"

    @property
    def state_file(self) -> Path:
        """What `--resume` needs."""
        return self.path / "state" / "state.safetensors"

    def weights_file(self, checkpoint: Checkpoint | None = None) -> Path:
        """The weights of a checkpoint; None for the one that `train.select` chose."""
        if checkpoint is None:
            return self.path / "model.safetensors"
        return self.path / "checkpoints" / f"{checkpoint}.safetensors"

    def predictions_file(self, checkpoint: str, method: str, split: str) -> Path:
        """The predictions of a method for a split such as `test` or `shift/fog/5`."""
        return self.path / "predictions" / checkpoint / method / f"{split}.safetensors"

    def method_folder(self, name: str) -> Path:
        """Where a fitted post-hoc method is kept."""
        return self.path / "methods" / name

    def config(self) -> RunConfig:
        """The configuration of the run."""
        if not self.config_file.exists():
            raise UserError(
                f"{self.path} must be a run folder, which has a config.toml; it has none. "
                "Give a folder that `kepsvgp train` made."
            )
        check_config(self.config_file, self.record())
        return load_config(self.config_file)

    def record(self) -> dict[str, Any]:
        """Classes, input shape, splits and notes."""
        return read_json(self.record_file, "task", "classes", "epochs", "finished")

    def identity(self) -> str:
        """What its files name as their run; empty where it has no name."""
        return self.record().get(RUN, "")

    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(self.record()["classes"])

    def history(self) -> list[dict[str, Any]]:
        """One entry for each finished epoch."""
        if not self.history_file.exists():
            return []
        return read_json_lines(self.history_file, run=self.identity())

    def metrics(self) -> dict[str, Any]:
        """{checkpoint: {method: {split: {metric: value}}}}; empty before any evaluation."""
        if not self.metrics_file.exists():
            return {}
        return read_tree(self.metrics_file, 3, run=self.identity())

    def splits(self, checkpoint: str, method: str) -> list[str]:
        """The splits that a method has predicted, such as `test` and `ood/svhn`."""
        folder = self.path / "predictions" / checkpoint / method
        files = sorted(folder.rglob("*.safetensors"))
        return [file.relative_to(folder).with_suffix("").as_posix() for file in files]

    def prediction(self, checkpoint: str, method: str, split: str) -> Prediction:
        """What a method predicted for a split."""
        path = self.predictions_file(checkpoint, method, split)
        return Prediction.load(path, run=self.identity())

    def inspection(self, checkpoint: str | None = None) -> Inspection | None:
        """What `kepsvgp inspect` saw; None if nothing, or not of this checkpoint."""
        if not self.inspection_file.exists():
            return None
        content = read_json(self.inspection_file, run=self.identity())
        try:
            found = Inspection.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            reason = f"at {where}: {first['msg']}"
            raise damaged(self.inspection_file, "an inspection", reason) from None
        return found if checkpoint in (None, found.checkpoint) else None

    def is_finished(self) -> bool:
        """Whether the training has come to its end."""
        return self.config_file.exists() and self.record()["finished"]

    def unfinished(self) -> str | None:
        """What the training has not come to, in words; None if it has come to its end."""
        record, done = self.record(), len(self.history())
        if record["finished"] or not done:
            return None
        if done < record["epochs"]:
            return f"stopped after {done} of {record['epochs']} epochs"
        return "stopped after its last epoch, before what follows it"

    def finish(self) -> None:
        """Remembers that the training has come to its end."""
        record = self.record()
        if not record["finished"]:
            write_json(self.record_file, record | {"finished": True})

    def benchmark(self, root: Path | None = None) -> Benchmark:
        """The data of the run, which must be split as they were when it was trained."""
        data = self.config().data
        benchmark = load_benchmark(data.model_copy(update={"root": root}) if root else data)
        then, now = self.record()["splits"], benchmark.split_record()
        if not is_same_split(then, now):
            raise UserError(
                f"the data of {self.path} must be those it was trained on, split as they were; "
                "their checksums differ. Point data.root, or data.path, at the data of then."
            )
        return benchmark

    def model(self, checkpoint: Checkpoint | None = None) -> Classifier:
        """The trained model in evaluation mode, from the folder alone."""
        config, record = self.config(), self.record()
        with torch.random.fork_rng(devices=[]):
            model: Classifier = find_method(config.method).network(
                config.model, shape_from_record(record["input"]), len(record["classes"])
            )
        load_weights(model, self.weights_file(checkpoint), run=self.identity())
        return model.eval()

    @contextmanager
    def opened(
        self, config: RunConfig, record: Mapping[str, Any], *, resume: bool
    ) -> Iterator[None]:
        """Holds a new run, or one that is resumed, for writing; anything else is refused."""
        config = with_absolute_paths(config)
        self.check_place(config, record, resume=resume)
        with self.lock():
            # another process may have made it a run between the two lines above
            self.check_place(config, record, resume=resume)
            remove_leftovers(self.path, pattern="**/.*.part")
            if not self.config_file.exists():
                text = dump_config(config.model_copy(update={"versions": library_versions()}))
                total = checksum(text.encode())
                about = {CONFIG_SUM: total, RUN: total}
                write_json(self.record_file, {**record, **about})
                # last, as it is what makes the folder a run
                write_atomic(self.config_file, text)
            yield

    def check_place(self, config: RunConfig, record: Mapping[str, Any], *, resume: bool) -> None:
        """Refuses a folder in which this run can neither begin nor go on."""
        check_name(self.path)
        if not self.path.exists():
            return
        if not self.config_file.exists():
            # a run that was killed at once has hidden files and a record at most
            strange = [f.name for f in self.path.iterdir() if not f.name.startswith(".")]
            if set(strange) - {self.record_file.name}:
                raise UserError(
                    f"{self.path} must be a new folder; it has {', '.join(sorted(strange))}. "
                    "Give another --out."
                )
            return
        if not resume:
            raise UserError(
                f"{self.path} must be a new folder; it has a run already. "
                "Continue it with --resume, or give another --out."
            )
        # that of an older run may have relative paths
        own, config = with_absolute_paths(self.config()), with_absolute_paths(config)
        changed = differences(own, config)
        if changed:
            raise UserError(
                f"a resumed run must keep its configuration; {', '.join(changed)} differ from "
                f"{self.config_file}. Give another --out for another run."
            )
        if not is_same_split(self.record()["splits"], record["splits"]):
            raise UserError(
                f"a resumed run must keep its data; their splits are not those of {self.path}."
            )

    def write_history(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Replaces the history."""
        write_json_lines(self.history_file, entries, run=self.identity())

    def add_metrics(
        self, checkpoint: str, method: str, splits: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Adds what was measured to `metrics.json`, and replaces what was measured before."""
        # processes may measure different methods of one run: none loses what another adds
        with _flock(self.path / ".metrics.lock", wait=True):
            metrics = self.metrics()
            metrics.setdefault(checkpoint, {}).setdefault(method, {}).update(splits)
            write_json(self.metrics_file, metrics, run=self.identity())

    def write_inspection(self, inspection: Inspection) -> None:
        """Replaces what was seen in the attention layers."""
        write_json(self.inspection_file, inspection.model_dump(), run=self.identity())

    def forget_results(self) -> None:
        """Removes what was measured on weights that are about to change."""
        for file in (self.metrics_file, self.inspection_file):
            file.unlink(missing_ok=True)
        for name in ("predictions", "methods"):
            shutil.rmtree(self.path / name, ignore_errors=True)

    def forget_method(self, checkpoint: str, method: str) -> None:
        """Removes what was predicted and measured with a method that is about to change."""
        shutil.rmtree(self.predictions_file(checkpoint, method, "").parent, ignore_errors=True)
        with _flock(self.path / ".metrics.lock", wait=True):
            metrics = self.metrics()
            if metrics.get(checkpoint, {}).pop(method, None) is not None:
                write_json(self.metrics_file, metrics, run=self.identity())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the run while it is written to; a second process is told and touches nothing.

        The lock is the system's, so that it goes with the process that held it, even a killed
        one. It is not held where the system has no `flock`.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(_flock(self.path / ".lock", wait=False))
            except BlockingIOError:
                raise UserError(
                    f"{self.path} must not be in use; another process is writing to it. "
                    "Wait for it to end, or give another --out."
                ) from None
            yield


@contextmanager
def _flock(path: Path, *, wait: bool) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def find_runs(paths: Sequence[Path]) -> list[RunFolder]:
    """The run folders among `paths` and, where one is a collection, those in it."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} must be a run folder; there is no such folder.")
        # a config.toml without a record beside it may be anybody's
        records = path.rglob("run.json")
        inside = [file.parent for file in records if file.with_name("config.toml").exists()]
        if RunFolder(path).config_file.exists():
            inside = [path]
        if not inside:
            raise UserError(
                f"{path} must be a run folder or hold some; it has no config.toml, nor has a "
                "folder inside. Train a run with `kepsvgp train`."
            )
        found += sorted(inside)
    return [RunFolder(path) for path in dict.fromkeys(found)]
