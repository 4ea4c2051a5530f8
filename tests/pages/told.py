"""The text of the result pages, and what the files in `results/` say, for tests to compare."""

from pathlib import Path

import evidence
import page

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"

TOLD = page.PAGES[:2]
TEXT = " ".join(word for path in TOLD for word in path.read_text().split())
README = " ".join((ROOT / "README.md").read_text().split())

SEVEN = {"mcc", "aurc", "auroc", "fpr95", "ece", "nll", "brier"}


def means(path: str, row: str) -> dict[str, float]:
    """The means of a row in the table's units."""
    found = evidence.table(path)
    scales = {column["key"]: column["scale"] for column in found["columns"]}
    return {
        cell["column"]: cell["mean"] * scales[cell["column"]]
        for cell in found["cells"]
        if cell["row"] == row and cell["mean"] is not None
    }


def gains(path: str, first: str, second: str) -> dict[str, tuple[bool, bool]]:
    """Whether the first row is better than the second, and whether that is beyond noise."""
    found = {}
    for claim in evidence.table(path)["claims"]:
        if claim["ours"] and {claim["better"], claim["worse"]} == {first, second}:
            holds = claim["verdict"].startswith("holds")
            is_first = holds == (claim["better"] == first)
            found[claim["column"]] = is_first, "noise" not in claim["verdict"]
    return found


def metrics(found: dict[str, tuple[bool, bool]], *, better: bool, sure: bool) -> set[str]:
    return {metric for metric, gain in found.items() if gain == (better, sure)}


def fold_sides(path: str, rule: str, pair: str) -> tuple[set[str], set[str], set[str]]:
    """What is ahead beyond noise, what is behind beyond it, and what is ahead at all."""
    ahead, behind, at_all = set(), set(), set()
    for name, interval in evidence.table(path)["rules"][rule]["differences"][pair].items():
        sign = 1 if name in {"accuracy", "mcc", "auroc"} else -1
        ends = [sign * interval[end] for end in evidence.ENDS]
        ahead |= {name} if min(ends) > 0 else set()
        behind |= {name} if max(ends) < 0 else set()
        at_all |= {name} if ends[0] > 0 else set()
    return ahead, behind, at_all


def fold_mean(path: str, rule: str, arm: str, metric: str) -> float:
    """A metric of an arm, over its models."""
    values = evidence.table(path)["rules"][rule]["results"][arm][metric]
    return sum(values) / len(values)
