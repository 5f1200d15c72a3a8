"""What the figures share: an empty figure, colours that stay with a method, bands that show the domains."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from spear_hf.errors import ConfigError, DataError
from spear_hf.evaluation.batch_record import BatchRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE, LAST, GREY = "#b4472c", "#1f5fa8", "#666666"
_OTHERS = ("#8a8a8a", "#c08a1e", "#3b8f5a", "#7b5ea7", "#3a9a9a", "#b05a8c", "#7a6a4f", "#5a7d2a")
_MANY = 500  # marks that an SVG holds as a picture rather than one by one


def blank(width: float, height: float) -> "Figure":
    """An empty figure of this many inches, which belongs to no window.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('figures need matplotlib, which is not installed; pip install "spear-hf[plots]"') from error
    return Figure(figsize=(width, height), layout="constrained")


def colours(methods: Sequence[str]) -> dict[str, str]:
    """A colour for each method: the first is the source, the last the one that a run is about."""
    middle = {name: _OTHERS[i % len(_OTHERS)] for i, name in enumerate(methods[1:-1])}
    return middle | {methods[0]: SOURCE} | ({methods[-1]: LAST} if len(methods) > 1 else {})


def plain(axes: "Axes", *, grid: str = "y") -> None:
    """Thin lines behind the data, and no frame above and beside it."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, alpha=0.25, linewidth=0.6)  # pyright: ignore[reportArgumentType]
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)


def segments(steps: Sequence[BatchRecord]) -> Iterator[tuple[str, int, int]]:
    """(domain, first batch, batch after the last) of each stretch of one domain."""
    for domain, group in groupby(steps, key=lambda record: record.domain):
        numbers = [record.batch for record in group]
        yield domain, numbers[0], numbers[-1] + 1


def bands(axes: "Axes", steps: Sequence[BatchRecord], *, named: bool) -> None:
    """A grey band behind every other domain, and the names above where `named` and where there is room for them."""
    found = list(segments(steps))
    for i, (domain, start, stop) in enumerate(found):
        if i % 2:
            axes.axvspan(start - 0.5, stop - 0.5, color="black", alpha=0.05, linewidth=0)
        if named and len(found) <= 40:
            middle = (start + stop - 1) / 2
            axes.annotate(
                domain,
                (middle, 1.0),
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
    """Whether these are drawn as one picture, so that a figure of a long stream stays small."""
    return len(marks) > _MANY


def need_steps(steps: Sequence[BatchRecord], *, recorded: bool = False) -> None:
    """Raise DataError unless there are batches, and StepRecords among them where `recorded`."""
    if not steps or (recorded and all(record.step is None for record in steps)):
        what = "no batch" if not steps else "no batch with a StepRecord"
        raise DataError(f"there is {what} to draw; give the records that a RunFolder wrote of a run with Spear")
