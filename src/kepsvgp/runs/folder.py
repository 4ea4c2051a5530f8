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
    manifest.json          checksums of all of these

Every file is replaced as a whole, so that a run killed at any moment leaves none half-written,
and one that was changed, damaged or taken from another run is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from kepsvgp.config.comparison import differences, with_absolute_paths
from kepsvgp.config.file import dump_config, load_config
from kepsvgp.config.plugins import find_method
from kepsvgp.config.sections import RunConfig
from kepsvgp.data import Benchmark, load_benchmark
from kepsvgp.data.benchmark import is_same_split
from kepsvgp.errors import UserError
from kepsvgp.files import (
    MANIFEST,
    PART,
    CheckedFolder,
    check_name,
    file_checksum,
    locked,
    remove_leftovers,
)
from kepsvgp.inference.prediction import Prediction
from kepsvgp.models import Classifier
from kepsvgp.ops.noise import kept_random_state
from kepsvgp.runs.inspection import Inspection
from kepsvgp.runs.record import library_versions, outside_files, shape_from_record
from kepsvgp.runs.weights import Checkpoint, write_weights

CONFIG, RECORD, HISTORY = "config.toml", "run.json", "history.jsonl"
METRICS, INSPECTION = "metrics.json", "inspect.json"


@dataclass(frozen=True)
class RunFolder:
    """A run on disk. Nothing is read before it is asked for, and nothing is kept."""

    path: Path

    @property
    def config_file(self) -> Path:
        """The complete configuration."""
        return self.path / CONFIG

    @property
    def metrics_file(self) -> Path:
        """What was measured."""
        return self.path / METRICS

    @property
    def files(self) -> CheckedFolder:
        """Its files, by their names in the folder, checked."""
        return CheckedFolder(self.path)

    def weights_file(self, checkpoint: Checkpoint | None = None) -> Path:
        """The weights of a checkpoint; None for the one that `train.select` chose."""
        return self.path / self.weights_name(checkpoint)

    @staticmethod
    def weights_name(checkpoint: Checkpoint | None = None) -> str:
        """The same within the folder."""
        if checkpoint is None:
            return "model.safetensors"
        return f"checkpoints/{checkpoint}.safetensors"

    def predictions_file(self, checkpoint: str, method: str, split: str) -> Path:
        """The predictions of a method for a split such as `test` or `shift/fog/5`."""
        return self.path / _prediction(checkpoint, method, split)

    def method_folder(self, name: str) -> CheckedFolder:
        """Where a fitted post-hoc method is kept."""
        return CheckedFolder(self.path, f"methods/{name}")

    def config(self) -> RunConfig:
        """The configuration of the run."""
        if not self.config_file.exists():
            raise UserError(
                f"{self.path} must be a run folder, which has a config.toml; it has none. "
                "Give a folder that `kepsvgp train` made."
            )
        return load_config(self.files.check(CONFIG))

    def record(self) -> dict[str, Any]:
        """Classes, input shape, splits and notes."""
        return self.files.read_json(RECORD)

    def identity(self) -> str:
        """What two copies of a run have in common, and no other run: that of its configuration."""
        return self.files.checksum(CONFIG) or ""

    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(self.record()["classes"])

    def history(self) -> list[dict[str, Any]]:
        """One entry for each finished epoch."""
        if not (self.path / HISTORY).exists():
            return []
        return self.files.read_json_lines(HISTORY)

    def metrics(self) -> dict[str, Any]:
        """{checkpoint: {method: {split: {metric: value}}}}; empty before any evaluation."""
        if not self.metrics_file.exists():
            return {}
        return self.files.read_json(METRICS)

    def splits(self, checkpoint: str, method: str) -> list[str]:
        """The splits that a method has predicted, such as `test` and `ood/svhn`."""
        folder = self.path / "predictions" / checkpoint / method
        files = sorted(folder.rglob("*.safetensors"))
        return [file.relative_to(folder).with_suffix("").as_posix() for file in files]

    def prediction(self, checkpoint: str, method: str, split: str) -> Prediction:
        """What a method predicted for a split."""
        return Prediction.load(self.files.check(_prediction(checkpoint, method, split)))

    def inspection(self, checkpoint: str | None = None) -> Inspection | None:
        """What `kepsvgp inspect` saw; None if nothing, or not of this checkpoint."""
        if not (self.path / INSPECTION).exists():
            return None
        found = Inspection.model_validate(self.files.read_json(INSPECTION))
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
            self.files.write_json(RECORD, record | {"finished": True})

    def benchmark(self, root: Path | None = None) -> Benchmark:
        """The data of the run, which must be split as they were when it was trained."""
        data = self.config().data
        self.check_outside()
        benchmark = load_benchmark(data.model_copy(update={"root": root}) if root else data)
        then, now = self.record()["splits"], benchmark.split_record()
        if not is_same_split(then, now):
            raise UserError(
                f"the data of {self.path} must be those it was trained on, split as they were; "
                "their checksums differ. Point data.root, or data.path, at the data of then."
            )
        return benchmark

    def check_outside(self) -> None:
        """Refuses a vocabulary or an encoder that is not the one that the run was trained with."""
        then, now = self.record()["outside"], outside_files(self.config().data)
        for name in then.keys() | now.keys():
            if name not in now or file_checksum(now[name]) != then.get(name):
                raise UserError(
                    f"{now.get(name, name)} must be as it was when {self.path} was trained; its "
                    "content is another. Put the file of then back, or train again."
                )

    def model(self, checkpoint: Checkpoint | None = None) -> Classifier:
        """The trained model in evaluation mode, from the folder alone."""
        config, record = self.config(), self.record()
        with kept_random_state():
            model: Classifier = find_method(config.method).network(
                config.model, shape_from_record(record["input"]), len(record["classes"])
            )
        model.load_state_dict(self.weights(checkpoint))
        return model.eval()

    def weights(self, checkpoint: Checkpoint | None = None) -> dict[str, Tensor]:
        """The tensors of a checkpoint; None for the one that `train.select` chose."""
        path = self.weights_file(checkpoint)
        if not path.exists():
            raise UserError(
                f"{path} must hold trained weights; there is no such file. Train to the end of an "
                "epoch, with `kepsvgp train … --resume` or into a new folder."
            )
        return load_file(self.files.check(self.weights_name(checkpoint)))

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
            remove_leftovers(self.path, pattern=f"**/.*{PART}")
            if not self.config_file.exists():
                outside = {n: file_checksum(f) for n, f in outside_files(config.data).items()}
                self.files.write_json(RECORD, {**record, "outside": outside})
                config = config.model_copy(update={"versions": library_versions()})
                # last, as it is what makes the folder a run
                self.files.write_text(CONFIG, dump_config(config))
            yield

    def check_place(self, config: RunConfig, record: Mapping[str, Any], *, resume: bool) -> None:
        """Refuses a folder in which this run can neither begin nor go on."""
        check_name(self.path)
        if not self.path.exists():
            return
        if not self.config_file.exists():
            # a run that was killed at once has hidden files, a manifest and a record at most
            strange = [f.name for f in self.path.iterdir() if not f.name.startswith(".")]
            if set(strange) - {MANIFEST, RECORD}:
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
        changed = differences(self.config(), with_absolute_paths(config))
        if changed:
            raise UserError(
                f"a resumed run must keep its configuration; {', '.join(changed)} differ from "
                f"{self.config_file}. Give another --out for another run."
            )
        self.check_outside()
        if not is_same_split(self.record()["splits"], record["splits"]):
            raise UserError(
                f"a resumed run must keep its data; their splits are not those of {self.path}."
            )

    def write_history(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Replaces the history."""
        self.files.write_json_lines(HISTORY, entries)

    def write_weights(
        self, checkpoint: Checkpoint | None, tensors: Mapping[str, Tensor], about: Mapping[str, str]
    ) -> None:
        """Replaces the weights of a checkpoint, with some words about them."""
        write_weights(self.files, self.weights_name(checkpoint), tensors, about)

    def write_prediction(
        self, checkpoint: str, method: str, split: str, prediction: Prediction
    ) -> None:
        """Replaces what a method predicted for a split."""
        with self.files.replacing(_prediction(checkpoint, method, split)) as temporary:
            prediction.save(temporary)

    def add_metrics(
        self, checkpoint: str, method: str, splits: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Adds what was measured to `metrics.json`, and replaces what was measured before."""
        # processes may measure different methods of one run: none loses what another adds
        with locked(self.path / ".metrics.lock"):
            metrics = self.metrics()
            metrics.setdefault(checkpoint, {}).setdefault(method, {}).update(splits)
            self.files.write_json(METRICS, metrics)

    def write_inspection(self, inspection: Inspection) -> None:
        """Replaces what was seen in the attention layers."""
        self.files.write_json(INSPECTION, inspection.model_dump())

    def forget_results(self) -> None:
        """Removes what was measured on weights that are about to change."""
        for name in (METRICS, INSPECTION, "predictions", "methods"):
            self.files.forget(name)

    def forget_method(self, checkpoint: str, method: str) -> None:
        """Removes what was predicted and measured with a method that is about to change."""
        self.files.forget(f"predictions/{checkpoint}/{method}")
        with locked(self.path / ".metrics.lock"):
            metrics = self.metrics()
            if metrics.get(checkpoint, {}).pop(method, None) is not None:
                self.files.write_json(METRICS, metrics)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the run while it is written to; a second process is told and touches nothing."""
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path / ".lock", wait=False))
            except BlockingIOError:
                raise UserError(
                    f"{self.path} must not be in use; another process is writing to it. "
                    "Wait for it to end, or give another --out."
                ) from None
            yield


def _prediction(checkpoint: str, method: str, split: str) -> str:
    return f"predictions/{checkpoint}/{method}/{split}.safetensors"


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
