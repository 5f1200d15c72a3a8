"""Figures of errors: corruption by corruption, and against what a method learns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spear_hf.errors import DataError
from spear_hf.evaluation.plots.canvas import LAST, SOURCE, blank, colours, plain
from spear_hf.evaluation.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def error_by_domain(report: Report) -> "Figure":
    """A line for each domain from the error of the first method to that of the last, blue where the last is better."""
    names = [row.domain for row in report.rows] + ["mean"]
    found = {m: [row.error[m] for row in report.rows] + [report.mean_error(m)] for m in report.methods}
    figure = blank(7.2, 1.3 + 0.27 * len(names))
    axes = figure.subplots()
    places, colour = list(range(len(names)))[::-1], colours(report.methods)
    first, last = found[report.methods[0]], found[report.methods[-1]]
    for place, before, after in zip(places, first, last, strict=True):
        axes.plot([before, after], [place, place], color=LAST if after <= before else SOURCE, alpha=0.35, linewidth=2.5)
    for method in report.methods:
        is_end = method in (report.methods[0], report.methods[-1])
        axes.scatter(found[method], places, s=34 if is_end else 16, color=colour[method], label=method, zorder=3)
    axes.axhline(0.5, color="black", linewidth=0.6)
    axes.set_yticks(places, names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlim(left=0)
    axes.set_xlabel("error in %, lower is better", fontsize=9)
    plain(axes, grid="x")
    figure.legend(loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    return figure


def error_against_parameters(reports: Sequence[Report]) -> "Figure":
    """Mean error of every method against how many numbers it learns, on a logarithmic axis that begins at none.

    Raises:
        DataError: no report says how many numbers a method learns.
    """
    points = [
        (method, report.parameters[method], report.mean_error(method))
        for report in reports
        for method in report.methods
        if method in report.parameters
    ]
    if not points:
        raise DataError("no report says how many numbers a method learns; run it again with this version")
    figure = blank(5.4, 3.4)
    axes = figure.subplots()
    colour = colours(list(dict.fromkeys(method for method, _, _ in points)))
    for method, count, error in points:
        axes.scatter(count, error, s=40, color=colour[method], zorder=3)
        axes.annotate(method, (count, error), (6, 4), textcoords="offset points", fontsize=8)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(-0.3, max(1, *(count for _, count, _ in points)) * 8)
    axes.set_ylim(0, max(error for _, _, error in points) * 1.15 or 1)
    axes.set_xlabel("numbers learned", fontsize=9)
    axes.set_ylabel("mean error in %", fontsize=9)
    plain(axes)
    return figure
