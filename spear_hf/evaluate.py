"""evaluate(methods, stream) -> Report: every method answers the same batches, in the same order, before it learns."""

import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from rich.table import Table
from torch import Tensor
from tqdm.auto import tqdm

from spear_hf.adapt import StepRecord, TTAMethod
from spear_hf.errors import DataError
from spear_hf.files import write_atomically
from spear_hf.metrics import DomainCounts, mean

PACKAGES = ("spear-hf", "torch", "transformers", "timm", "datasets", "accelerate", "numpy", "pillow")


class Stream(Protocol):
    """What `evaluate` needs of a stream; `spear_hf.data.stream.load_stream` makes one."""

    protocol: str

    def __iter__(self) -> Any: ...

    def describe(self) -> dict[str, Any]:
        """Everything a rerun needs, JSON-ready."""
        ...


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


def evaluate(
    methods: Mapping[str, TTAMethod],
    stream: Stream,
    *,
    device: Any = None,
    progress: bool = True,
    on_step: Callable[[str, StepRecord], None] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Report:
    """Run a stream through every method at once: each batch is answered, counted, and only then learned from.

    Under the protocol "single" every method is reset before each domain; otherwise it goes on from what it has learned.

    Args:
        methods: name -> method; the first is the one that gains are counted from, the last the one the bar shows.
        stream: yields dictionaries with pixel_values, labels, domain and is_domain_start.
        device: where pixel_values go; None leaves them where they are.
        progress: a bar with the running error of the first and the last method, the entropy and the gate.
        on_step: called with (domain, StepRecord) after each step of the last method, where it keeps records.
        provenance: further facts for the report.

    Raises:
        DataError: no methods, a batch without labels, labels that do not fit the model, or a stream without a batch.
    """
    if not methods:
        raise DataError("no methods were given; pass at least one, for example {'source': Source(model)}")
    counts, seconds = DomainCounts(), dict.fromkeys(methods, 0.0)
    adaptation: dict[str, dict[str, int]] = {name: {} for name in methods}
    total = len(stream) if isinstance(stream, Sized) else None
    with tqdm(_batches(stream), total=total, unit="batch", disable=None if progress else True) as bar:
        for batch in bar:
            domain = batch["domain"]
            if batch["is_domain_start"] and stream.protocol == "single":
                for method in methods.values():
                    method.reset()
            x: Tensor = batch["pixel_values"] if device is None else batch["pixel_values"].to(device)
            for name, method in methods.items():
                began = time.perf_counter()
                answer = method.step(x)
                seconds[name] += time.perf_counter() - began
                counts.of(domain, name).update(answer, batch["labels"])
                record = getattr(method, "last", None)
                if isinstance(record, StepRecord):
                    outcome = record.skipped or "adapted"
                    adaptation[name][outcome] = adaptation[name].get(outcome, 0) + 1
            _show(bar, domain, counts, methods, on_step)
    if not counts.counts:
        raise DataError("the stream gave no batch; check its limit, split and source")
    rows = [
        DomainResult(domain, next(iter(cells.values())).total, {name: cell.error for name, cell in cells.items()})
        for domain, cells in counts.counts.items()
    ]
    facts = {"stream": stream.describe(), "versions": versions()} | dict(provenance or {})
    return Report(rows, list(methods), facts, seconds, {k: v for k, v in adaptation.items() if v})


def _batches(stream: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    for batch in stream:
        if batch.get("labels") is None:
            raise DataError("this stream has no labels, so no error can be counted; call method.step(pixel_values) yourself")
        yield batch


def _show(
    bar: Any,
    domain: str,
    counts: DomainCounts,
    methods: Mapping[str, TTAMethod],
    on_step: Callable[[str, StepRecord], None] | None,
) -> None:
    """The running figures of this domain behind the bar, and the record to whoever asked for it."""
    first, last = next(iter(methods)), list(methods)[-1]
    shown = {name: f"{counts.of(domain, name).error:.1f}%" for name in dict.fromkeys((first, last))}
    record = getattr(methods[last], "last", None)
    if isinstance(record, StepRecord):
        shown |= {"H": f"{record.entropy:.2f}", "gate": "open" if record.adapted else "shut"}
        if on_step is not None:
            on_step(domain, record)
    bar.set_description(domain, refresh=False)
    bar.set_postfix(shown, refresh=False)


def versions() -> dict[str, str]:
    """Of Python and every package that can change a number."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
