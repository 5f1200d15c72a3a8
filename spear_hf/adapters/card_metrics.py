"""metrics.json: what an adapter changed, measured with labels that it never saw."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spear_hf.errors import AdapterFormatError
from spear_hf.utils.files import write_atomically

if TYPE_CHECKING:
    from spear_hf.evaluation.report import Report

METRICS_NAME = "metrics.json"
MIXED = "alpha only"  # what a report calls the source with mixed statistics


@dataclass(frozen=True)
class CardRow:
    """Errors in percent on n images of one domain.

    Args:
        before: of the source model.
        after: with SPeaR.
        mixed: of the source with alpha-mixed batch statistics and no RSPs; None where nothing is mixed.
    """

    domain: str
    n: int
    before: float
    after: float
    mixed: float | None = None


@dataclass(frozen=True)
class CardMetrics:
    """The figures of a card.

    Args:
        dataset: what the images are, for people.
        online: while it learned: each batch was answered, counted, and only then learned from.
        frozen: the saved adapter as it is, learning nothing, on images that it did not learn from; the domain "clean"
            says what it costs where there is no shift.
        protocol: "single" (the learner starts anew in each domain) or "continual".
        batch_size: of both.
        seed: of the order and of the corruptions.
        streams: what a rerun needs, as the streams describe themselves.
        versions: of the packages.
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
        """The results in reports of `evaluate`, whose first method is the source and whose last is SPeaR."""
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


def write_metrics(folder: Path, results: CardMetrics, weights: Path) -> Path:
    """Write metrics.json, tied by a hash to the tensor file that it is about."""
    data = {"weights_sha256": _sha256(weights), **asdict(results)}
    return write_atomically(folder / METRICS_NAME, json.dumps(data, indent=2, sort_keys=True) + "\n")


def read_metrics(folder: Path, weights: Path) -> CardMetrics | None:
    """The metrics.json in `folder`; None where there is none, or where it is about other weights than those there.

    Raises:
        AdapterFormatError: a file of another form.
    """
    path = folder / METRICS_NAME
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("weights_sha256") != _sha256(weights):
            return None
        rows = {name: tuple(CardRow(**row) for row in data[name]) for name in ("online", "frozen")}
        return CardMetrics(**{**data, **rows})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise AdapterFormatError(f"{path} has another form ({error}); save the adapter again with results=") from error


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
