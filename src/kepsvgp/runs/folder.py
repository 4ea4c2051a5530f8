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

import importlib.metadata
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kepsvgp.config.file import (
    CONFIG_SUM,
    check_config,
    differences,
    dump_config,
    load_config,
)
from kepsvgp.config.sections import PARTS, RunConfig
from kepsvgp.data import Benchmark, load_benchmark
from kepsvgp.data.benchmark import is_same_split
from kepsvgp.data.text.tokens import MINILM
from kepsvgp.errors import UserError
from kepsvgp.files import (
    RUN,
    absolute,
    check_name,
    check_run,
    check_tensors,
    checksum,
    read_json,
    read_json_lines,
    read_tree,
    replacing,
    seal_tensors,
    sweep,
    tensor_metadata,
    write_atomic,
    write_json,
    write_json_lines,
)
from kepsvgp.models import Classifier, ImageShape, InputShape, TextShape, build_model

Checkpoint = Literal["last", "score", "nll"]
CHECKPOINTS: tuple[Checkpoint, ...] = ("last", "score", "nll")

# settings that say how a run is watched or saved, not what comes out of it
_FREE_ON_RESUME = frozenset(("data.root", "train.save_steps", "train.tensorboard"))

_TRAIN_AGAIN = "Train to the end of an epoch, with `kepsvgp train … --resume` or into a new folder."


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
        return read_json(self.record_file, "classes", "input", "splits", "task")

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
        parts = PARTS[config.method]
        with own_randomness():
            model = build_model(
                config.model,
                shape_from_record(record["input"]),
                len(record["classes"]),
                attention=parts.attention,
                head=parts.head,
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
            sweep(self.path, pattern="**/.*.part")
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
        changed = [f for f in differences(own, config) if f not in _FREE_ON_RESUME]
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


def as_checkpoint(name: str) -> Checkpoint:
    """A checkpoint by its name."""
    for known in CHECKPOINTS:
        if name == known:
            return known
    raise UserError(f"a checkpoint must be one of {', '.join(CHECKPOINTS)}; got {name!r}.")


def write_weights(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Weights as a safetensors file, as a whole or not at all, with some words about them."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        save_file(contiguous, temporary, metadata=tensor_metadata(about))
        seal_tensors(temporary)


def read_weights(path: Path, *, run: str = "") -> dict[str, Tensor]:
    """The tensors of a safetensors file; what is wrong with it is a `UserError`."""
    check_run(path, weights_about(path).get(RUN), run, _TRAIN_AGAIN)
    return load_file(path)


def load_weights(model: nn.Module, path: Path, *, run: str = "") -> None:
    """Gives a model the weights of a file; those of another model or run are refused."""
    try:
        model.load_state_dict(read_weights(path, run=run))
    except RuntimeError as error:
        reason = str(error).partition("\n")[2].strip().partition("\n")[0]
        raise UserError(
            f"{path} must hold weights of the model that config.toml describes; they are of "
            f"another ({reason}). {_TRAIN_AGAIN}"
        ) from None


def weights_about(path: Path) -> dict[str, str]:
    """The words about the weights in a safetensors file."""
    return check_tensors(path, "trained weights", _TRAIN_AGAIN)


def input_shape(benchmark: Benchmark) -> InputShape:
    """What a model must know of the inputs of a benchmark."""
    if benchmark.image_shape is not None:
        return ImageShape(*benchmark.image_shape)
    return TextShape(benchmark.vocabulary_size, *(benchmark.feature_shape or ()))


def make_record(benchmark: Benchmark, parameters: int) -> dict[str, Any]:
    """What a run remembers of its data."""
    shape = input_shape(benchmark)
    return {
        "task": benchmark.task,
        "classes": list(benchmark.classes),
        "input": shape._asdict(),
        "splits": benchmark.split_record(),
        "notes": [note._asdict() for note in benchmark.notes],
        "parameters": parameters,
    }


def shape_from_record(values: Mapping[str, int]) -> InputShape:
    """The shape that a record describes."""
    return ImageShape(**values) if "channels" in values else TextShape(**values)


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """The configuration with the places of its data as they are from every folder."""
    places = ("root", "path", "vocabulary")
    given = {name: place for name in places if (place := getattr(config.data, name)) is not None}
    found: dict[str, Any] = {name: absolute(place) for name, place in given.items()}
    encoder = config.data.encoder
    # one that is no folder is a name
    if encoder is not None and encoder != MINILM and absolute(encoder).is_dir():
        found["encoder"] = str(absolute(encoder))
    return config.model_copy(update={"data": config.data.model_copy(update=found)})


def other_inputs(one: RunConfig, other: RunConfig) -> list[str]:
    """Settings that make other inputs of the same examples in two configurations."""
    names = ("max_length", "vocabulary", "encoder", "image_size", "grayscale")
    changed = differences(with_absolute_paths(one), with_absolute_paths(other))
    return [name for name in changed if name.removeprefix("data.") in names]


def library_versions() -> dict[str, str]:
    """What a run was made with."""
    names = ("kepsvgp", "torch", "accelerate", "numpy")
    found = {name: importlib.metadata.version(name) for name in names}
    return found | {"python": platform.python_version()}


@contextmanager
def own_randomness() -> Iterator[None]:
    """Gives torch's random state back, as if nothing had been drawn."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
