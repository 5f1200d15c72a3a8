"""Datasets that hold corrupted images: one Dataset for each domain, or one with a corruption in every row."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spear_hf.data.decode import Encoded
from spear_hf.data.domains import CLEAN, Domain
from spear_hf.data.sources.columns import Columns
from spear_hf.data.sources.rows import RowSource
from spear_hf.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

CORRUPTION_COLUMNS = ("corruption", "corruption_name", "corruption_type")
SEVERITY_COLUMNS = ("severity", "corruption_level", "corruption_severity", "level")


class DomainRowSource:
    """One RowSource for each domain, opened when it is first read.

    Args:
        name: what to call it.
        kind: how the domains are told apart, for provenance.
        domains: those it holds.
        open_domain: the rows of one of them.

    Raises:
        DataError: domains with different numbers of images.
    """

    window = None

    def __init__(
        self, name: str, kind: str, domains: Sequence[Domain], open_domain: Callable[[Domain], RowSource]
    ) -> None:
        self.name = name
        self.held = tuple(domains)
        self._kind = kind
        self._open_domain = open_domain
        self._opened: dict[Domain, RowSource] = {}
        self._first = self._rows(self.held[0])
        self.classes = self._first.classes

    def __len__(self) -> int:
        return len(self._first)

    def labels(self, ids: np.ndarray, domain: Domain) -> np.ndarray | None:
        """(n,) int64 by the domain's rows."""
        return self._rows(domain).labels(ids, domain)

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """The images in the domain's rows."""
        return self._rows(domain).read(ids, domain)

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The row in the domain's dataset."""
        return f"{domain}: {self._rows(domain).locate(sample_id, domain)}"

    def describe(self) -> dict[str, Any]:
        """As the first domain's rows, with the layout."""
        return self._first.describe() | {"kind": self._kind, "name": self.name}

    def _rows(self, domain: Domain) -> RowSource:
        if domain not in self._opened:
            rows = self._open_domain(domain)
            first = next(iter(self._opened.values()), rows)
            if len(rows) != len(first) or rows.classes != first.classes:
                raise DataError(
                    f"{domain} of {self.name} has {len(rows)} images of {len(rows.classes or ())} classes, other "
                    f"domains {len(first)} of {len(first.classes or ())}; name corruptions and severities that agree"
                )
            self._opened[domain] = rows
        return self._opened[domain]


class _OneDataset:
    """Opens a domain as some of the rows of one RowSource."""

    def __init__(self, base: RowSource, rows: dict[Domain, np.ndarray]) -> None:
        self.base, self.rows = base, rows

    def __call__(self, domain: Domain) -> RowSource:
        return self.base.only(self.rows[domain])


def split_by_columns(dataset: "Dataset", name: str, columns: Columns) -> DomainRowSource | None:
    """The domains of a Dataset that names a corruption and a severity in every row; None where it does not."""
    corruption = next((c for c in CORRUPTION_COLUMNS if c in dataset.features), None)
    severity = next((c for c in SEVERITY_COLUMNS if c in dataset.features), None)
    if corruption is None or severity is None:
        return None
    cells = dataset.select_columns([corruption, severity]).with_format("numpy")[:]
    names = getattr(dataset.features[corruption], "names", None)
    words = np.asarray(cells[corruption] if names is None else np.array(names)[cells[corruption]]).astype(str)
    texts = np.asarray(cells[severity]).astype(str)
    rows = {
        domain_of(word, text): np.flatnonzero((words == word) & (texts == text))
        for word in dict.fromkeys(words.tolist())
        for text in np.unique(texts[words == word]).tolist()
    }
    return DomainRowSource(name, "columns", list(rows), _OneDataset(RowSource(dataset, name, columns), rows))


def domain_of(corruption: str, severity: str) -> Domain:
    """The domain that a corruption's name and a text with a number ("5", "severity_5") mean; severity 0 is clean.

    Raises:
        DataError: no number.
    """
    number = re.search(r"\d+(\.\d+)?", severity)
    if number is None:
        raise DataError(
            f"severity {severity!r} of {corruption!r} holds no number; write 1..5, or severity_1..severity_5"
        )
    level = float(number.group())
    return Domain(((plain_name(corruption), level),)) if level else CLEAN


def plain_name(name: str) -> str:
    """ "Gaussian Noise" and "gaussian-noise" as this package writes them: gaussian_noise."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())
