"""Report: what a run gave, all that a rerun needs, and the table of it."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.table import Table

from spear_hf.files import write_atomically
from spear_hf.metrics import mean

PACKAGES = ("spear-hf", "torch", "transformers", "timm", "datasets", "accelerate", "numpy", "pillow")


@dataclass(frozen=True)
class DomainResult:
    """One row of a report: n images of a domain, and each method's online error in percent."""

    domain: str
    n: int
    error: dict[str, float]


@dataclass
class Report:
    """What came out, and all that a rerun needs.

    Args:
        rows: one for each domain, in stream order.
        methods: their names, in column order; the first is what gains are counted from.
        provenance: stream, base, hyper-parameters, package versions.
        seconds: spent by each method in `step`, in all.
        adaptation: for methods with a StepRecord: how many steps adapted, and why the others were skipped.
    """

    rows: list[DomainResult]
    methods: list[str]
    provenance: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    adaptation: dict[str, dict[str, int]] = field(default_factory=dict)

    def mean_error(self, method: str) -> float:
        """Unweighted mean over the domains, in percent."""
        return mean([row.error[method] for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with the means written out."""
        return asdict(self) | {"mean_error": {m: self.mean_error(m) for m in self.methods}}

    def to_json(self, path: str | Path) -> Path:
        """Write the report, atomically."""
        return write_atomically(path, json.dumps(self.to_dict(), indent=2) + "\n")

    @classmethod
    def from_json(cls, path: str | Path) -> "Report":
        """Read what `to_json` wrote."""
        data = json.loads(Path(path).read_text())
        data.pop("mean_error", None)
        return cls(**{**data, "rows": [DomainResult(**row) for row in data["rows"]]})

    def table(self, title: str | None = None) -> Table:
        """Corruption, n, each method's error in percent, and the gain of the last over the first, with the means."""
        table = Table(title=title, caption="error in %, lower is better; gain in points")
        table.add_column("corruption")
        table.add_column("n", justify="right")
        for method in self.methods:
            table.add_column(method, justify="right")
        if len(self.methods) > 1:
            table.add_column("gain", justify="right")
        for row in self.rows:
            table.add_row(row.domain, str(row.n), *self._cells(row.error))
        table.add_section()
        means = {method: self.mean_error(method) for method in self.methods}
        table.add_row("mean", str(sum(row.n for row in self.rows)), *self._cells(means), style="bold")
        return table

    def _cells(self, error: Mapping[str, float]) -> list[str]:
        cells = [f"{error[method]:.2f}" for method in self.methods]
        if len(self.methods) > 1:
            cells.append(f"{error[self.methods[0]] - error[self.methods[-1]]:+.2f}")
        return cells


def versions() -> dict[str, str]:
    """Of Python and every package that can change a number."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
