"""Runs the tutorials, and writes what they print and their figures: `make tutorials`."""

import os
import re
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor

from kepsvgp import metrics
from tools.forest import BLUE, GREEN

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "tutorials"
IMAGES = ROOT / "docs" / "images"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(\n```text\n.*?^```)?", re.MULTILINE | re.DOTALL)
ORANGE = "#D55E00"
Names = Mapping[str, Any]


def pictures(rows: Sequence[Tensor], words: Sequence[Sequence[str]], titles: list[str]) -> Figure:
    """Rows of digits, each with a word below it."""
    figure = Figure(figsize=(7, 1.6 * len(rows)), layout="constrained")
    for parts, row, words_of, title in zip(
        figure.subplots(len(rows), len(rows[0]), squeeze=False), rows, words, titles, strict=True
    ):
        for axis, picture, word in zip(parts, row, words_of, strict=True):
            axis.imshow(picture[0].numpy(), cmap="gray_r", vmin=0, vmax=1, interpolation="none")
            axis.set(xticks=[], yticks=[], xlabel=word)
        parts[0].set_ylabel(title)
    return figure


def posterior(names: Names) -> Figure:
    """The digits on which the draws agree, and those on which they do not."""
    answer, images = names["after"], names["images"][names["new"]]
    order = answer.epistemic.argsort(descending=True)
    rows = [order[-5:], order[:5]]
    words = [
        [f"{answer.predicted[i]}: {answer.confidence[i]:.2f}\n{answer.epistemic[i]:.2f} nats"
         for i in row] for row in rows
    ]  # fmt: skip
    return pictures([images[row] for row in rows], words, ["agree", "disagree"])


def abstain(names: Names) -> Figure:
    """Risk against coverage of the new digits, and where the rule stands."""
    wrong, answered, rule = (names[name] for name in ("wrong", "answered", "rule"))
    curve = metrics.risk_coverage_curve(names["prediction"].confidence, ~wrong)
    figure = Figure(figsize=(6, 3), layout="constrained")
    axis = figure.subplots()
    axis.plot(100 * curve.coverage, 100 * curve.risk, color=BLUE, label="new digits")
    axis.axhline(100 * rule.max_risk, color="black", linestyle="--", label="risk that is allowed")
    place = 100 * answered.double().mean(), 100 * wrong[answered].double().mean()
    axis.plot(*place, "D", color=ORANGE, label="the rule")
    axis.set(xlabel="answered, %", ylabel="wrong answers, %", xlim=(0, 101), ylim=(0, None))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    return figure


def foreign(names: Names) -> Figure:
    """The strange inputs of which the model is surest, kind by kind."""
    rows, words = [], []
    for inputs in names["inputs"].values():
        found = names["ask"](inputs)
        surest = found.confidence.argsort(descending=True)[:6]
        rows.append(inputs[surest])
        words.append([f"{found.confidence[i]:.2f}, p {found.novelty_p[i]:.3f}" for i in surest])
    return pictures(rows, words, list(names["inputs"]))


def scratch(names: Names) -> Figure:
    """The two large terms of the loss over the steps."""
    figure = Figure(figsize=(6, 3), layout="constrained")
    axis = figure.subplots()
    nll, kl = zip(*names["history"], strict=True)
    axis.plot(nll, color=BLUE, label="cross-entropy")
    axis.plot(kl, color=ORANGE, linestyle="--", label="KL / num_train")
    axis.set(xlabel="step", ylabel="nats", ylim=(0, None))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    return figure


def compare(names: Names) -> Figure:
    """Differences to softmax, a panel for each metric."""
    figure = Figure(figsize=(7, 1.6), layout="constrained")
    differences, chosen = names["differences"], names["chosen"]
    for axis, metric in zip(figure.subplots(1, len(chosen), sharey=True), chosen, strict=True):
        for row, found in enumerate(differences.values()):
            value, low, high = found[metric]
            axis.plot([low, high], [row, row], color=BLUE, linewidth=2)
            axis.plot(value, row, "D", color=BLUE, markersize=5)
        limit = 1.1 * max(abs(end) for end in axis.get_xlim())
        better = (0, limit) if metrics.METRICS[metric].is_higher_better else (-limit, 0)
        axis.axvspan(*better, color=GREEN, alpha=0.1, linewidth=0)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set(xlim=(-limit, limit), ylim=(1.5, -0.5), title=metric)
        axis.set_yticks(range(len(differences)), list(differences))
        axis.locator_params(axis="x", nbins=3)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    return figure


FIGURES: dict[str, Callable[[Names], Figure]] = {
    "posterior": posterior,
    "abstain": abstain,
    "foreign": foreign,
    "scratch": scratch,
    "compare": compare,
}


def written_anew(page: Path) -> dict[str, Any]:
    """Runs a page, puts what it prints below its blocks, and gives the names it has defined."""
    names: dict[str, Any] = {"__name__": "page"}

    def run(block: re.Match[str]) -> str:
        with redirect_stdout(StringIO()) as printed:
            exec(block[1], names)
        shown = f"\n```text\n{printed.getvalue()}```" if block[2] else ""
        return f"```python\n{block[1]}```\n{shown}"

    page.write_text(BLOCK.sub(run, page.read_text(encoding="utf-8")), encoding="utf-8")
    return names


def main(chosen: list[str]) -> None:
    """Writes the pages and figures of the tutorials that are named, or of all."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    with TemporaryDirectory() as folder, chdir(folder):
        sys.argv = ["digits_vit.py", "digits-vit"]
        runpy.run_path(str(ROOT / "examples" / "digits_vit.py"))
        for name in chosen or FIGURES:
            names = written_anew(PAGES / f"{name}.md")
            # the same bytes each time
            with mpl.rc_context({"svg.hashsalt": name, "font.size": 9}), torch.no_grad():
                path = IMAGES / f"tutorial-{name}.svg"
                FIGURES[name](names).savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1:])
