"""Figures of the batches of a stream: errors and entropy, distance from the identity, predicted classes."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spear_hf.evaluation.plots.canvas import (
    GREY,
    LAST,
    check_steps,
    colours,
    is_many,
    segments,
    shade_domains,
    style_axes,
)
from spear_hf.evaluation.report import BatchRecord
from spear_hf.utils.plotting import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BARS = 40


def running_error(steps: Sequence[BatchRecord], tau: float | None = None) -> "Figure":
    """Above, the error so far in the domain of each method; below, the entropy of each batch and what the gate did.

    Without labels there is no upper part.

    >>> from spear_hf.evaluation.plots.batch_figures import running_error
    >>> from spear_hf.evaluation.report import BatchRecord
    >>> from spear_hf.learning.record import StepRecord
    >>> step = StepRecord(0, 8, 0.4, True, None, 0.1, -2.0, 0.0, -1.9, 0.1, 0.2)
    >>> figure = running_error([BatchRecord(0, "fog/5", 8, {"source": 4, "SPeaR": 2}, step=step)], tau=0.3)
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['error in the\\ndomain so far, %', 'entropy of\\nthe answer']

    Args:
        steps: of a run whose last method keeps StepRecords.
        tau: the threshold of the gate, drawn as a line.

    Raises:
        DataError: no batch has a StepRecord.
    """
    check_steps(steps, recorded=True)
    methods = list(steps[0].wrong)
    figure = new_figure(9.0, 4.6 if methods else 2.6)
    panels = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2]) if methods else [figure.subplots()]
    above, below = panels[0], panels[-1]
    for method in methods:
        label = method
        for _, records in segments(steps):
            values, marker = errors_so_far(records, method), "." if len(records) == 1 else ""
            numbers = [record.batch for record in records]
            above.plot(numbers, values, marker=marker, color=colours(methods)[method], linewidth=1.4, label=label)
            label = ""  # one entry in the legend for each method
    if methods:
        above.set_ylabel("error in the\ndomain so far, %", fontsize=9)
        above.set_ylim(bottom=0)
    _entropy(below, steps, tau)
    for axes in panels:
        style_axes(axes)
        shade_domains(axes, steps, named=axes is above)
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


def errors_so_far(records: Sequence[BatchRecord], method: str) -> list[float]:
    """After each batch of one domain, the error in percent of all images so far.

    >>> from spear_hf.evaluation.plots.batch_figures import errors_so_far
    >>> from spear_hf.evaluation.report import BatchRecord
    >>> errors_so_far([BatchRecord(0, "fog/5", 8, {"tent": 4}), BatchRecord(1, "fog/5", 8, {"tent": 0})], "tent")
    [50.0, 25.0]
    """
    found, wrong, total = [], 0, 0
    for record in records:
        wrong, total = wrong + record.wrong[method], total + record.n
        found.append(100 * wrong / total if total else float("nan"))
    return found


def distance_from_identity(steps: Sequence[BatchRecord]) -> "Figure":
    """||gamma - 1|| above and ||beta|| below, after each batch, with a line for each steered boundary.

    >>> from spear_hf.evaluation.plots.batch_figures import distance_from_identity
    >>> from spear_hf.evaluation.report import BatchRecord
    >>> figure = distance_from_identity([BatchRecord(0, "fog/5", 8, {}, deviations={"0": (0.1, 0.2)})])
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['||gamma - 1||', '||beta||']

    Raises:
        DataError: no batch.
    """
    check_steps(steps)
    figure = new_figure(9.0, 4.2)
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
        style_axes(axes)
        shade_domains(axes, steps, named=part == 0)
    panels[-1].set_xlabel("batch", fontsize=9)
    if keys:
        figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _shade(place: float) -> tuple[float, float, float]:
    """A colour from light (0, the stem) to dark blue (1, the deepest boundary)."""
    light, dark = (0.98, 0.65, 0.25), (0.10, 0.22, 0.50)
    red, green, blue = (a + (b - a) * place for a, b in zip(light, dark, strict=True))
    return red, green, blue


def class_histogram(steps: Sequence[BatchRecord], names: Sequence[str] | None = None) -> "Figure":
    """How often the last method predicted each class, and how often it was the label: a collapse shows as a few bars.

    More than `MAX_BARS` classes are drawn as two curves, from the most to the least frequent class.

    >>> from spear_hf.evaluation.plots.batch_figures import class_histogram
    >>> from spear_hf.evaluation.report import BatchRecord
    >>> figure = class_histogram([BatchRecord(0, "fog/5", 8, {}, answers={0: 8}, labels={0: 4, 1: 4})])
    >>> [int(bar.get_height()) for bar in figure.axes[0].patches]
    [8, 0]

    Args:
        steps: the batches.
        names: of the classes, in index order.

    Raises:
        DataError: no batch.
    """
    check_steps(steps)
    answers: Counter[int] = sum((Counter(record.answers) for record in steps), Counter())
    labels: Counter[int] = sum((Counter(record.labels) for record in steps), Counter())
    classes = sorted(answers | labels)
    figure = new_figure(7.2, 3.2)
    axes = figure.subplots()
    if len(classes) > MAX_BARS:
        curves = ((labels, GREY, "labels"), (answers, LAST, "answers"))
        for counts, colour, name in curves if labels else curves[1:]:
            axes.step(range(len(classes)), sorted((counts[c] for c in classes), reverse=True), color=colour, label=name)
        axes.set_xlabel("classes, the most frequent first", fontsize=9)
    else:
        places = range(len(classes))
        axes.bar(places, [answers[c] for c in classes], 0.75, color=LAST, alpha=0.75, label="answers")
        if labels:
            heights = [labels[c] for c in classes]
            axes.hlines(heights, [p - 0.42 for p in places], [p + 0.42 for p in places], GREY, label="labels")
        shown = [str(c) if names is None else names[c] for c in classes]
        axes.set_xticks(places, shown, rotation=0 if names is None else 40, ha="center" if names is None else "right")
    axes.set_ylabel("images", fontsize=9)
    axes.set_ylim(bottom=0)
    style_axes(axes)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure
