"""Which figures some runs can fill, drawn and written as PNG and SVG."""

import re
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path

import numpy as np

from kepsvgp.metrics import risk_coverage_curve
from kepsvgp.report import figures
from kepsvgp.report.curves import reliability
from kepsvgp.report.models import Comparison, Member, Model, compare
from kepsvgp.report.summary import METRICS
from kepsvgp.runs.folder import find_runs

SHIFT_METRICS = ("accuracy", "aurc", "ece", "nll")


def write_figures(
    runs: Sequence[Path], folder: Path, *, checkpoint: str | None = None
) -> list[Path]:
    """Draws every figure for which these runs have the numbers; returns the files.

    `shift-bars`, `confidence`, `kernel-spectra` and `shift-lines` are laid out as figures 2 to 5
    of the paper. Where a figure shows examples it shows those of the first seed.
    """
    comparisons = compare([run.path for run in find_runs(runs)], checkpoint=checkpoint)
    written: list[Path] = []
    names = _file_names([comparison.title for comparison in comparisons])
    for comparison, own in zip(comparisons, names, strict=True):
        prefix = f"{own}-" if len(comparisons) > 1 else ""
        for name, figure in _drawn(comparison).items():
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


def _drawn(comparison: Comparison) -> dict[str, figures.Figure]:
    drawn = {}
    leaders = {m.label: m.members[0] for m in comparison.models if m.members[0].test is not None}
    if leaders:
        tests = {label: member.test for label, member in leaders.items() if member.test is not None}
        drawn["reliability"] = figures.reliability_diagrams(
            {label: reliability(test.confidence, test.correct) for label, test in tests.items()}
        )
        drawn["risk-coverage"] = figures.risk_coverage_curves(
            {
                label: risk_coverage_curve(test.confidence, test.correct)
                for label, test in tests.items()
            }
        )
        drawn["confidence"] = figures.confidence_separation(
            {label: _groups(member, comparison.splits("ood/")) for label, member in leaders.items()}
        )
    kinds = shift_kinds(comparison)
    if kinds:
        worst = max((s for splits in kinds.values() for s in splits if s is not None), default=None)
        drawn["shift-bars"] = figures.shift_bars(
            {
                metric.title: _shift_values(comparison, kinds, metric.key, severity=worst)
                for metric in METRICS
                if metric.key in SHIFT_METRICS
            }
        )
        drawn["shift-lines"] = figures.shift_lines(
            _shift_values(comparison, kinds, "aurc"), metric="AURC, mean of all severities"
        )
    spectra = {
        model.label: model.members[0].run.spectra
        for model in comparison.models
        if model.method == model.members[0].run.method and model.members[0].run.spectra is not None
    }
    if spectra:
        drawn["kernel-spectra"] = figures.kernel_spectra(
            {label: found for label, found in spectra.items() if found is not None}
        )
    return drawn


def _groups(member: Member, foreign: Sequence[str]) -> dict[str, np.ndarray]:
    assert member.test is not None
    groups = {
        "ID correct": member.test.confidence[member.test.correct],
        "ID wrong": member.test.confidence[~member.test.correct],
    }
    for split in foreign:
        found = member.predictions(split)
        if found is not None:
            groups[f"OOD {split.removeprefix('ood/')}"] = found.confidence
    return groups


def shift_kinds(comparison: Comparison) -> dict[str, dict[int | None, str]]:
    """{kind of shift: {severity: split}}; a shift without degrees has the severity None."""
    kinds: dict[str, dict[int | None, str]] = {}
    for split in comparison.splits("shift/"):
        kind, _, last = split.removeprefix("shift/").rpartition("/")
        severity = int(last) if kind and last.isdigit() else None
        name = kind if severity is not None else split.removeprefix("shift/")
        kinds.setdefault(name, {})[severity] = split
    return kinds


def _shift_values(
    comparison: Comparison,
    kinds: dict[str, dict[int | None, str]],
    metric: str,
    *,
    severity: int | None = None,
) -> dict[str, dict[str, list[float]]]:
    """{model: {kind: one value per seed}}: of one severity, or the mean over all of them."""
    values: dict[str, dict[str, list[float]]] = {}
    for model in comparison.models:
        by_kind = {
            kind: found
            for kind, splits in kinds.items()
            if (found := _over_severities(model, splits, metric, severity))
        }
        if by_kind:
            values[model.label] = by_kind
    return values


def _over_severities(
    model: Model, splits: dict[int | None, str], metric: str, severity: int | None
) -> list[float]:
    chosen = [split for s, split in splits.items() if severity is None or s in (severity, None)]
    columns = [model.values(split, metric) for split in chosen]
    if not columns or any(len(column) != len(model.members) for column in columns):
        return []
    return np.mean(columns, axis=0).tolist()
