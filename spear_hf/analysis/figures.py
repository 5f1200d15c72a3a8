"""Figures from grids, one panel for each: lines, bars, a heat map. Needs matplotlib (the extra `analysis`)."""

from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

from spear_hf.analysis.tables import Grid
from spear_hf.errors import ConfigError

Draw = Callable[[Any, Grid], None]


def save_panels(path: Path, panels: Mapping[str, Grid], draw: Draw, *, y: str, x: str, width: float = 5.0) -> Path:
    """Write one PNG with a panel for each grid, its title above it, and one legend; returns the path.

    Args:
        draw: `lines`, `bars` or `heat_map`.
        y, x: what the axes show.
        width: of a panel, in inches.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('a figure needs matplotlib, which is not installed; pip install "spear-hf[analysis]"') from (
            error
        )
    figure = Figure(figsize=(width * len(panels), 3.4), layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever the user's default is
    axes = figure.subplots(1, len(panels), sharey=draw is not heat_map, squeeze=False)[0]
    for axis, (title, found) in zip(axes, panels.items(), strict=True):
        draw(axis, found)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(x)
    axes[0].set_ylabel(y)
    if axes[0].get_legend_handles_labels()[0]:
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def lines(axis: Any, found: Grid) -> None:
    """One line for each row of the grid, over its columns; rows called "none" or "source" are dashed."""
    for key, marker in zip(found.rows, cycle("os^vDPX*"), strict=False):
        style = "--" if key in ("none", "source") else "-"
        axis.plot([f"{c}" for c in found.columns], found.row(key), style, marker=marker, markersize=4, label=f"{key}")
    axis.grid(alpha=0.3)


def bars(axis: Any, found: Grid) -> None:
    """A group of bars for each row of the grid, one bar for each column."""
    width = 0.8 / len(found.columns)
    for i, column in enumerate(found.columns):
        places = [k + (i - (len(found.columns) - 1) / 2) * width for k in range(len(found.rows))]
        axis.bar(places, [found.cells[key, column] for key in found.rows], width, label=f"{column}")
    axis.set_xticks(range(len(found.rows)), [f"{key}" for key in found.rows], rotation=45, ha="right", fontsize=8)
    axis.grid(axis="y", alpha=0.3)


def heat_map(axis: Any, found: Grid) -> None:
    """The grid's cells, coloured and written out; the lowest of each column is bold."""
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
