"""Draws the forest plot of the results page from the numbers in results/: `make tables`."""

from itertools import pairwise

import matplotlib as mpl
from matplotlib.figure import Figure

from tools.tables import MAIN, ROOT, load, main_score, over_seeds, per_seed

IMAGE = ROOT / "docs" / "images" / "forest.svg"
PANELS = {"": "ACC or MCC ↑", "aurc": "AURC ↓", "nll": "NLL ↓", "ece": "ECE ↓"}
# Okabe and Ito's
BLUE, GREEN = "#0072B2", "#009E73"


def points(title: str, panel: str) -> tuple[list[float], tuple[float, float, float]]:
    """A setting's differences for each seed; their mean with its interval; in the paper's units."""
    file, (name, ours, theirs), _ = MAIN[title]
    found = load(file, name)
    score = main_score(found)
    column = next((c for c in found["columns"] if c["key"] == panel), score)
    key, scale = column["key"], column["scale"]
    mean, low, high = over_seeds(found, ours, theirs)[key]
    seeds = [scale * value for value in per_seed(found, ours, theirs, key)]
    return seeds, (scale * mean, scale * low, scale * high)


def described() -> str:
    """What the figure shows, in numbers; kept in the file."""
    lines = []
    for title in MAIN:
        for panel, heading in PANELS.items():
            mean, low, high = points(title, panel)[1]
            lines.append(f"{title}, {heading}: {mean:+.2f} [{low:+.2f}, {high:+.2f}]")
    return "KEP-SVGP minus softmax. " + "; ".join(lines)


def forest() -> Figure:
    """A row for each setting, a panel for each metric, a dot for each seed."""
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    axes = figure.subplots(1, len(PANELS), sharey=True)
    for axis, (panel, heading) in zip(axes, PANELS.items(), strict=True):
        for row, title in enumerate(MAIN):
            seeds, (mean, low, high) = points(title, panel)
            axis.plot([low, high], [row, row], color=BLUE, linewidth=2, solid_capstyle="butt")
            axis.plot(mean, row, "D", color=BLUE, markersize=5)
            below = [row + 0.28] * len(seeds)
            axis.plot(seeds, below, "o", color="black", markersize=2.5, alpha=0.6)
        limit = 1.05 * max(abs(end) for end in axis.get_xlim())
        better = (0, limit) if heading.endswith("↑") else (-limit, 0)
        axis.axvspan(*better, color=GREEN, alpha=0.1, linewidth=0)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set(xlim=(-limit, limit), title=heading)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    names = [title.split(",")[0] for title in MAIN]
    for row, (above, below) in enumerate(pairwise(names)):
        if above != below:
            for axis in axes:
                axis.axhline(row + 0.6, color="grey", linewidth=0.5, alpha=0.5)
    axes[0].set_yticks(range(len(MAIN)), list(MAIN))
    axes[0].set_ylim(len(MAIN) - 0.4, -0.5)
    figure.supxlabel(
        "KEP-SVGP − softmax: mean and 95 % interval over seeds, a dot for each seed; "
        "green: KEP-SVGP is better",
        fontsize=9,
    )
    return figure


if __name__ == "__main__":
    # the same bytes each time
    with mpl.rc_context({"svg.hashsalt": "forest", "font.size": 9, "axes.titlesize": 10}):
        forest().savefig(IMAGE, metadata={"Date": None, "Description": described()})
