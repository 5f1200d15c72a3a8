"""What the figures share: colours that belong to a method, axes without a frame, bands that show the domains."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from spear_hf.errors import DataError
from spear_hf.evaluation.report import BatchRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SOURCE, LAST, GREY = "#b4472c", "#1f5fa8", "#666666"
_OTHERS = ("#8a8a8a", "#c08a1e", "#3b8f5a", "#7b5ea7", "#3a9a9a", "#b05a8c", "#7a6a4f", "#5a7d2a")
_MAX_MARKS = 500  # an SVG holds up to this many marks one by one, and more of them as one image


def colours(methods: Sequence[str]) -> dict[str, str]:
    """method -> its colour; the first is the source, the last the method that the run is about.

    >>> from spear_hf.evaluation.plots.canvas import colours
    >>> colours(["source", "SPeaR"])
    {'source': '#b4472c', 'SPeaR': '#1f5fa8'}
    """
    middle = {name: _OTHERS[i % len(_OTHERS)] for i, name in enumerate(methods[1:-1])}
    return middle | {methods[0]: SOURCE} | ({methods[-1]: LAST} if len(methods) > 1 else {})


def style_axes(axes: "Axes", *, grid: str = "y") -> None:
    """Draw a thin grid behind the data, and no frame at the top and at the right.

    >>> from spear_hf.evaluation.plots.canvas import style_axes
    >>> from spear_hf.utils.plotting import new_figure
    >>> style_axes(new_figure(4, 3).subplots(), grid="x")
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, alpha=0.25, linewidth=0.6)  # pyright: ignore[reportArgumentType]
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)


def segments(steps: Sequence[BatchRecord]) -> Iterator[tuple[str, list[BatchRecord]]]:
    """(domain, its records) of each stretch of one domain.

    >>> from spear_hf.evaluation.plots.canvas import segments
    >>> from spear_hf.evaluation.report import BatchRecord
    >>> steps = [BatchRecord(i, domain, 8, {}) for i, domain in enumerate(["fog/5", "fog/5", "snow/5"])]
    >>> [(domain, len(records)) for domain, records in segments(steps)]
    [('fog/5', 2), ('snow/5', 1)]
    """
    for domain, group in groupby(steps, key=lambda record: record.domain):
        yield domain, list(group)


def shade_domains(axes: "Axes", steps: Sequence[BatchRecord], *, named: bool) -> None:
    """Draw a grey band behind every other domain, and their names above where `named` and where they fit.

    >>> from spear_hf.evaluation.plots.canvas import shade_domains
    >>> from spear_hf.evaluation.report import BatchRecord
    >>> from spear_hf.utils.plotting import new_figure
    >>> steps = [BatchRecord(i, domain, 8, {}) for i, domain in enumerate(["fog/5", "fog/5", "snow/5"])]
    >>> axes = new_figure(4, 3).subplots()
    >>> shade_domains(axes, steps, named=True)
    >>> [text.get_text() for text in axes.texts]
    ['fog/5', 'snow/5']
    """
    found = [(domain, records[0].batch, records[-1].batch) for domain, records in segments(steps)]
    for i, (domain, first, last) in enumerate(found):
        if i % 2:
            axes.axvspan(first - 0.5, last + 0.5, color="black", alpha=0.05, linewidth=0)
        if named and len(found) <= 40:
            axes.annotate(
                domain,
                ((first + last) / 2, 1.0),
                (0, 3),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                rotation=45 if len(found) > 4 else 0,
                ha="left" if len(found) > 4 else "center",
                va="bottom",
                fontsize=7,
                color=GREY,
            )
    axes.set_xlim(steps[0].batch - 0.5, steps[-1].batch + 0.5)
    axes.locator_params(axis="x", integer=True)


def is_many(marks: Sequence[Any]) -> bool:
    """Whether these marks are drawn as one image, so that the figure of a long stream stays a small file.

    >>> from spear_hf.evaluation.plots.canvas import is_many
    >>> is_many(range(2000))
    True
    """
    return len(marks) > _MAX_MARKS


def check_steps(steps: Sequence[BatchRecord], *, recorded: bool = False) -> None:
    """Raise DataError where there is no batch, or, if `recorded`, no batch with a StepRecord.

    >>> from spear_hf.evaluation.plots.canvas import check_steps
    >>> from spear_hf.evaluation.report import BatchRecord
    >>> check_steps([BatchRecord(0, "fog/5", 8, {"source": 4})])
    """
    if not steps or (recorded and all(record.step is None for record in steps)):
        what = "no batch" if not steps else "no batch with a StepRecord"
        raise DataError(f"there is {what} to draw; give the records that a RunFolder wrote of a run with Spear")
