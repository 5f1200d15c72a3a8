"""Rows to a grid of means, and a grid to a table."""

from collections.abc import Hashable, Iterable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from rich import box
from rich.table import Table


class Grid(NamedTuple):
    """Means by two keys, in the order in which these came; a cell that no row fell into is missing."""

    rows: list[Any]
    columns: list[Any]
    cells: dict[tuple[Any, Any], float]

    def row(self, key: Hashable) -> list[float]:
        """One row's cells, NaN where there is none."""
        return [self.cells.get((key, column), float("nan")) for column in self.columns]

    def only(self, columns: Sequence[Any]) -> "Grid":
        """These columns, in this order."""
        return Grid(self.rows, list(columns), {key: value for key, value in self.cells.items() if key[1] in columns})


def grid(records: Iterable[Any], row: str, column: str, value: str) -> Grid:
    """The unweighted mean of `value` over all records that share `row` and `column` (attribute names)."""
    groups: dict[tuple[Any, Any], list[float]] = {}
    for record in records:
        groups.setdefault((getattr(record, row), getattr(record, column)), []).append(getattr(record, value))
    rows, columns = (list(dict.fromkeys(keys)) for keys in zip(*groups, strict=True)) if groups else ([], [])
    return Grid(rows, columns, {key: fmean(values) for key, values in groups.items()})


def summary(records: Iterable[Any], row: str, values: Sequence[str], *, mean: bool = False) -> Grid:
    """A column for each attribute in `values`, its unweighted mean over all records that share `row`.

    Args:
        mean: whether a last row "mean" averages over the others.
    """
    records = list(records)
    rows = list(dict.fromkeys(getattr(record, row) for record in records))
    cells = {(r, v): fmean(getattr(x, v) for x in records if getattr(x, row) == r) for r in rows for v in values}
    if mean:
        cells |= {("mean", v): fmean(cells[r, v] for r in rows) for v in values}
    return Grid([*rows, "mean"] if mean else rows, list(values), cells)


def shown(found: Grid, title: str, corner: str, digits: int = 2) -> Table:
    """A Markdown table with a line for each row key and a column for each column key."""
    table = Table(corner, title=title, box=box.MARKDOWN)
    for column in found.columns:
        table.add_column(f"{column}", justify="right", no_wrap=True)
    for key in found.rows:
        table.add_row(f"{key}", *(f"{value:.{digits}f}" for value in found.row(key)))
    return table
