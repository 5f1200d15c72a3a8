"""Figures say what the data says; nobody looks at them here, but their artists can be asked."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

import spear_hf.evaluation
from spear_hf.errors import ConfigError, DataError
from spear_hf.evaluation import plots
from spear_hf.evaluation.comparison import Comparison
from spear_hf.evaluation.plots import canvas
from spear_hf.evaluation.plots.batch_figures import errors_so_far
from spear_hf.evaluation.report import DomainResult, Report
from tests.builders import a_run, batch_record

REPORT, STEPS = a_run()


def labels(axes: Axes) -> list[str]:
    return axes.get_legend_handles_labels()[1]


def heights(axes: Axes) -> list[list[float]]:
    return [np.asarray(line.get_ydata()).tolist() for line in axes.lines]


def dots(axes: Axes, label: str) -> list[tuple[float, float]]:
    found = next(c for c in axes.collections if c.get_label() == label)
    return [(float(x), float(y)) for x, y in found.get_offsets()]  # pyright: ignore[reportGeneralTypeIssues]


def test_a_row_for_each_domain_and_the_mean_runs_from_source_to_spear() -> None:
    axes = plots.error_by_domain(REPORT).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["fog/5", "snow/5", "mean"]
    assert dots(axes, "source") == [(60, 2), (20, 1), (40, 0)]
    assert dots(axes, "SPeaR") == [(30, 2), (40, 1), (35, 0)]
    assert [line.get_color() for line in axes.lines[:3]] == [canvas.LAST, canvas.SOURCE, canvas.LAST]


def test_the_running_error_begins_anew_in_each_domain() -> None:
    assert errors_so_far(STEPS[:2], "SPeaR") == [50, 37.5]
    above, below = plots.running_error(STEPS, tau=0.25).axes
    assert heights(above) == [[100, 100], [100], [50, 37.5], [75]]
    assert (dots(below, "learned from"), dots(below, "only answered")) == ([(0, 0.4), (1, 0.2)], [(2, 0.6)])
    assert "tau = 0.25" in labels(below)


def test_every_other_domain_has_a_band_and_each_its_name() -> None:
    above = plots.running_error(STEPS).axes[0]
    assert [text.get_text() for text in above.texts] == ["fog/5", "snow/5"]
    assert [band.get_extents().transformed(above.transData.inverted()).width for band in above.patches] == [1.0]


def test_the_distance_has_a_line_for_each_boundary() -> None:
    gamma, beta = plots.distance_from_identity(STEPS).axes
    assert labels(gamma) == ["depth 0", "depth 2"]
    assert heights(gamma) == [[0.0, 0.1, 0.2], [0.3] * 3]
    assert heights(beta) == [[0.2] * 3, [0.0, 0.4, 0.8]]


def test_boundaries_are_drawn_in_the_order_of_their_depth() -> None:
    deep = [replace(STEPS[0], deviations={"10": (1.0, 1.0), "2.1": (1.0, 1.0), "2": (1.0, 1.0)})]
    assert labels(plots.distance_from_identity(deep).axes[0]) == ["depth 2", "depth 2.1", "depth 10"]


def test_the_histogram_counts_answers_and_labels_of_every_class() -> None:
    axes = plots.class_histogram(STEPS, ["shirt", "coat", "bag", "shoe"]).axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["shirt", "coat", "shoe"]
    assert [bar.get_height() for bar in axes.patches] == [18, 0, 6]  # pyright: ignore[reportAttributeAccessIssue]
    many = replace(STEPS[0], labels=dict.fromkeys(range(1000), 1))
    assert plots.class_histogram([many]).axes[0].get_xlabel().startswith("classes, the most frequent")


def test_clean_accuracy_is_a_line_beside_the_sources() -> None:
    axes = plots.clean_accuracy(REPORT).axes[0]
    assert heights(axes) == [[40, 80], [70, 60]]


def test_error_against_parameters_has_a_mark_for_each_method() -> None:
    axes = plots.error_against_parameters(REPORT.points()).axes[0]
    assert (dots(axes, "source  40.00"), dots(axes, "SPeaR  35.00")) == ([(0, 40)], [(96, 35)])
    assert labels(axes) == ["SPeaR  35.00", "source  40.00"]
    with pytest.raises(DataError, match="no report says how many"):
        plots.error_against_parameters(replace(REPORT, parameters={}).points())


def test_a_comparison_is_drawn_with_its_errors_averaged_over_batch_sizes(tmp_path: Path) -> None:
    both = Comparison({("tent", 4): tent(40.0), ("tent", 8): tent(20.0), ("sar", 4): tent(1.0), ("sar", 8): "no norm"})
    assert both.points() == {"tent": (96, 30.0)}
    assert plots.plot_parameters(both, tmp_path / "new" / "figure.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"no method of this comparison ran.*see refusals\(\)"):
        plots.plot_parameters(Comparison({("sar", 8): "no norm"}), tmp_path / "figure.png")


def tent(error: float) -> Report:
    return Report([DomainResult("fog/5", 8, {"tent": error})], ["tent"], parameters={"tent": 96})


def test_a_long_stream_is_drawn_as_a_picture() -> None:
    def size(count: int) -> int:
        steps = [batch_record(i, "fog/5", 4) for i in range(count)]
        figure = plots.running_error(steps)
        return sum(c.get_rasterized() for c in figure.axes[1].collections)

    assert (size(20), size(2000)) == (0, 1)


def test_a_run_is_drawn_as_far_as_it_has_data() -> None:
    assert list(plots.figures_of(REPORT)) == ["error_by_domain", "error_against_parameters"]
    assert list(plots.figures_of(REPORT, STEPS, REPORT)) == [
        "error_by_domain",
        "running_error",
        "distance_from_identity",
        "clean_accuracy",
        "class_histogram",
        "error_against_parameters",
    ]


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(DataError, match="there is no batch to draw; give the records that a RunFolder wrote"):
        plots.class_histogram([])
    with pytest.raises(DataError, match="no batch with a StepRecord"):
        plots.running_error([replace(STEPS[0], step=None)])


def test_figures_are_saved_beside_the_report(tmp_path: Path) -> None:
    REPORT.to_json(tmp_path / "report.json")
    saved = plots.save_figures(tmp_path)
    assert [path.name for path in saved] == ["error_by_domain.png", "error_against_parameters.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in saved)


def test_without_matplotlib_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r'need matplotlib, .*pip install "spear-hf\[plots\]"'):
        plots.error_by_domain(REPORT)


def test_importing_the_figures_does_not_import_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spear_hf.evaluation, "plots", plots)  # set back afterwards, as the modules are
    for name in [name for name in sys.modules if name.startswith(("matplotlib", plots.__name__))]:
        monkeypatch.delitem(sys.modules, name)
    importlib.import_module(plots.__name__)
    assert "matplotlib" not in sys.modules
