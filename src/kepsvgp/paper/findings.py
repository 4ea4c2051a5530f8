"""What `kepsvgp inspect` says of a run's attention layers, and what looks wrong about them."""

import math

from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.inspection import Inspection, LayerReport, Posterior

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


def inspected(run: RunFolder, checkpoint: str) -> Inspection | None:
    """What was seen of a checkpoint by the usual examples; None if not by these."""
    found = run.inspection(checkpoint)
    usual = "test", min(EXAMPLES, run.record()["splits"]["sizes"]["test"])
    return found if found is not None and (found.split, found.examples) == usual else None


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
