"""Comparison: the reports of several methods at several batch sizes, as tables and as JSON."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from spear_hf.evaluation.metrics import mean
from spear_hf.evaluation.report import DomainResult, Report, lowest, marked
from spear_hf.utils.files import write_atomically
from spear_hf.utils.strict_json import strict_json

_PARTS = ("error", "nll", "ece")


@dataclass
class Comparison:
    """The results of every method at every batch size.

    >>> from spear_hf.evaluation.comparison import Comparison
    >>> from spear_hf.evaluation.report import DomainResult, Report
    >>> report = Report([DomainResult("fog/5", 8, {"tent": 40.0})], ["tent"])
    >>> Comparison({("tent", 16): report, ("sar", 16): "it has no normalisation layer"}).error("tent", 16)
    40.0

    Args:
        cells: (label, batch size) -> the report of this method alone, or the reason why it could not run.
        provenance: what all cells share: base model, stream, methods, package versions.
    """

    cells: dict[tuple[str, int], Report | str]
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """The labels of the methods, in order."""
        return list(dict.fromkeys(label for label, _ in self.cells))

    @property
    def batch_sizes(self) -> list[int]:
        """The batch sizes, in order."""
        return list(dict.fromkeys(batch_size for _, batch_size in self.cells))

    def report(self, label: str, batch_size: int) -> Report | None:
        """The report of one cell; None where the method could not run, or there is no such cell."""
        found = self.cells.get((label, batch_size))
        return found if isinstance(found, Report) else None

    def error(self, label: str, batch_size: int) -> float:
        """The mean over the domains, in percent; NaN where there is no report."""
        report = self.report(label, batch_size)
        return nan if report is None else report.mean_error(label)

    def worst_rise(self, label: str, batch_size: int, source: str = "source") -> float:
        """The largest rise over the source's error in any domain, in points; NaN where a report is missing."""
        mine, theirs = self.report(label, batch_size), self.report(source, batch_size)
        if mine is None or theirs is None:
            return nan
        before = {row.domain: row.error[source] for row in theirs.rows}
        return max(row.error[label] - before[row.domain] for row in mine.rows)

    def points(self) -> dict[str, tuple[int, float]]:
        """label -> (numbers learned, error averaged over the batch sizes), for methods that ran at every batch size."""
        found = {label: [self.report(label, size) for size in self.batch_sizes] for label in self.labels}
        ran = {label: [r for r in reports if r is not None] for label, reports in found.items() if None not in reports}
        return {
            label: (reports[0].parameters.get(label, 0), mean([report.mean_error(label) for report in reports]))
            for label, reports in ran.items()
        }

    def merged(self, batch_size: int) -> Report:
        """One Report for a batch size, with a column for each method that ran."""
        reports = [r for label in self.labels if (r := self.report(label, batch_size)) is not None]
        rows = [
            DomainResult(row.domain, row.n, *(_joined(getattr(r.rows[i], part) for r in reports) for part in _PARTS))
            for i, row in enumerate(reports[0].rows if reports else [])
        ]
        return Report(
            rows,
            [method for report in reports for method in report.methods],
            seconds=_joined(report.seconds for report in reports),
            adaptation=_joined(report.adaptation for report in reports),
            parameters=_joined(report.parameters for report in reports),
            memory=_joined(report.memory for report in reports),
            memory_kind=", ".join(sorted({report.memory_kind for report in reports} - {""})),
        )

    def errors(self, title: str | None = None) -> Table:
        """A row for each method, a column for each batch size; the lowest error of a column in bold."""
        table = Table(title=title and escape(title), caption="error in %, mean over the domains; lower is better")
        table.add_column("method")
        for size in self.batch_sizes:
            table.add_column(f"batch {size}", justify="right")
        best = {size: lowest(self.error(label, size) for label in self.labels) for size in self.batch_sizes}
        for label in self.labels:
            table.add_row(escape(label), *(marked(self.error(label, size), best[size]) for size in self.batch_sizes))
        return table

    def domains(self, batch_size: int, title: str | None = None) -> Table:
        """A row for each domain, a column for each method that ran; the lowest error of a row in bold."""
        table = self.merged(batch_size).table(title, gain=False)
        table.caption = f"error in % at batch {batch_size}; lower is better"
        return table

    def costs(self, batch_size: int, title: str | None = None) -> Table:
        """Error, worst rise over the source, calibration and cost of each method at one batch size."""
        report = self.merged(batch_size)
        table = Table(
            title=title and escape(title), caption=f"MB: {report.memory_kind or 'not measured'}; worst: rise in points"
        )
        for name in ("method", "error %", "worst", "NLL", "ECE %", "learned", "ms / image", "MB"):
            table.add_column(name, justify="left" if name == "method" else "right")
        for label in self.labels:
            if label not in report.methods:
                table.add_row(escape(label), *["-"] * 7)
                continue
            rise, memory = self.worst_rise(label, batch_size), report.memory.get(label)
            table.add_row(
                label,
                f"{report.mean_error(label):.2f}",
                "-" if isnan(rise) else f"{rise:+.1f}",
                f"{report.mean_nll(label):.3f}",
                f"{report.mean_ece(label):.2f}",
                f"{report.parameters.get(label, 0):,}",
                f"{1000 * report.seconds_per_image(label):.2f}",
                "-" if memory is None else f"{memory / 1e6:.1f}",
            )
        return table

    def tables(self, title: str | None = None) -> list[Table]:
        """All tables: the errors over the batch sizes, then the domains and the costs at each batch size."""
        return [self.errors(title)] + [
            of(size, title) for size in self.batch_sizes for of in (self.domains, self.costs)
        ]

    def refusals(self) -> dict[str, str]:
        """label -> why it did not run; the last reason where there are several."""
        return {label: cell for (label, _), cell in self.cells.items() if isinstance(cell, str)}

    def refusal_lines(self) -> list[str]:
        """One sentence for each method that did not run."""
        return [f"{label} did not run: {reason}" for label, reason in self.refusals().items()]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"cells": [packed(*key, cell) for key, cell in self.cells.items()], "provenance": self.provenance}

    def to_json(self, path: str | Path) -> Path:
        """Write the comparison atomically; returns the path."""
        return write_atomically(path, strict_json(self.to_dict(), indent=2) + "\n")

    @classmethod
    def from_json(cls, path: str | Path) -> "Comparison":
        """The comparison that `to_json` wrote."""
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls({(c["label"], c["batch_size"]): unpacked(c) for c in data["cells"]}, data["provenance"])


def _joined(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries of all mappings, whose keys differ."""
    return {name: value for part in parts for name, value in part.items()}


def packed(label: str, batch_size: int, cell: Report | str) -> dict[str, Any]:
    """A cell as it is written to JSON.

    >>> from spear_hf.evaluation.comparison import packed
    >>> packed("sar", 16, "it has no normalisation layer")["refusal"]
    'it has no normalisation layer'
    """
    report, refusal = (cell.to_dict(), None) if isinstance(cell, Report) else (None, cell)
    return {"label": label, "batch_size": batch_size, "refusal": refusal, "report": report}


def unpacked(data: Mapping[str, Any]) -> Report | str:
    """The cell that `packed` gave.

    >>> from spear_hf.evaluation.comparison import packed, unpacked
    >>> unpacked(packed("sar", 16, "it has no normalisation layer"))
    'it has no normalisation layer'
    """
    return data["refusal"] if data["report"] is None else Report.from_dict(data["report"])
