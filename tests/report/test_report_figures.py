import numpy as np
import pytest
from PIL import Image
from report.folders import made_inspection

from kepsvgp.metrics import risk_coverage_curve
from kepsvgp.paper.figures import shift_kind
from kepsvgp.report import figures
from kepsvgp.report.curves import reliability
from kepsvgp.report.figure_files import _file_names, write_figures


@pytest.fixture
def confidence() -> np.ndarray:
    return np.random.default_rng(0).uniform(0.3, 1.0, 200)


def test_shift_bars_are_the_means_over_seeds() -> None:
    values = {"A": {"fog": [0.5, 0.7], "snow": [0.2, 0.2]}, "B": {"fog": [0.9]}}

    figure = figures.shift_bars({"Accuracy": values})

    heights = [bar.get_height() for bar in figure.axes[0].patches]
    np.testing.assert_allclose(heights, [0.6, 0.2, 0.9, np.nan])
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["fog", "snow"]


def test_shift_lines_follow_the_values() -> None:
    figure = figures.shift_lines({"A": {"fog": [0.1, 0.3], "snow": [0.4]}})

    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), [0.2, 0.4])


@pytest.mark.parametrize("models", [1, 2, 3, 4])
def test_legend_of_confidence_separation_fits_the_figure(confidence, models) -> None:
    names = ("ID correct", "ID wrong", "OOD SVHN", "OOD CIFAR-100")
    groups = dict.fromkeys(names, confidence) | {"none": confidence[:0]}
    labels = [f"model {place}" for place in range(models)]
    figure = figures.confidence_separation(dict.fromkeys(labels, groups))
    assert [axis.get_title() for axis in figure.axes] == labels
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width


def test_kernel_spectra_have_a_panel_per_layer_and_the_cumulative_one() -> None:
    spectra = made_inspection(5)

    figure = figures.kernel_spectra({"KEP-SVGP": spectra, "MSP": spectra})

    assert len(figure.axes) == 3
    drawn = figure.axes[0].lines[0].get_ydata()
    np.testing.assert_allclose(drawn, spectra.layers[0].singular_values)
    np.testing.assert_allclose(figure.axes[2].lines[1].get_ydata(), spectra.layers[1].cumulative)


def test_reliability_diagrams_draw_filled_bins_alone(confidence) -> None:
    bins = reliability(confidence, confidence > 0.6)

    figure = figures.reliability_diagrams({"A": bins})

    heights = [bar.get_height() for bar in figure.axes[0].patches]
    np.testing.assert_allclose(heights, bins.accuracy[bins.count > 0])


def test_risk_coverage_curves_are_the_curve(confidence) -> None:
    curve = risk_coverage_curve(confidence, confidence > 0.5)

    figure = figures.risk_coverage_curves({"A": curve})

    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), curve.risk.numpy())


def test_save_figure_writes_the_same_bytes_twice(tmp_path, confidence) -> None:
    curve = risk_coverage_curve(confidence, confidence > 0.5)

    first = figures.save_figure(figures.risk_coverage_curves({"A": curve}), tmp_path / "a", "x")
    second = figures.save_figure(figures.risk_coverage_curves({"A": curve}), tmp_path / "b", "x")

    assert [path.name for path in first] == ["x.png", "x.svg"]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    with Image.open(first[0]) as image:
        assert min(image.size) > 300


def test_names_are_drawn_as_they_are(tmp_path, confidence) -> None:
    name = r"$\frac{$ \\$5 $x^2$"
    shifts = {name: {name: [0.1]}}
    drawn = (
        figures.shift_bars({name: shifts}),
        figures.shift_lines(shifts, metric=name),
        figures.confidence_separation({name: {name: confidence}}),
        figures.kernel_spectra({name: made_inspection(5)}),
        figures.reliability_diagrams({name: reliability(confidence, confidence > 0.6)}),
        figures.risk_coverage_curves({name: risk_coverage_curve(confidence, confidence > 0.5)}),
    )
    for number, figure in enumerate(drawn):
        _, svg = figures.save_figure(figure, tmp_path, str(number))
        assert name in svg.read_text(encoding="utf-8")


def test_write_figures_leaves_out_what_the_runs_do_not_have(digits_runs, tmp_path) -> None:
    # MSP without inspect.json
    written = write_figures([digits_runs[1]], tmp_path)

    names = {path.stem for path in written}
    assert names == {"reliability", "risk-coverage", "confidence", "shift-bars", "shift-lines"}


@pytest.mark.parametrize(
    ("split", "kind"),
    [("fog/5", ("fog", 5)), ("a/b/1", ("a/b", 1)), ("genre", ("genre", None)), ("7", ("7", None))],
)
def test_shifts_are_split_into_kinds_and_severities(split, kind) -> None:
    assert shift_kind(f"shift/{split}") == kind


def test_files_of_every_data_set_have_a_name_of_their_own() -> None:
    names = _file_names(["отзывы", "评论", "my_data v2", "my data/v2", "…", "???", "../up"])
    assert names[:4] == ["отзывы", "评论", "my-data-v2", "my-data-v2-2"]
    assert names[4:] == ["benchmark", "benchmark-2", "up"]
