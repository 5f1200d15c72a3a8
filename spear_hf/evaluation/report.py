"""What a run gave: a BatchRecord for each batch, a DomainResult for each domain, and a Report of the whole run."""

import json
import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from spear_hf.evaluation.metrics import mean
from spear_hf.learning.record import StepRecord
from spear_hf.utils.files import write_atomically
from spear_hf.utils.strict_json import strict_json

PACKAGES = ("spear-hf", "torch", "transformers", "timm", "datasets", "accelerate", "numpy", "pillow")


@dataclass(frozen=True)
class BatchRecord:
    """The predictions of every method for one batch, over all processes; one line of steps.jsonl.

    >>> from spear_hf.evaluation.report import BatchRecord
    >>> record = BatchRecord(0, "fog/5", 8, {"source": 3, "SPeaR": 1})
    >>> BatchRecord.from_dict(record.to_dict()) == record
    True

    Args:
        batch: its number in the stream, from 0.
        domain: its name.
        n: number of images.
        wrong: method -> number of wrong predictions; empty without labels.
        answers: class -> how often the last method predicted it; classes that were never predicted are left out.
        labels: class -> how often it was the label.
        step: the StepRecord of the last method; None where the method keeps none.
        deviations: boundary key -> (||gamma - 1||, ||beta||) of its RSP after the step; a `RunFolder` fills it in.
    """

    batch: int
    domain: str
    n: int
    wrong: dict[str, int]
    answers: dict[int, int] = field(default_factory=dict)
    labels: dict[int, int] = field(default_factory=dict)
    step: StepRecord | None = None
    deviations: dict[str, tuple[float, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON, which turns the integer keys of `answers` and `labels` into strings."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "BatchRecord":
        """The record that `to_dict` gave, also after JSON turned class numbers into strings and tuples into lists."""
        step = data["step"]
        return cls(
            batch=data["batch"],
            domain=data["domain"],
            n=data["n"],
            wrong=dict(data["wrong"]),
            answers={int(c): count for c, count in data["answers"].items()},
            labels={int(c): count for c, count in data["labels"].items()},
            step=None if step is None else _step(step),
            deviations={key: (_number(gamma), _number(beta)) for key, (gamma, beta) in data["deviations"].items()},
        )


def _step(data: Mapping[str, Any]) -> StepRecord:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    fields["entropy"] = _number(fields["entropy"])
    return StepRecord(**fields)


def _number(value: float | None) -> float:
    """A number from JSON, in which NaN is null."""
    return math.nan if value is None else value


@dataclass(frozen=True)
class DomainResult:
    """One row of a report: the online predictions of each method for the n images of a domain.

    >>> from spear_hf.evaluation.report import DomainResult
    >>> DomainResult("fog/5", 512, {"source": 60.0, "SPeaR": 45.5}).error["SPeaR"]
    45.5

    Args:
        domain: its name.
        n: number of images.
        error: method -> error in percent; empty without labels.
        nll: method -> mean negative log-likelihood of the labels, in nats; empty in a report of an earlier version.
        ece: method -> expected calibration error in percent; empty in a report of an earlier version.
        entropy: method -> mean normalised entropy of its answers, in [0, 1].
        changed: method -> answers that differ from the first method's, in percent.
    """

    domain: str
    n: int
    error: dict[str, float]
    nll: dict[str, float] = field(default_factory=dict)
    ece: dict[str, float] = field(default_factory=dict)
    entropy: dict[str, float] = field(default_factory=dict)
    changed: dict[str, float] = field(default_factory=dict)


@dataclass
class Report:
    """The results of a run, and everything that a rerun needs.

    >>> from spear_hf.evaluation.report import DomainResult, Report
    >>> report = Report([DomainResult("fog/5", 8, {"source": 60.0, "SPeaR": 45.0})], ["source", "SPeaR"])
    >>> report.mean_error("SPeaR")
    45.0
    >>> Report.from_dict(report.to_dict()) == report
    True

    Args:
        rows: one for each domain, in stream order.
        methods: their names, in column order; gains are those of the last over the first.
        provenance: stream, base model, hyper-parameters, package versions.
        seconds: method -> total time in `step`.
        adaptation: method -> outcome -> number of steps, for methods with a StepRecord: how many steps adapted, why
            the others were skipped, how many began a new domain, how many used batch statistics alone.
        parameters: method -> how many numbers it learns.
        memory: method -> bytes that its largest step took; empty where memory was not measured.
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
        """How many images each method predicted, over all domains."""
        return sum(row.n for row in self.rows)

    @property
    def has_errors(self) -> bool:
        """Whether the images had labels, so that errors were counted."""
        return any(row.error for row in self.rows)

    def mean_error(self, method: str) -> float:
        """The unweighted mean over the domains, in percent; NaN without labels."""
        return mean([row.error[method] for row in self.rows if row.error])

    def mean_nll(self, method: str) -> float:
        """The unweighted mean over the domains, in nats; NaN in a report of an earlier version."""
        return mean([row.nll[method] for row in self.rows if row.nll])

    def mean_ece(self, method: str) -> float:
        """The unweighted mean over the domains, in percent; NaN in a report of an earlier version."""
        return mean([row.ece[method] for row in self.rows if row.ece])

    def mean_row(self) -> DomainResult:
        """The last row of a table: the domain "mean", all images, the mean error of each method."""
        errors = {method: self.mean_error(method) for method in self.methods} if self.has_errors else {}
        entropy = {m: mean([row.entropy[m] for row in self.rows if row.entropy]) for m in self.methods}
        changed = {m: mean([row.changed[m] for row in self.rows if row.changed]) for m in self.methods}
        return DomainResult("mean", self.images, errors, entropy=entropy, changed=changed)

    def gain(self, row: DomainResult) -> float:
        """Points of error by which the last method is better than the first in a row; NaN without labels."""
        nan = math.nan
        return row.error.get(self.methods[0], nan) - row.error.get(self.methods[-1], nan)

    def seconds_per_image(self, method: str) -> float:
        """The mean time in `step` for one image, by this process's clock."""
        return self.seconds[method] / self.images

    def points(self) -> dict[str, tuple[int, float]]:
        """method -> (how many numbers it learns, its mean error); methods whose number is not known are left out."""
        known = [m for m in self.methods if m in self.parameters and self.has_errors]
        return {m: (self.parameters[m], self.mean_error(m)) for m in known}

    def to_dict(self) -> dict[str, Any]:
        """The fields and the means, JSON-ready."""
        means = {"mean_error": self.mean_error, "mean_nll": self.mean_nll, "mean_ece": self.mean_ece}
        written = {name: {m: of(m) for m in self.methods} for name, of in means.items()}
        return asdict(self) | {name: values for name, values in written.items() if _is_finite(values)}

    def to_json(self, path: str | Path) -> Path:
        """Write the report atomically; returns the path."""
        return write_atomically(path, strict_json(self.to_dict(), indent=2) + "\n")

    @classmethod
    def from_json(cls, path: str | Path) -> "Report":
        """The report that `to_json` wrote."""
        return cls.from_dict(json.loads(Path(path).read_text()))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Report":
        """The report that `to_dict` gave. Means are computed again; fields that an earlier version lacked are empty."""
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        return cls(**{**known, "rows": [DomainResult(**row) for row in data["rows"]]})

    def table(self, title: str | None = None, *, gain: bool = True) -> Table:
        """A row for each domain, and one for the mean of several: images, the error of each method, the lowest in bold.

        Without labels: the entropy of each method, and how many answers of the last differ from the first's.

        Args:
            title: above the table.
            gain: whether a last column shows the gain of the last method over the first.
        """
        shown, head, caption = (self._errors, "gain", "error in %, lower is better; gain in points")
        if not self.has_errors:
            shown, head = self._entropies, "other answers"
            caption = "mean entropy of the answers, from 0 (sure) to 1; no labels, so no errors"
        gain = gain and len(self.methods) > 1
        table = Table(
            title=title and escape(title), caption=caption.split(";")[0] if self.has_errors and not gain else caption
        )
        table.add_column("images" if not self.has_errors else "corruption")
        for name in ("n", *self.methods, *([head] if gain else [])):
            table.add_column(escape(name), justify="right")
        for row in self.rows:
            table.add_row(escape(row.domain), str(row.n), *shown(row)[: None if gain else -1])
        if len(self.rows) > 1:
            table.add_section()
            row = self.mean_row()
            table.add_row(escape(row.domain), str(row.n), *shown(row)[: None if gain else -1], style="bold")
        return table

    def _errors(self, row: DomainResult) -> list[str]:
        best = lowest(row.error.values())
        return [marked(row.error.get(method, math.nan), best) for method in self.methods] + [f"{self.gain(row):+.2f}"]

    def _entropies(self, row: DomainResult) -> list[str]:
        found = [f"{row.entropy.get(method, math.nan):.3f}" for method in self.methods]
        return [*found, f"{row.changed.get(self.methods[-1], math.nan):.1f} %"]


def marked(value: float, best: float) -> str:
    """A number with two decimals for a table: in bold where it equals the best one, "-" for NaN.

    >>> from spear_hf.evaluation.report import marked
    >>> marked(12.3, best=12.3), marked(50.0, best=12.3), marked(float("nan"), best=12.3)
    ('[bold]12.30[/bold]', '50.00', '-')
    """
    text = "-" if math.isnan(value) else f"{value:.2f}"
    return f"[bold]{text}[/bold]" if text == f"{best:.2f}" else text


def lowest(values: Iterable[float]) -> float:
    """The lowest number that is not NaN; NaN where there is none.

    >>> from spear_hf.evaluation.report import lowest
    >>> lowest([float("nan"), 30.0, 20.0])
    20.0
    """
    return min((value for value in values if not math.isnan(value)), default=math.nan)


def _is_finite(values: Mapping[str, float]) -> bool:
    return all(math.isfinite(value) for value in values.values())


def versions() -> dict[str, str]:
    """The versions of Python and of every package that can change a number.

    >>> from spear_hf.evaluation.report import versions
    >>> "torch" in versions()
    True
    """
    found = {package: _version(package) for package in PACKAGES}
    return {"python": platform.python_version(), **{name: number for name, number in found.items() if number}}


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
