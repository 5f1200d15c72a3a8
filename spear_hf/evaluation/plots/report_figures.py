"""Figures of reports: errors by domain, error against learned numbers, accuracy on clean images."""

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

from spear_hf.errors import DataError
from spear_hf.evaluation.plots.canvas import LAST, SOURCE, colours, style_axes
from spear_hf.evaluation.report import Report
from spear_hf.utils.plotting import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vPX"  # SPeaR and its variants have a star


def error_by_domain(report: Report) -> "Figure":
    """A line for each domain from the error of the first method to that of the last, blue where the last is better.

    >>> from spear_hf.evaluation.plots.report_figures import error_by_domain
    >>> from spear_hf.evaluation.report import DomainResult, Report
    >>> report = Report([DomainResult("fog/5", 8, {"source": 60.0, "SPeaR": 45.0})], ["source", "SPeaR"])
    >>> [label.get_text() for label in error_by_domain(report).axes[0].get_yticklabels()]
    ['fog/5', 'mean']
    """
    rows = [*report.rows, report.mean_row()]
    found = {method: [row.error[method] for row in rows] for method in report.methods}
    figure = new_figure(7.2, 1.3 + 0.27 * len(rows))
    axes = figure.subplots()
    places, colour = list(range(len(rows)))[::-1], colours(report.methods)
    first, last = found[report.methods[0]], found[report.methods[-1]]
    for place, before, after in zip(places, first, last, strict=True):
        axes.plot([before, after], [place, place], color=LAST if after <= before else SOURCE, alpha=0.35, linewidth=2.5)
    for method in report.methods:
        is_end = method in (report.methods[0], report.methods[-1])
        axes.scatter(found[method], places, s=34 if is_end else 16, color=colour[method], label=method, zorder=3)
    axes.axhline(0.5, color="black", linewidth=0.6)
    axes.set_yticks(places, [row.domain for row in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlim(left=0)
    axes.set_xlabel("error in %, lower is better", fontsize=9)
    style_axes(axes, grid="x")
    figure.legend(loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    return figure


def error_against_parameters(points: Mapping[str, tuple[int, float]], title: str = "") -> "Figure":
    """The paper's figure 2: a mark for each method, its mean error against how many numbers it learns.

    The axis of numbers is logarithmic and begins at 0. The legend lists the methods from the lowest error.

    >>> from spear_hf.evaluation.plots.report_figures import error_against_parameters
    >>> figure = error_against_parameters({"source": (0, 60.0), "SPeaR": (352, 45.0)})
    >>> figure.axes[0].get_legend_handles_labels()[1]
    ['SPeaR  45.00', 'source  60.00']

    Args:
        points: method -> (numbers, error in percent), as `Report.points` and `Comparison.points` give them.
        title: above the figure.

    Raises:
        DataError: no points.
    """
    if not points:
        raise DataError("no report says how many numbers a method learns; run it again with this version")
    figure = new_figure(7.5, 4.0)
    axes = figure.subplots()
    colour = colours(list(points))
    markers = dict(zip(points, cycle(MARKERS), strict=False)) | {
        m: "*" for m in points if m.lower().startswith("spear")
    }
    for method, (count, error) in sorted(points.items(), key=lambda point: point[1][1]):
        label = f"{method}  {error:.2f}"
        size = 150 if markers[method] == "*" else 44
        axes.scatter(count, error, size, colour[method], marker=markers[method], label=label, zorder=3)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(-0.3, max(1, *(count for count, _ in points.values())) * 2)
    axes.margins(y=0.08)  # an axis from 0 would put methods a point apart on top of each other
    low, high = axes.get_ylim()
    axes.set_ylim(max(0, min(low, high - 5)), high)
    axes.set_xlabel("numbers learned", fontsize=9)
    axes.set_ylabel("mean error in %", fontsize=9)
    axes.set_title(title, fontsize=10)
    style_axes(axes)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False, title="error, lowest first", title_fontsize=8)
    return figure


def clean_accuracy(report: Report) -> "Figure":
    """The accuracy on clean images after each domain, with the source's: what adapting costs where there is no shift.

    >>> from spear_hf.evaluation.plots.report_figures import clean_accuracy
    >>> from spear_hf.evaluation.report import DomainResult, Report
    >>> report = Report([DomainResult("fog/5", 8, {"source": 10.0, "SPeaR": 11.0})], ["source", "SPeaR"])
    >>> [float(line.get_ydata()[0]) for line in clean_accuracy(report).axes[0].lines]
    [90.0, 89.0]

    Args:
        report: of `clean_along`: a row for each domain, in stream order.
    """
    figure = new_figure(9.0, 3.2)
    axes = figure.subplots()
    first, last = report.methods[0], report.methods[-1]
    names = [row.domain for row in report.rows]
    for method, style, colour in ((first, "--", SOURCE), (last, "o-", LAST)):
        values = [100 - row.error[method] for row in report.rows]
        axes.plot(range(len(names)), values, style, markersize=4, linewidth=1.3, color=colour, label=method)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, high - 5), high)  # at least 5 points high, so that a tenth of a point does not look steep
    axes.set_ylabel("accuracy on\nclean images, %", fontsize=9)
    axes.set_xlabel("after", fontsize=9)
    style_axes(axes)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure
