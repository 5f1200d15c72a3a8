"""Report: what a run gave, all that a rerun needs, and the table of it."""

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.table import Table

from spear_hf.evaluation.metrics import mean
from spear_hf.utils.files import write_atomically

PACKAGES = ("spear-hf", "torch", "transformers", "timm", "datasets", "accelerate", "numpy", "pillow")


@dataclass(frozen=True)
class DomainResult:
    """One row of a report: n images of a domain, and what each method's online answers to them were worth.

    Args:
        domain: its name.
        n: images.
        error: in percent.
        nll: mean negative log-likelihood of the labels, in nats; empty in a report of an earlier version.
        ece: expected calibration error, in percent; empty in a report of an earlier version.
    """

    domain: str
    n: int
    error: dict[str, float]
    nll: dict[str, float] = field(default_factory=dict)
    ece: dict[str, float] = field(default_factory=dict)


@dataclass
class Report:
    """What came out, and all that a rerun needs.

    Args:
        rows: one for each domain, in stream order.
        methods: their names, in column order; the first is what gains are counted from.
        provenance: stream, base, hyper-parameters, package versions.
        seconds: spent by each method in `step`, in all.
        adaptation: for methods with a StepRecord: how many steps adapted, why the others were skipped, and how many
            began a new domain or took the batch norms' statistics without the source's.
        parameters: how many numbers each method learns.
        memory: the most that a step of each method took, in bytes; empty where it was not measured.
        memory_kind: what these bytes are.
    """

    rows: list[DomainResult]
    methods: list[str]
    provenance: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    adaptation: dict[str, dict[str, int]] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    memory_kind: str = ""

    @property
    def images(self) -> int:
        """Answers of each method, over all domains."""
        return sum(row.n for row in self.rows)

    def mean_error(self, method: str) -> float:
        """Unweighted mean over the domains, in percent."""
        return mean([row.error[method] for row in self.rows])

    def mean_nll(self, method: str) -> float:
        """Unweighted mean over the domains, in nats; NaN in a report of an earlier version."""
        return mean([row.nll[method] for row in self.rows if row.nll])

    def mean_ece(self, method: str) -> float:
        """Unweighted mean over the domains, in percent; NaN in a report of an earlier version."""
        return mean([row.ece[method] for row in self.rows if row.ece])

    def seconds_per_image(self, method: str) -> float:
        """In `step`, of this process's clock."""
        return self.seconds[method] / self.images

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with the means written out."""
        means = {"mean_error": self.mean_error, "mean_nll": self.mean_nll, "mean_ece": self.mean_ece}
        written = {name: {m: of(m) for m in self.methods} for name, of in means.items()}
        return asdict(self) | {name: values for name, values in written.items() if _is_finite(values)}

    def to_json(self, path: str | Path) -> Path:
        """Write the report, atomically."""
        return write_atomically(path, json.dumps(self.to_dict(), indent=2) + "\n")

    @classmethod
    def from_json(cls, path: str | Path) -> "Report":
        """Read what `to_json` wrote."""
        return cls.from_dict(json.loads(Path(path).read_text()))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Report":
        """Read what `to_dict` gave; means are worked out anew, and what an earlier version did not have is empty."""
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        return cls(**{**known, "rows": [DomainResult(**row) for row in data["rows"]]})

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


def _is_finite(values: Mapping[str, float]) -> bool:
    return all(math.isfinite(value) for value in values.values())


def versions() -> dict[str, str]:
    """Of Python and every package that can change a number."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
