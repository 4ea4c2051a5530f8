"""What a method is: its name, its settings, its network, how it is trained and how it is asked.

The defaults are those of a plain Transformer with softmax attention, so that a method says only
what it changes. A post-hoc method is fitted to a trained one; see `kepsvgp.methods.post_hoc`.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from rich.console import Console
from torch import nn

from kepsvgp.attention.softmax import SoftmaxAttention
from kepsvgp.config.plugins import find, place_of, section_kinds
from kepsvgp.config.sections import ModelConfig, ObjectiveConfig, RunConfig, Section
from kepsvgp.data import Benchmark, Examples, batches
from kepsvgp.data.progress import track
from kepsvgp.errors import UserError
from kepsvgp.inference.prediction import Direct as Direct
from kepsvgp.inference.prediction import Predictor
from kepsvgp.methods.afterwards import train_then
from kepsvgp.models.blocks import Classifier
from kepsvgp.models.build import InputShape, sequence_length, transformer
from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.weights import Checkpoint


class Library(NamedTuple):
    """What a method needs beyond the core: a module, what people call it, and our extra."""

    module: str
    title: str
    extra: str


@dataclass(frozen=True)
class Trained:
    """What is asked, or fitted to: a checkpoint of a run, or of several for an ensemble."""

    runs: tuple[RunFolder, ...]
    benchmark: Benchmark
    checkpoint: Checkpoint
    device: torch.device | None
    console: Console | None
    direct: tuple[Any, ...] = ()
    """The trained models, each asked directly, for what is fitted to them."""

    @property
    def seed(self) -> int:
        """The seed of the (first) run."""
        return self.runs[0].config().seed

    def train(self) -> Iterable[Any]:
        """Batches of the training set, not augmented."""
        return self._batches(self.benchmark.train, "training set")

    def val(self) -> Iterable[Any]:
        """Batches of the validation set."""
        return self._batches(self.benchmark.val, "validation set")

    def _batches(self, examples: Examples, what: str) -> Iterable[Any]:
        size = self.runs[0].config().prediction.batch_size
        return track(batches(examples, size, bucket=True), what, self.console)


class Method:
    """A trained method; a class of your own needs a name, a title, and what it changes."""

    name: str
    """What commands, folders and results call it."""
    title: str
    """What tables and the report call it."""
    section: ClassVar[type[Section] | None] = None
    """Its settings, which are `model.<name>` in a configuration."""
    shares: ClassVar[str | None] = None
    """The method whose section it reads in the place of one of its own."""
    library: ClassVar[Library | None] = None
    ignores: ClassVar[tuple[str, ...]] = ()
    """Shared settings, `kep_layers` or `objective`, that cannot matter to it."""
    timed_as: ClassVar[str | None] = None
    """The method whose epochs the paper timed in the place of its own."""
    is_post_hoc: ClassVar[bool] = False
    is_ensemble: ClassVar[bool] = False
    """Whether it is made of several runs."""

    @property
    def trained(self) -> "Method":
        """The method that is trained: this one, or what it is fitted to."""
        return self

    @property
    def place(self) -> str:
        """What `RunConfig.method` says of its runs."""
        return place_of(type(self.trained))

    @property
    def section_name(self) -> str:
        """Where its settings are, below `model`."""
        return self.shares or self.name

    def settings(self, config: ModelConfig) -> Any:
        """Its section of a configuration."""
        name = self.section_name
        return getattr(config, name, None) or section_kinds((name,))[name]()

    def check(self, config: RunConfig) -> None:
        """Refuses, with a `ValueError`, settings that do not fit together."""

    def check_installed(self) -> None:
        """Raises a `UserError` that names the extra if a library is missing."""
        if self.library is None:
            return
        module, title, extra = self.library
        # None stands for a module that is known not to be importable
        if sys.modules.get(module, module) is None or find_spec(module) is None:
            raise UserError(
                f"method {self.name!r} must have {title}, which is not installed. "
                f"Run `pip install 'kepsvgp[{extra}]'`."
            )

    def normalised(self, config: RunConfig) -> RunConfig:
        """The same run with everything that cannot matter to this method at its default."""
        config, kinds = config.of_method(config.method), section_kinds()
        changes: dict[str, Any] = {n: kind() for n, kind in kinds.items() if n != self.section_name}
        if "kep_layers" in self.ignores:
            changes["kep_layers"] = ModelConfig.model_fields["kep_layers"].default
        plain = "objective" in self.ignores
        return config.model_copy(
            update={
                "model": config.model.model_copy(update=changes),
                "objective": ObjectiveConfig() if plain else config.objective,
            }
        )

    def attention(self, config: ModelConfig, num_tokens: int | None) -> nn.Module:
        """One of its attention layers; `num_tokens` is the length of all sequences, if any."""
        return softmax_attention(config)

    def num_layers(self, config: ModelConfig) -> int:
        """How many of the last layers have its attention; the others have softmax."""
        return config.depth if config.kep_layers == "all" else config.kep_layers

    def head(self, config: ModelConfig, num_classes: int) -> nn.Module:
        """What maps pooled features to logits."""
        return nn.Linear(config.dim, num_classes)

    def network(self, config: ModelConfig, shape: InputShape, num_classes: int) -> Classifier:
        """A new network for inputs of this shape."""
        num_tokens = sequence_length(config, shape)
        num_softmax = config.depth - self.num_layers(config)
        layers = [softmax_attention(config) for _ in range(num_softmax)]
        layers += [self.attention(config, num_tokens) for _ in range(num_softmax, config.depth)]
        return transformer(config, shape, layers, self.head(config, num_classes))

    def kl_weight(self, config: RunConfig, num_train: int) -> float:
        """The weight of its KL / num_train in the objective; 1 is the evidence lower bound."""
        return 1.0

    def epochs(self, config: RunConfig) -> int:
        """Epochs of its own training."""
        return config.train.epochs

    def first_step(self, config: RunConfig) -> RunConfig | None:
        """The run that its training starts from, if there is one to be made before."""
        return None

    def after(self, config: RunConfig, first: Path) -> RunConfig:
        """The configuration that starts from a run of the first step."""
        return config

    def train(
        self, config: RunConfig, benchmark: Benchmark, out: Path, **options: Any
    ) -> RunFolder:
        """Trains into a run folder; `options` are those of `kepsvgp.training.loop.train`."""
        self.check_installed()
        return train_then(None, config, benchmark, out, **options)

    def check_runs(self, runs: Sequence[RunFolder]) -> None:
        """Refuses runs of another method, and several where one is asked."""
        for run in runs:
            given = run.config().method
            if find("kepsvgp.methods", given) is not type(self.trained):
                raise UserError(
                    f"method {self.name!r} must be asked of a run of {self.trained.name!r}; "
                    f"{run.path} is one of {given!r}."
                )
        if len(runs) > 1 and not self.is_ensemble:
            raise UserError(
                f"method {self.name!r} must have one run; got {len(runs)}. Several make up an "
                "ensemble, with --method ensemble."
            )

    def predictor(
        self,
        run: RunFolder,
        benchmark: Benchmark,
        checkpoint: Checkpoint,
        *,
        members: Sequence[RunFolder] = (),
        device: torch.device | None = None,
        console: Console | None = None,
    ) -> Predictor:
        """What answers for a checkpoint of a run; the test set is never looked at.

        Args:
            run: A run of this method.
            benchmark: Its data, for what must be fitted.
            checkpoint: Which weights.
            members: The other runs of an ensemble.
            device: Where to predict.
            console: Where progress is shown; None for nowhere.
        """
        self.check_installed()
        runs = (run, *members)
        self.check_runs(runs)
        return self.answer(Trained(runs, benchmark, checkpoint, device, console))

    def answer(self, trained: Trained) -> Predictor:
        """What answers for runs that were checked."""
        run, *_ = trained.runs
        asked = run.config().prediction
        model = run.model(trained.checkpoint).to(trained.device)
        return Direct(model, asked.num_samples, asked.average)


def softmax_attention(config: ModelConfig) -> nn.Module:
    """A layer of softmax attention."""
    return SoftmaxAttention(
        config.dim,
        config.num_heads,
        attention_dropout=config.attention_dropout,
        dropout=config.dropout,
    )
