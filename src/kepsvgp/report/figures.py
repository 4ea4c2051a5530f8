"""The paper's figures by matplotlib: plain data in, a `Figure` out.

Nothing here reads runs or touches global state, so that the page's `--figures` and the
reproduction of the paper draw with the same functions. Colours are Okabe and Ito's, and a
second mark (a hatch, a dash, a marker) tells apart what colour may not.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from kepsvgp.errors import UserError
from kepsvgp.files import replacing
from kepsvgp.metrics.selective import RiskCoverage
from kepsvgp.report.curves import FEW, Reliability
from kepsvgp.runs.inspection import Inspection

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
except ImportError:
    raise UserError(
        "figures need matplotlib, which is not installed: pip install 'kepsvgp[report]'."
    ) from None

COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#5F6368", "#9A8C00",
)  # fmt: skip
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "ooo", "+++")
DASHES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 2)), (0, (6, 2)))
MARKERS = "osD^vP*X"
# inches: the width of a column and of a page
COLUMN, PAGE = 3.25, 6.75
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.3,
    "hatch.linewidth": 0.5,
    # names with $ in them are no formulas
    "text.parse_math": False,
    # text as text, and the same bytes each time
    "svg.fonttype": "none",
    "svg.hashsalt": "kepsvgp",
}

# {model: {kind of shift: one value per seed}}
ShiftValues = Mapping[str, Mapping[str, Sequence[float]]]


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes a figure as PNG and SVG and returns both paths."""
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with mpl.rc_context(STYLE):
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else {}
            with replacing(path) as temporary:
                figure.savefig(temporary, format=path.suffix[1:], dpi=200, metadata=metadata)
    return paths


def _panels(rows: int, columns: int, width: float, height: float) -> tuple[Figure, ndarray]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _legend(figure: Figure, axis: Axes, columns: int) -> None:
    """One legend above everything, for the entries of one panel."""
    handles, labels = axis.get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside upper center", ncols=columns)


def _look(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)]}


@mpl.rc_context(STYLE)
def shift_bars(panels: Mapping[str, ShiftValues]) -> Figure:
    """Figure 2: bars per kind of shift, one panel a metric, models side by side.

    Args:
        panels: {title of the metric: {model: {kind: one value per seed}}}; a bar is the mean
            over seeds, its whisker the standard deviation.
    """
    figure, axes = _panels(len(panels), 1, PAGE, 1.5 * len(panels) + 0.5)
    for axis, (title, values) in zip(axes[:, 0], panels.items(), strict=True):
        kinds = list(dict.fromkeys(kind for model in values.values() for kind in model))
        width = 0.8 / max(len(values), 1)
        for place, (label, by_kind) in enumerate(values.items()):
            seeds = [by_kind.get(kind, ()) for kind in kinds]
            errors = [float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in seeds]
            axis.bar(
                np.arange(len(kinds)) + (place - (len(values) - 1) / 2) * width,
                _means(by_kind, kinds),
                width,
                yerr=errors if any(errors) else None,
                error_kw={"elinewidth": 0.6},
                label=label,
                color=COLOURS[place % len(COLOURS)],
                hatch=HATCHES[place % len(HATCHES)],
                edgecolor="white",
                linewidth=0.3,
            )
        axis.set_ylabel(title)
        _name_kinds(axis, kinds, show=axis is axes[-1, 0])
    _legend(figure, axes[0, 0], 5)
    return figure


def _means(by_kind: Mapping[str, Sequence[float]], kinds: Sequence[str]) -> list[float]:
    return [float(np.mean(by_kind.get(kind, [np.nan]))) for kind in kinds]


def _name_kinds(axis: Axes, kinds: Sequence[str], *, show: bool) -> None:
    axis.set_xticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds] if show else [])
    if show:
        axis.tick_params(axis="x", labelrotation=40)
        for label in axis.get_xticklabels():
            label.set_horizontalalignment("right")
            label.set_rotation_mode("anchor")


@mpl.rc_context(STYLE)
def confidence_separation(
    groups: Mapping[str, Mapping[str, Sequence[float] | Float[ndarray, " _"]]],
) -> Figure:
    """Figure 3: densities of confidence, one panel a model, one outline a group of examples.

    Args:
        groups: {model: {group, such as "ID correct" or "OOD": confidences}}.
    """
    figure, axes = _panels(1, len(groups), max(COLUMN, 1.9 * len(groups)), 2.0)
    edges = np.linspace(0, 1, 26)
    for axis, (label, parts) in zip(axes[0], groups.items(), strict=True):
        for place, (name, confidence) in enumerate(parts.items()):
            look = _look(place)
            if len(confidence):
                axis.hist(confidence, edges, density=True, histtype="step", label=name, **look)
                axis.hist(confidence, edges, density=True, alpha=0.15, color=look["color"])
        axis.set(title=label, xlabel="confidence", xlim=(0, 1))
    highest = max(axis.get_ylim()[1] for axis in axes[0])
    for axis in axes[0]:
        axis.set_ylim(0, highest)
    axes[0, 0].set_ylabel("density")
    # four names are wider than two panels
    _legend(figure, axes[0, 0], 4 if len(groups) > 2 else 2)
    return figure


@mpl.rc_context(STYLE)
def kernel_spectra(models: Mapping[str, Inspection]) -> Figure:
    """Figure 4: each layer's singular values, and the cumulative ones of all layers.

    Panels (a), (b) … show the normalised singular values of one layer for every model; the
    last shows the cumulative ones of every layer and model.
    """
    depth = max(len(spectra.layers) for spectra in models.values())
    figure, axes = _panels(1, depth + 1, max(PAGE, 2.2 * (depth + 1)), 2.1)
    for layer in range(depth):
        axis = axes[0, layer]
        for place, (label, spectra) in enumerate(models.items()):
            if layer < len(spectra.layers):
                values = spectra.layers[layer].singular_values
                axis.plot(range(1, len(values) + 1), values, label=label, **_look(place))
        letter = chr(ord("a") + layer)
        axis.set(title=f"({letter}) layer {layer + 1}", xlabel="singular value index")
    last = axes[0, depth]
    for place, spectra in enumerate(models.values()):
        for number, layer in enumerate(spectra.layers):
            look = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[number % 8]}
            cumulative = layer.cumulative
            last.plot(range(1, len(cumulative) + 1), cumulative, **look)
    letter = chr(ord("a") + depth)
    last.set(title=f"({letter}) cumulative", xlabel="singular value index", ylim=(None, 1.01))
    axes[0, 0].set_ylabel("normalised singular value")
    axes[0, 0].legend()
    lines = [
        Line2D([], [], color="0.3", linestyle=DASHES[n % 8], label=f"layer {n + 1}")
        for n in range(depth)
    ]
    last.legend(handles=lines, loc="lower right", title="colours as in (a)")
    return figure


@mpl.rc_context(STYLE)
def shift_lines(values: ShiftValues, *, metric: str = "AURC") -> Figure:
    """Figure 5: one value per kind of shift, a marked line for each model."""
    figure, axes = _panels(1, 1, 0.8 * PAGE, 2.8)
    axis = axes[0, 0]
    kinds = list(dict.fromkeys(kind for model in values.values() for kind in model))
    for place, (label, by_kind) in enumerate(values.items()):
        look = _look(place) | {"marker": MARKERS[place % len(MARKERS)], "ms": 3.5}
        axis.plot(range(len(kinds)), _means(by_kind, kinds), label=label, **look)
    axis.set_ylabel(metric)
    axis.grid(axis="y", linewidth=0.3)
    _name_kinds(axis, kinds, show=True)
    _legend(figure, axis, 5)
    return figure


@mpl.rc_context(STYLE)
def reliability_diagrams(models: Mapping[str, Reliability]) -> Figure:
    """Accuracy against confidence with 95% intervals, one panel a model."""
    figure, axes = _panels(1, len(models), max(COLUMN, 1.9 * len(models)), 2.0)
    for place, (axis, (label, bins)) in enumerate(zip(axes[0], models.items(), strict=True)):
        filled, hue = bins.count > 0, COLOURS[place % len(COLOURS)]
        centre = (bins.edges[:-1] + bins.edges[1:])[filled] / 2
        accuracy = bins.accuracy[filled]
        low, high = accuracy - bins.low[filled], bins.high[filled] - accuracy
        axis.bar(
            centre,
            accuracy,
            width=0.9 / len(bins.count),
            yerr=np.maximum([low, high], 0.0),
            error_kw={"elinewidth": 0.6},
            color=[(hue, 0.2 if count < FEW else 1.0) for count in bins.count[filled]],
        )
        axis.plot([0, 1], [0, 1], color="0.4", linestyle="--", linewidth=0.8)
        axis.set(title=label, xlabel="confidence", xlim=(0, 1), ylim=(0, 1.02))
    axes[0, 0].set_ylabel("accuracy")
    return figure


@mpl.rc_context(STYLE)
def risk_coverage_curves(models: Mapping[str, RiskCoverage]) -> Figure:
    """Selective risk against coverage, one curve a model."""
    figure, axes = _panels(1, 1, COLUMN, 2.4)
    axis = axes[0, 0]
    for place, (label, curve) in enumerate(models.items()):
        axis.plot(curve.coverage.numpy(), curve.risk.numpy(), label=label, **_look(place))
    axis.set(xlabel="coverage", ylabel="risk", xlim=(0, 1), ylim=(0, None))
    axis.legend(loc="upper left")
    return figure
