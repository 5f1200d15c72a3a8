"""Figures over the batches of a stream: error and entropy, distance from the identity, accuracy on clean images."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spear_hf.evaluation.batch_record import BatchRecord
from spear_hf.evaluation.plots.canvas import GREY, LAST, SOURCE, bands, blank, colours, is_many, need_steps, plain
from spear_hf.evaluation.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def running_error(steps: Sequence[BatchRecord], tau: float | None = None) -> "Figure":
    """Above, the error of each method so far in the domain; below, the entropy of each answer and what the gate did.

    Args:
        steps: of a run whose last method keeps StepRecords.
        tau: the threshold of the gate, as a line.
    """
    need_steps(steps, recorded=True)
    figure = blank(9.0, 4.6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    methods = list(steps[0].wrong)
    for method in (methods[0], *methods[1:-1], methods[-1]):
        label, values = method, errors_so_far(steps, method)
        for stretch in stretches(steps):
            numbers = [steps[i].batch for i in stretch]
            drawn = [values[i] for i in stretch]
            marker = "." if len(drawn) == 1 else ""
            above.plot(numbers, drawn, marker=marker, color=colours(methods)[method], linewidth=1.4, label=label)
            label = ""
    above.set_ylabel("error in the\ndomain so far, %", fontsize=9)
    above.set_ylim(bottom=0)
    _entropy(below, steps, tau)
    for axes in (above, below):
        plain(axes)
        bands(axes, steps, named=axes is above)
    below.set_xlabel("batch", fontsize=9)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _entropy(axes: "Axes", steps: Sequence[BatchRecord], tau: float | None) -> None:
    """A dot for each batch: filled where the RSPs moved, hollow where they did not."""
    recorded = [(record.batch, record.step) for record in steps if record.step is not None]
    for adapted, face, label in ((True, LAST, "learned from"), (False, "white", "only answered")):
        dots = [(batch, step.entropy) for batch, step in recorded if step.adapted is adapted]
        if dots:
            x, y = zip(*dots, strict=True)
            axes.scatter(x, y, 12, facecolor=face, edgecolor=LAST, linewidth=0.7, label=label, rasterized=is_many(x))
    if tau is not None:
        axes.axhline(tau, color=GREY, linewidth=0.9, linestyle="--", label=f"tau = {tau:g}")
    axes.set_ylabel("entropy of\nthe answer", fontsize=9)
    axes.set_ylim(bottom=0)


def distance_from_identity(steps: Sequence[BatchRecord]) -> "Figure":
    """||gamma - 1|| above and ||beta|| below, after each batch, a line for each boundary that is steered."""
    need_steps(steps)
    figure = blank(9.0, 4.2)
    panels = figure.subplots(2, 1, sharex=True)
    keys = sorted(
        {key for record in steps for key in record.deviations}, key=lambda key: [int(k) for k in key.split(".")]
    )
    shades = [_shade(i / max(1, len(keys) - 1)) for i in range(len(keys))]
    for part, (axes, name) in enumerate(zip(panels, ("||gamma - 1||", "||beta||"), strict=True)):
        for key, shade in zip(keys, shades, strict=True):
            held = [(r.batch, r.deviations[key][part]) for r in steps if key in r.deviations]
            label = f"depth {key}" if part == 0 else ""
            axes.plot(*zip(*held, strict=True), color=shade, linewidth=1.3, label=label)
        axes.set_ylabel(name, fontsize=9)
        axes.set_ylim(bottom=0)
        plain(axes)
        bands(axes, steps, named=part == 0)
    panels[-1].set_xlabel("batch", fontsize=9)
    if keys:
        figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def clean_accuracy(report: Report) -> "Figure":
    """What a stream costs on clean images: the accuracy there after each domain, against the source's.

    Args:
        report: of `clean_along`: a row for each domain, in stream order.
    """
    figure = blank(9.0, 3.2)
    axes = figure.subplots()
    first, last = report.methods[0], report.methods[-1]
    names = [row.domain for row in report.rows]
    for method, style, colour in ((first, "--", SOURCE), (last, "o-", LAST)):
        values = [100 - row.error[method] for row in report.rows]
        axes.plot(range(len(names)), values, style, markersize=4, linewidth=1.3, color=colour, label=method)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, high - 5), high)  # a tenth of a point is no cliff
    axes.set_ylabel("accuracy on\nclean images, %", fontsize=9)
    axes.set_xlabel("after", fontsize=9)
    plain(axes)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def errors_so_far(steps: Sequence[BatchRecord], method: str) -> list[float]:
    """After each batch, the error in percent of all answers since the domain began."""
    found, wrong, total = [], 0, 0
    for before, record in zip((None, *steps), steps, strict=False):
        if before is None or before.domain != record.domain:
            wrong = total = 0
        wrong, total = wrong + record.wrong[method], total + record.n
        found.append(100 * wrong / total if total else float("nan"))
    return found


def stretches(steps: Sequence[BatchRecord]) -> list[range]:
    """The places in `steps` of each stretch of one domain."""
    starts = [i for i, record in enumerate(steps) if i == 0 or steps[i - 1].domain != record.domain]
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], len(steps)], strict=True)]


def _shade(place: float) -> tuple[float, float, float]:
    """From light, the stem, to dark blue, the deepest boundary."""
    light, dark = (0.98, 0.65, 0.25), (0.10, 0.22, 0.50)
    red, green, blue = (a + (b - a) * place for a, b in zip(light, dark, strict=True))
    return red, green, blue
