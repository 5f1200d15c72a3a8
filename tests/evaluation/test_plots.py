"""Figures say what the data says; nobody looks at them here, but their artists can be asked."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from spear_hf.errors import ConfigError, DataError
from spear_hf.evaluation import plots
from spear_hf.evaluation.batch_record import BatchRecord
from spear_hf.evaluation.plots import canvas
from spear_hf.evaluation.plots.stream import errors_so_far
from spear_hf.evaluation.report import DomainResult, Report
from spear_hf.evaluation.run import Run
from spear_hf.learning.record import StepRecord


def batch(number: int, domain: str, wrong: int, *, adapted: bool = True) -> BatchRecord:
    """Eight images, all wrong by the source; entropy 0.1 for each of SPeaR's wrong answers."""
    step = StepRecord(number, 8, wrong / 10, adapted, None if adapted else "x", None, None, None, None, 0.1, 0.2)
    deviations = {"0": (0.1 * number, 0.2), "2": (0.3, 0.4 * number)}
    return BatchRecord(number, domain, 8, {"source": 8, "SPeaR": wrong}, {0: 6, 3: 2}, {0: 4, 1: 4}, step, deviations)


STEPS = [batch(0, "fog/5", 4), batch(1, "fog/5", 2), batch(2, "snow/5", 6, adapted=False)]
REPORT = Report(
    [
        DomainResult("fog/5", 16, {"source": 60.0, "SPeaR": 30.0}),
        DomainResult("snow/5", 8, {"source": 20.0, "SPeaR": 40.0}),
    ],
    ["source", "SPeaR"],
    {"config": {"tau": 0.25}},
    parameters={"source": 0, "SPeaR": 96},
)


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
    assert errors_so_far(STEPS, "SPeaR") == [50, 37.5, 75]
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


def test_error_against_parameters_has_a_dot_for_each_method() -> None:
    axes = plots.error_against_parameters([REPORT]).axes[0]
    assert [c.get_offsets().tolist() for c in axes.collections] == [[[0, 40]], [[96, 35]]]  # pyright: ignore
    with pytest.raises(DataError, match="no report says how many"):
        plots.error_against_parameters([replace(REPORT, parameters={})])


def test_a_long_stream_is_drawn_as_a_picture() -> None:
    def size(count: int) -> int:
        steps = [batch(i, "fog/5", 4) for i in range(count)]
        figure = plots.running_error(steps)
        return sum(c.get_rasterized() for c in figure.axes[1].collections)

    assert (size(20), size(2000)) == (0, 1)


def test_a_run_is_drawn_as_far_as_it_has_data() -> None:
    assert list(plots.figures_of(Run(REPORT, []))) == ["error_by_domain", "error_against_parameters"]
    assert list(plots.figures_of(Run(REPORT, STEPS, clean=REPORT))) == [
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
    with pytest.raises(ConfigError, match=r'needs? matplotlib, .*pip install "spear-hf\[plots\]"'):
        plots.error_by_domain(REPORT)


def test_importing_the_figures_does_not_import_matplotlib() -> None:
    code = "import spear_hf.evaluation.plots, sys; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
