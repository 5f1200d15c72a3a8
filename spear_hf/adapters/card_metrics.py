"""metrics.json: the errors of an adapter and of its source, measured with labels that were not used for learning."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spear_hf.adapters.containment import contained
from spear_hf.backbones.origin import without_paths
from spear_hf.errors import AdapterFormatError

if TYPE_CHECKING:
    from spear_hf.evaluation.report import Report

METRICS_NAME = "metrics.json"
MIXED = "alpha only"  # the name of the method "source with mixed statistics" in a report


@dataclass(frozen=True)
class CardRow:
    """Errors in percent on n images of one domain.

    Args:
        before: of the source model.
        after: with SPeaR.
        mixed: of the source with alpha-mixed batch statistics and no RSPs; None if nothing is mixed.

    >>> from spear_hf.adapters.card_metrics import CardRow
    >>> CardRow("fog/5", n=1024, before=63.77, after=28.22).mixed is None
    True
    """

    domain: str
    n: int
    before: float
    after: float
    mixed: float | None = None


@dataclass(frozen=True)
class CardMetrics:
    """The errors that a card shows, and how they were measured.

    Args:
        dataset: its name, for people.
        online: errors while the adapter learned: each batch was predicted and counted before it was learned from.
        frozen: errors of the saved adapter, which learns nothing, on images that it did not learn from; the domain
            "clean" shows the cost on images without a shift.
        protocol: "single" (the learner starts anew in each domain) or "continual".
        batch_size: of both.
        seed: of the order and of the corruptions.
        streams: the streams' own descriptions, for a rerun.
        versions: of the packages.

    >>> from spear_hf.adapters.card_metrics import CardMetrics, CardRow
    >>> clean = CardRow("clean", n=512, before=6.0, after=6.5)
    >>> CardMetrics("fashion_mnist", online=(), frozen=(clean,)).of("clean") == [clean]
    True
    """

    dataset: str
    online: tuple[CardRow, ...]
    frozen: tuple[CardRow, ...] = ()
    protocol: str = "single"
    batch_size: int = 0
    seed: int = 0
    streams: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_reports(cls, dataset: str, online: "Report", *frozen: "Report") -> "CardMetrics":
        """The errors in reports of `evaluate` whose first method is the source and whose last method is SPeaR."""
        stream = online.provenance["stream"]
        reports = {"online": online} | {f"frozen {i}": report for i, report in enumerate(frozen)}
        return cls(
            dataset,
            tuple(_rows(online)),
            tuple(row for report in frozen for row in _rows(report)),
            protocol=stream["protocol"],
            batch_size=stream["batch_size"],
            seed=stream["corruption"]["seed"],
            streams={name: report.provenance["stream"] for name, report in reports.items()},
            versions=online.provenance["versions"],
        )

    def of(self, domain: str) -> Sequence[CardRow]:
        """The frozen rows of one domain."""
        return [row for row in self.frozen if row.domain == domain]


def _rows(report: "Report") -> Iterator[CardRow]:
    first, last = report.methods[0], report.methods[-1]
    for row in report.rows:
        yield CardRow(row.domain, row.n, row.error[first], row.error[last], row.error.get(MIXED))


def metrics_bytes(results: CardMetrics, weights: bytes) -> bytes:
    """The content of metrics.json, with the hash of the tensor file that it is about, and no path of this machine.

    >>> from spear_hf.adapters.card_metrics import CardMetrics, metrics_bytes
    >>> b'"dataset": "fashion_mnist"' in metrics_bytes(CardMetrics("fashion_mnist", online=()), weights=b"")
    True
    """
    data = {"weights_sha256": hashlib.sha256(weights).hexdigest(), **without_paths(asdict(results))}
    return (json.dumps(data, indent=2, sort_keys=True) + "\n").encode()


def read_metrics(folder: Path, weights: bytes) -> CardMetrics | None:
    """The metrics.json in `folder`; None if there is none, or if it is about another tensor file than `weights`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from spear_hf.adapters.card_metrics import read_metrics
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_metrics(Path(folder), weights=b"") is None
    True

    Raises:
        AdapterFormatError: a file with an invalid entry.
    """
    path = contained(folder, METRICS_NAME)
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
        if data.pop("weights_sha256") != hashlib.sha256(weights).hexdigest():
            return None
        return CardMetrics(**{**data, **{name: tuple(map(_row, data[name])) for name in ("online", "frozen")}})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError) as error:
        raise AdapterFormatError(f"{path} has an invalid entry ({error}); save it again with results=") from error


def _row(data: dict[str, Any]) -> CardRow:
    """The CardRow with these fields; ValueError for a field that is no text or no number."""
    row = CardRow(**data)
    numbers = [row.n, row.before, row.after, *([] if row.mixed is None else [row.mixed])]
    if not isinstance(row.domain, str) or not all(isinstance(v, (int, float)) for v in numbers):
        raise ValueError(f"{data} is no row of errors")
    return row


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
