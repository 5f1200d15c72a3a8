"""Grid: the means of some rows by two keys, as a table and as a panel of a figure (the extra `analysis`)."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich import box
from rich.table import Table

from spear_hf.utils.plotting import new_figure, save_figure


class Grid(NamedTuple):
    """Means by two keys, in the order in which the keys came; a cell without any row is missing.

    >>> from spear_hf.analysis.grids import Grid
    >>> Grid(["tent"], [4, 16], {("tent", 16): 40.0}).row("tent")
    [nan, 40.0]
    """

    rows: list[Any]
    columns: list[Any]
    cells: dict[tuple[Any, Any], float]

    def row(self, key: Hashable) -> list[float]:
        """The cells of one row, NaN where one is missing."""
        return [self.cells.get((key, column), float("nan")) for column in self.columns]

    def only(self, columns: Sequence[Any]) -> "Grid":
        """The grid of these columns, in this order."""
        return Grid(self.rows, list(columns), {key: value for key, value in self.cells.items() if key[1] in columns})


def grid(records: Iterable[Any], row: str, column: str, value: str) -> Grid:
    """The unweighted mean of the attribute `value` over all records with the same attributes `row` and `column`.

    >>> from spear_hf.analysis import AlphaRow
    >>> from spear_hf.analysis.grids import grid
    >>> rows = [AlphaRow("fog", 0.5, 16, 0.0, 40.0), AlphaRow("snow", 0.5, 16, 0.0, 50.0)]
    >>> grid(rows, "alpha", "batch_size", "learned").cells
    {(0.5, 16): 45.0}
    """
    groups: dict[tuple[Any, Any], list[float]] = {}
    for record in records:
        groups.setdefault((getattr(record, row), getattr(record, column)), []).append(getattr(record, value))
    rows, columns = (list(dict.fromkeys(keys)) for keys in zip(*groups, strict=True)) if groups else ([], [])
    return Grid(rows, columns, {key: fmean(values) for key, values in groups.items()})


def summary(records: Iterable[Any], row: str, values: Sequence[str], *, mean: bool = False) -> Grid:
    """A column for each attribute in `values`: its unweighted mean over all records with the same attribute `row`.

    >>> from spear_hf.analysis import AlphaRow
    >>> from spear_hf.analysis.grids import summary
    >>> rows = [AlphaRow("fog", 0.5, 16, 60.0, 40.0), AlphaRow("snow", 0.5, 16, 70.0, 50.0)]
    >>> summary(rows, "domain", ["unlearned", "learned"], mean=True).row("mean")
    [65.0, 45.0]

    Args:
        records: the rows.
        row: the attribute that the rows of the grid go by.
        values: the attributes that become columns.
        mean: whether a last row "mean" averages the others.
    """
    records = list(records)
    rows = list(dict.fromkeys(getattr(record, row) for record in records))
    cells = {(r, v): fmean(getattr(x, v) for x in records if getattr(x, row) == r) for r in rows for v in values}
    if mean:
        cells |= {("mean", v): fmean(cells[r, v] for r in rows) for v in values}
    return Grid([*rows, "mean"] if mean else rows, list(values), cells)


def shown(found: Grid, title: str, corner: str, digits: int = 2) -> Table:
    """A Markdown table of a grid, with `corner` above its row keys.

    >>> from spear_hf.analysis.grids import Grid, shown
    >>> shown(Grid(["tent"], [16], {("tent", 16): 40.0}), "errors", "method").row_count
    1
    """
    table = Table(corner, title=title, box=box.MARKDOWN)
    for column in found.columns:
        table.add_column(f"{column}", justify="right", no_wrap=True)
    for key in found.rows:
        table.add_row(f"{key}", *(f"{value:.{digits}f}" for value in found.row(key)))
    return table


Draw = Callable[[Any, Grid], None]
"""Draws a grid on matplotlib axes."""


def save_panels(path: Path, panels: Mapping[str, Grid], draw: Draw, *, y: str, x: str, width: float = 5.0) -> Path:
    """Write a figure with a panel for each grid, its title above it, and one legend; returns the path.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from spear_hf.analysis.grids import Grid, lines, save_panels
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     panels = {"batch 16": Grid(["tent"], [0, 1], {("tent", 0): 40.0, ("tent", 1): 30.0})}
    ...     print(save_panels(Path(folder, "amd.png"), panels, lines, y="AMD", x="depth").name)
    amd.png

    Args:
        path: the suffix says the format.
        panels: title -> grid.
        draw: `lines`, `bars` or `heat_map`.
        y, x: labels of the axes.
        width: of a panel, in inches.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figure = new_figure(width * len(panels), 3.4)
    axes = figure.subplots(1, len(panels), sharey=draw is not heat_map, squeeze=False)[0]
    for axis, (title, found) in zip(axes, panels.items(), strict=True):
        draw(axis, found)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(x)
    axes[0].set_ylabel(y)
    if axes[0].get_legend_handles_labels()[0]:
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    return save_figure(figure, path, dpi=110)


def lines(axis: Any, found: Grid) -> None:
    """Draw a line for each row of the grid over its columns; rows called "none" or "source" are dashed.

    >>> from spear_hf.analysis.grids import Grid, lines
    >>> from spear_hf.utils.plotting import new_figure
    >>> lines(new_figure(4, 3).subplots(), Grid(["none"], [0, 1], {("none", 0): 1.0, ("none", 1): 2.0}))
    """
    for key, marker in zip(found.rows, cycle("os^vDPX*"), strict=False):
        style = "--" if key in ("none", "source") else "-"
        axis.plot([f"{c}" for c in found.columns], found.row(key), style, marker=marker, markersize=4, label=f"{key}")
    axis.grid(alpha=0.3)


def bars(axis: Any, found: Grid) -> None:
    """Draw a group of bars for each row of the grid, one bar for each column.

    >>> from spear_hf.analysis.grids import Grid, bars
    >>> from spear_hf.utils.plotting import new_figure
    >>> bars(new_figure(4, 3).subplots(), Grid(["fog"], ["gate"], {("fog", "gate"): 40.0}))
    """
    width = 0.8 / len(found.columns)
    for i, column in enumerate(found.columns):
        places = [k + (i - (len(found.columns) - 1) / 2) * width for k in range(len(found.rows))]
        axis.bar(places, [found.cells[key, column] for key in found.rows], width, label=f"{column}")
    axis.set_xticks(range(len(found.rows)), [f"{key}" for key in found.rows], rotation=45, ha="right", fontsize=8)
    axis.grid(axis="y", alpha=0.3)


def heat_map(axis: Any, found: Grid) -> None:
    """Draw the cells of the grid as colours with their numbers; the lowest of each column is bold.

    >>> from spear_hf.analysis.grids import Grid, heat_map
    >>> from spear_hf.utils.plotting import new_figure
    >>> heat_map(new_figure(4, 3).subplots(), Grid([0.5], [16], {(0.5, 16): 40.0}))
    """
    values = [found.row(key) for key in found.rows]
    axis.imshow(values, cmap="viridis_r", aspect="auto")
    axis.set_xticks(range(len(found.columns)), [f"{c}" for c in found.columns])
    axis.set_yticks(range(len(found.rows)), [f"{r}" for r in found.rows])
    middle = (min(found.cells.values()) + max(found.cells.values())) / 2
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            best = value == min(line[j] for line in values)
            colour = "white" if value > middle else "black"
            axis.text(j, i, f"{value:.1f}", ha="center", va="center", color=colour, weight="bold" if best else "normal")
