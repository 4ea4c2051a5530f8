"""Which figures some runs can fill, drawn and written as PNG and SVG."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import Path

import numpy as np

from kepsvgp.config.plugins import find_method
from kepsvgp.metrics import risk_coverage_curve
from kepsvgp.metrics.registry import METRICS
from kepsvgp.paper.figures import BARS, by_group, shift_kinds
from kepsvgp.report import figures
from kepsvgp.report.curves import reliability
from kepsvgp.report.models import Comparison, Member, Model, compare
from kepsvgp.runs.folder import find_runs

# {severity: split}; a shift without degrees has the severity None
Severities = dict[int | None, str]


def write_figures(
    runs: Sequence[Path], folder: Path, *, checkpoint: str | None = None
) -> list[Path]:
    """Draws every figure for which these runs have the numbers; returns the files.

    `shift-bars`, `confidence`, `kernel-spectra` and `shift-lines` are laid out as figures 2 to 5
    of the paper. Where a figure shows examples it shows those of the first seed.
    """
    comparisons = compare(find_runs(runs), checkpoint=checkpoint)
    written: list[Path] = []
    names = _file_names([comparison.title for comparison in comparisons])
    for comparison, own in zip(comparisons, names, strict=True):
        prefix = f"{own}-" if len(comparisons) > 1 else ""
        drawn = chain(_of_answers(comparison), _of_shifts(comparison), _of_kernels(comparison))
        for name, figure in drawn:
            written += figures.save_figure(figure, folder, f"{prefix}{name}")
    return written


def _file_names(titles: Sequence[str]) -> list[str]:
    """A name for each title that a file can have; what is called alike is numbered."""
    names: list[str] = []
    for title in titles:
        plain = re.sub(r"[\W_]+", "-", title).strip("-") or "benchmark"
        numbered = (f"{plain}-{number}" for number in count(2))
        names.append(next(name for name in chain([plain], numbered) if name not in names))
    return names


def _of_answers(comparison: Comparison) -> Iterator[tuple[str, figures.Figure]]:
    leaders = {m.label: m.members[0] for m in comparison.models if m.members[0].test is not None}
    if not leaders:
        return
    tests = {label: test for label, m in leaders.items() if (test := m.test) is not None}
    bins = {label: reliability(test.confidence, test.correct) for label, test in tests.items()}
    yield "reliability", figures.reliability_diagrams(bins)
    curves = {label: risk_coverage_curve(t.confidence, t.correct) for label, t in tests.items()}
    yield "risk-coverage", figures.risk_coverage_curves(curves)
    foreign = comparison.splits("ood/")
    groups = {label: _groups(member, foreign) for label, member in leaders.items()}
    yield "confidence", figures.confidence_separation(groups)


def _groups(member: Member, foreign: Sequence[str]) -> dict[str, np.ndarray]:
    assert member.test is not None
    known = {split: answers for split in foreign if (answers := member.answers(split)) is not None}
    others = {split.removeprefix("ood/"): each.confidence for split, each in known.items()}
    return by_group(member.test.confidence, member.test.correct, others)


def _of_kernels(comparison: Comparison) -> Iterator[tuple[str, figures.Figure]]:
    leaders = {model.label: model.trained[0] for model in comparison.models if model.trained}
    found = {
        label: seen
        for label, member in leaders.items()
        # what is fitted on top of a trained model has the same kernels
        if member.method == find_method(member.config.method).name
        and (seen := member.run.inspection()) is not None
    }
    if found:
        yield "kernel-spectra", figures.kernel_spectra(found)


def _of_shifts(comparison: Comparison) -> Iterator[tuple[str, figures.Figure]]:
    kinds = shift_kinds(comparison.splits("shift/"))
    if not kinds:
        return
    worst = max((s for splits in kinds.values() for s in splits if s is not None), default=None)
    panels = {
        METRICS[name].title: _shift_values(comparison, kinds, name, severity=worst) for name in BARS
    }
    yield "shift-bars", figures.shift_bars(panels)
    values = _shift_values(comparison, kinds, "aurc")
    yield "shift-lines", figures.shift_lines(values, metric="AURC, mean of all severities")


def _shift_values(
    comparison: Comparison,
    kinds: dict[str, Severities],
    metric: str,
    *,
    severity: int | None = None,
) -> dict[str, dict[str, list[float]]]:
    """{model: {kind: one value per seed}}: of one severity, or the mean over all of them."""
    values: dict[str, dict[str, list[float]]] = {}
    for model in comparison.models:
        for kind, splits in kinds.items():
            chosen = [
                name for s, name in splits.items() if severity is None or s in (severity, None)
            ]
            if found := _means(model, chosen, metric):
                values.setdefault(model.label, {})[kind] = found
    return values


def _means(model: Model, splits: Sequence[str], metric: str) -> list[float]:
    """The mean over splits, one value per seed; nothing where a seed lacks one."""
    columns = [model.values(split, metric) for split in splits]
    if not columns or any(len(column) != len(model.members) for column in columns):
        return []
    return np.mean(columns, axis=0).tolist()
