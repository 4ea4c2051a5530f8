"""What `kepsvgp inspect` says of a run's attention layers, and what looks wrong about them."""

import math
from typing import Any

from pydantic import BaseModel, ConfigDict

from kepsvgp.files import read_json
from kepsvgp.runs.folder import RunFolder

# examples of the test set that are looked at unless others are asked for
EXAMPLES = 64

# The rank should explain at least this share of the spectrum,
EXPLAINED = 0.8
# and the scores close this share of the gap between random directions and the exact ones.
CLOSED_GAP = 0.25
# A posterior this close to its prior (sd 1, mean 0) has learnt nothing,
AT_PRIOR = 0.05
# and one whose noise is this small a share of its output is deterministic in all but name.
NOISELESS = 0.01


class Sides(BaseModel):
    """One list for the left (query) side, one for the right (key) side."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    left: list[float]
    right: list[float]


class Shares(BaseModel):
    """One number for each side."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    left: float
    right: float


class Posterior(BaseModel):
    """What became of q(u), by head.

    Attributes:
        kl: KL[q(u) ‖ p(u)].
        scale: Root mean square of the standard deviations of Λ⁻¹ u; 1 for the prior.
        signal: Root mean square of the means of Λ⁻¹ u; 0 for the prior.
        noise: Standard deviation of the GPs at the tokens as a share of their size, both as root
            mean squares over examples, tokens and values: 0 for no noise, 1 for nothing else.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kl: list[float]
    scale: list[float]
    signal: list[float]
    noise: list[float]


class LayerReport(BaseModel):
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
        posterior: What became of q(u).
        findings: What looks wrong, in words; none for a healthy layer.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    kind: str
    heads: int
    rank: int | None = None
    singular_values: list[float]
    explained: float | None = None
    alignment: Sides | None = None
    principal: Sides | None = None
    overlap: Shares | None = None
    chance: Shares | None = None
    posterior: Posterior | None = None
    findings: list[str] = []


class Inspection(BaseModel):
    """The content of `inspect.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    examples: int
    split: str
    layers: list[LayerReport]
    checkpoint: str = ""
    """Whose weights were looked at; older files do not say, and have the selected ones."""


def inspected(run: RunFolder, checkpoint: str) -> dict[str, Any] | None:
    """What `inspect.json` says of a checkpoint, by the usual examples; None if of anything else."""
    path = run.inspection_file
    if not path.exists():
        return None
    found = read_json(path, "examples", "split", "layers", run=run.identity())
    usual = "test", min(EXAMPLES, run.record()["splits"]["sizes"]["test"])
    about = found.get("checkpoint") or run.config().train.select
    return found if (found["split"], found["examples"], about) == (*usual, checkpoint) else None


def findings(report: LayerReport) -> list[str]:
    """What looks wrong with a layer, in words with numbers; nothing for a healthy one."""
    found = []
    numbers = [*report.singular_values, report.explained or 0.0]
    if report.posterior is not None:
        numbers += [*report.posterior.kl, *report.posterior.noise]
    if not all(math.isfinite(number) for number in numbers):
        return ["it has numbers that are not finite: the training diverged"]
    if report.explained is not None and report.explained < EXPLAINED:
        found.append(
            f"rank {report.rank} explains {report.explained:.0%} of its kernel's spectrum, less "
            f"than {EXPLAINED:.0%}: a larger model.kep.rank may help"
        )
    if report.overlap is not None and report.chance is not None:
        for side in ("left", "right"):
            overlap, chance = getattr(report.overlap, side), getattr(report.chance, side)
            # where random directions span all but everything there is nothing to learn
            if chance < 0.95 and (overlap - chance) / (1 - chance) < CLOSED_GAP:
                found.append(
                    f"its {side} scores span {overlap:.0%} of the leading singular subspace, "
                    f"where random ones span {chance:.0%}: a larger objective.ksvd_weight, or "
                    "another model.kep.projection, may help"
                )
    if report.posterior is not None:
        found += _posterior_findings(report.posterior)
    return found


def _posterior_findings(posterior: Posterior) -> list[str]:
    found = []
    idle = [
        head
        for head, (scale, signal) in enumerate(zip(posterior.scale, posterior.signal, strict=True))
        if abs(scale - 1) < AT_PRIOR and signal < AT_PRIOR
    ]
    if idle:
        found.append(
            f"the posterior of {_heads(idle)} is the prior: it has learnt nothing. A smaller "
            "objective.kl_weight may help"
        )
    mute = [head for head, noise in enumerate(posterior.noise) if noise < NOISELESS]
    if mute:
        found.append(
            f"the noise of {_heads(mute)} is below {NOISELESS:.0%} of its output: no uncertainty "
            "comes from there. A larger objective.kl_weight may help"
        )
    return found


def _heads(numbers: list[int]) -> str:
    listed = ", ".join(str(number + 1) for number in numbers)
    return f"head {listed}" if len(numbers) == 1 else f"heads {listed}"
