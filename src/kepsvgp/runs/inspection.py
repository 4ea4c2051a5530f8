"""What `kepsvgp inspect` saw in the attention layers of a run: the form of inspect.json."""

from itertools import accumulate

from pydantic import BaseModel, ConfigDict, Field

from kepsvgp.inference.activity import Activity


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Sides(_Part):
    """One list for the left (query) side, one for the right (key) side."""

    left: list[float]
    right: list[float]


class Shares(_Part):
    """One number for each side."""

    left: float
    right: float


class Posterior(_Part):
    """What became of q(v), by head.

    Attributes:
        kl: KL[q(u) ‖ p(u)].
        scale: Root mean square of the standard deviations of v; 1 for the prior.
        signal: Root mean square of the means of v; 0 for the prior.
        noise: Standard deviation of the GPs at the tokens as a share of their size, both as root
            mean squares over examples, tokens and values: 0 for no noise, 1 for nothing else.
        scores: Root mean square of the scores E and R over examples, tokens and pairs.
    """

    kl: list[float]
    scale: list[float]
    signal: list[float]
    noise: list[float]
    scores: list[float] = []


class LayerReport(_Part):
    """One attention layer; `alignment` to `posterior` are None where nothing is learnt.

    Attributes:
        name: Its name in the model.
        kind: softmax, kep, primal or sgpa.
        heads: Number of heads.
        rank: Number of kept pairs.
        singular_values: Of its kernel, divided by their sum; means over examples and heads.
        explained: Sum of the first `rank` of them.
        alignment: |cosine| of each learnt with each exact singular vector, pair by pair.
        principal: Cosines of the principal angles between the learnt and the exact subspace.
        overlap: Mean squared principal cosine: the share of the exact subspace that the scores
            span.
        chance: The same for scores along random directions of the layer's own features.
        posterior: What became of q(v).
        activity: How much its draws say, by examples of the validation set.
        findings: What looks wrong, in words; none for a healthy layer.
    """

    name: str
    kind: str
    heads: int = Field(ge=1)
    rank: int | None = Field(default=None, ge=1)
    singular_values: list[float] = Field(min_length=1)
    explained: float | None = None
    alignment: Sides | None = None
    principal: Sides | None = None
    overlap: Shares | None = None
    chance: Shares | None = None
    posterior: Posterior | None = None
    activity: Activity | None = None
    findings: list[str] = []

    @property
    def cumulative(self) -> list[float]:
        """The share of the spectrum in the first 1, 2, … values."""
        total = sum(self.singular_values)
        return [running / total for running in accumulate(self.singular_values)]


class Inspection(_Part):
    """The layers of a model, in order, by so many examples of a split.

    Attributes:
        examples: How many were looked at.
        split: Whose they are.
        layers: What was seen.
        checkpoint: Whose weights were looked at; empty for a model of no run.
    """

    examples: int = Field(ge=1)
    split: str
    layers: list[LayerReport]
    checkpoint: str = ""
