"""What `kepsvgp inspect` says of a run's attention layers, and what looks wrong about them."""

import math

from kepsvgp.runs.folder import RunFolder
from kepsvgp.runs.inspection import Inspection, LayerReport

# examples of the test set that are looked at unless others are asked for
EXAMPLES = 64

# The rank should explain at least this share of the spectrum,
EXPLAINED = 0.8
# and the scores close this share of the gap between random directions and the exact ones.
CLOSED_GAP = 0.25


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
    return found
