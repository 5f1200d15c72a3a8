"""Comparison: the reports of several methods at several batch sizes, side by side; tables and JSON."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any

from rich.table import Table

from spear_hf.evaluation.report import Report
from spear_hf.utils.files import write_atomically


@dataclass(frozen=True)
class Cell:
    """What one method gave at one batch size.

    Args:
        label: of the contender.
        batch_size: over all processes.
        report: of this method alone; None where it could not run.
        refusal: why it could not.
    """

    label: str
    batch_size: int
    report: Report | None
    refusal: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "label": self.label,
            "batch_size": self.batch_size,
            "refusal": self.refusal,
            "report": None if self.report is None else self.report.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Cell":
        """What `to_dict` wrote."""
        report = None if data["report"] is None else Report.from_dict(data["report"])
        return cls(data["label"], data["batch_size"], report, data["refusal"])


@dataclass
class Comparison:
    """Every method at every batch size.

    Args:
        cells: one for each pair.
        provenance: what all cells share: base, stream, contenders, package versions.
    """

    cells: list[Cell]
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """Of the contenders, in order."""
        return list(dict.fromkeys(cell.label for cell in self.cells))

    @property
    def batch_sizes(self) -> list[int]:
        """In order."""
        return list(dict.fromkeys(cell.batch_size for cell in self.cells))

    def report(self, label: str, batch_size: int) -> Report | None:
        """The report of one cell; None where the method could not run, or there is no such cell."""
        found = (cell.report for cell in self.cells if (cell.label, cell.batch_size) == (label, batch_size))
        return next(found, None)

    def error(self, label: str, batch_size: int) -> float:
        """Mean over the domains, in percent; NaN where there is no report."""
        report = self.report(label, batch_size)
        return nan if report is None else report.mean_error(label)

    def worst_rise(self, label: str, batch_size: int, source: str = "source") -> float:
        """The largest rise over the source's error in any one domain, in points; NaN without either report."""
        mine, theirs = self.report(label, batch_size), self.report(source, batch_size)
        if mine is None or theirs is None:
            return nan
        before = {row.domain: row.error[source] for row in theirs.rows}
        return max(row.error[label] - before[row.domain] for row in mine.rows)

    def errors(self, title: str | None = None) -> Table:
        """A row for each method, a column for each batch size; the lowest error in bold."""
        table = Table(title=title, caption="error in %, mean over the domains; lower is better")
        table.add_column("method")
        for size in self.batch_sizes:
            table.add_column(f"batch {size}", justify="right")
        best = {size: _least(self.error(label, size) for label in self.labels) for size in self.batch_sizes}
        for label in self.labels:
            values = {size: self.error(label, size) for size in self.batch_sizes}
            table.add_row(label, *(marked(value, best[size]) for size, value in values.items()))
        return table

    def domains(self, batch_size: int, title: str | None = None) -> Table:
        """A row for each domain, a column for each method that ran; the lowest error in bold."""
        reports = {label: report for label in self.labels if (report := self.report(label, batch_size)) is not None}
        table = Table(title=title, caption=f"error in % at batch {batch_size}; lower is better")
        table.add_column("corruption")
        for label in reports:
            table.add_column(label, justify="right")
        for place, row in enumerate(next(iter(reports.values())).rows if reports else []):
            errors = [report.rows[place].error[label] for label, report in reports.items()]
            table.add_row(row.domain, *(marked(error, min(errors)) for error in errors))
        table.add_section()
        means = [report.mean_error(label) for label, report in reports.items()]
        table.add_row("mean", *(marked(error, _least(means)) for error in means))
        return table

    def costs(self, batch_size: int, title: str | None = None) -> Table:
        """Error, worst rise over the source, calibration and cost of each method at one batch size."""
        kinds = {cell.report.memory_kind for cell in self.cells if cell.report is not None} - {""}
        table = Table(title=title, caption=f"MB: {', '.join(sorted(kinds)) or 'not measured'}; worst: rise in points")
        for name in ("method", "error %", "worst", "NLL", "ECE %", "learned", "ms / image", "MB"):
            table.add_column(name, justify="left" if name == "method" else "right")
        for label in self.labels:
            report = self.report(label, batch_size)
            if report is None:
                table.add_row(label, *["-"] * 7)
                continue
            rise, memory = self.worst_rise(label, batch_size), report.memory.get(label)
            table.add_row(
                label,
                f"{report.mean_error(label):.2f}",
                "-" if rise != rise else f"{rise:+.1f}",
                f"{report.mean_nll(label):.3f}",
                f"{report.mean_ece(label):.2f}",
                f"{report.parameters.get(label, 0):,}",
                f"{1000 * report.seconds_per_image(label):.2f}",
                "-" if memory is None else f"{memory / 1e6:.1f}",
            )
        return table

    def tables(self, title: str | None = None) -> list[Table]:
        """All there is to see: errors over the batch sizes, then domains and costs at each of them."""
        return [self.errors(title)] + [
            of(size, title) for size in self.batch_sizes for of in (self.domains, self.costs)
        ]

    def refusals(self) -> dict[str, str]:
        """label -> why it did not run, once for each reason."""
        return {cell.label: cell.refusal for cell in self.cells if cell.refusal is not None}

    def refusal_lines(self) -> list[str]:
        """The refusals, for people."""
        return [f"{label} did not run: {reason}" for label, reason in self.refusals().items()]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"cells": [cell.to_dict() for cell in self.cells], "provenance": self.provenance}

    def to_json(self, path: str | Path) -> Path:
        """Write it, atomically."""
        return write_atomically(path, json.dumps(self.to_dict(), indent=2) + "\n")

    @classmethod
    def from_json(cls, path: str | Path) -> "Comparison":
        """Read what `to_json` wrote."""
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls([Cell.from_dict(cell) for cell in data["cells"]], data["provenance"])


def marked(value: float, best: float, form: Callable[[float], str] = "{:.2f}".format) -> str:
    """A figure for a table: bold where it is the best, "-" where there is none."""
    text = "-" if value != value else form(value)
    return f"[bold]{text}[/bold]" if text == form(best) else text


def _least(values: Any) -> float:
    return min((value for value in values if value == value), default=nan)
