"""Images in the rows of a `datasets.Dataset`: clean, or corrupted with a Dataset or some rows for each domain."""

import os
import re
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pyarrow import compute

from spear_hf.data.decode import Encoded
from spear_hf.data.domains import CLEAN, Domain
from spear_hf.data.sources.columns import (
    Columns,
    as_encoded,
    file_note,
    find_image_column,
    find_label_column,
    number_labels,
    pixel_dtype,
    rival_columns,
)
from spear_hf.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

CORRUPTION_COLUMNS = ("corruption", "corruption_name", "corruption_type")
SEVERITY_COLUMNS = ("severity", "corruption_level", "corruption_severity", "level")


class RowSource:
    """The rows of a Dataset; the sample id is the row number.

    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from spear_hf.data.domains import CLEAN
    >>> from spear_hf.data.sources.columns import Columns
    >>> from spear_hf.data.sources.dataset_rows import RowSource
    >>> rows = Dataset.from_dict({"image": [np.zeros((8, 8, 3), np.uint8)] * 2, "label": ["cat", "bee"]})
    >>> RowSource(rows, "pets", Columns()).labels(np.array([0, 1]), CLEAN).tolist()
    [1, 0]

    Args:
        dataset: read as it is stored; a format or transform of it is ignored.
        name: for people.
        columns: which of its columns to read.
        root: the folder that relative paths in the image column start at.

    Raises:
        DataError: no rows, or no such columns.
    """

    held = None
    window = None

    def __init__(self, dataset: "Dataset", name: str, columns: Columns, root: Path = Path()) -> None:
        from datasets import Image

        if len(dataset) == 0:
            raise DataError(f"{name} has no rows; pass a source with images")
        self.name = name
        self.notes: list[str] = []
        self.image_column = find_image_column(dataset.features, columns.image)
        self.label_column = find_label_column(dataset.features, columns)
        self.commit = _commit_of(dataset)
        dataset = dataset.with_format(None)
        if isinstance(dataset.features[self.image_column], Image):
            dataset = dataset.cast_column(self.image_column, Image(decode=False))
        self._images = dataset.select_columns(self.image_column)
        self._paths = _own_paths(self._images, self.image_column)
        self._dtype, self._root = pixel_dtype(dataset.features[self.image_column]), root
        self._rows: np.ndarray | None = None
        self.classes, self._labels = self._read_labels(dataset, self.label_column)
        rivals = (
            rival_columns(dataset.features, self.label_column) if self.label_column and columns.label == "auto" else []
        )
        self._rivals = dataset.select_columns(rivals)

    def only(self, rows: np.ndarray) -> "RowSource":
        """The same source with these rows only: sample id i is row rows[i]."""
        part = copy(self)
        part._rows = rows
        return part

    def __len__(self) -> int:
        return len(self._images if self._rows is None else self._rows)

    def labels(self, ids: np.ndarray, domain: Domain) -> np.ndarray | None:
        """(n,) int64, or None without a label column."""
        return None if self._labels is None else self._labels[self._at(ids)]

    def names(self, ids: np.ndarray, domain: Domain) -> list[str]:
        """The paths in the image column if no two rows have the same, otherwise the numbers of the rows."""
        rows = self._at(ids).tolist()
        paths = self._paths
        return [str(row) if paths is None else paths[row] or str(row) for row in rows]

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """The images of the rows, as they are stored."""
        cells = self._images[self._at(ids).tolist()][self.image_column]
        return [as_encoded(cell, self._dtype, self._root) for cell in cells]

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The row, and the file if the dataset has its name."""
        (row,) = self._at(np.array([sample_id])).tolist()
        return f"row {row} of {self.name}{file_note(self._images[row][self.image_column])}"

    def describe(self) -> dict[str, Any]:
        """Columns, number of images, and the commit of a Hub dataset."""
        columns = {"image_column": self.image_column, "label_column": self.label_column}
        return {"kind": "dataset", "name": self.name, "commit": self.commit, "count": len(self), **columns}

    def _at(self, ids: np.ndarray) -> np.ndarray:
        return ids if self._rows is None else self._rows[ids]

    def rival_labels(self) -> dict[str, tuple[Sequence[str] | None, np.ndarray]]:
        """The class names and (N,) labels of each other column that could hold the labels."""
        found: dict[str, tuple[Sequence[str] | None, np.ndarray]] = {}
        for column in self._rivals.features:
            try:
                classes, labels = self._read_labels(self._rivals, column)
            except DataError:  # it holds no labels
                continue
            if labels is not None:
                found[column] = classes, labels if self._rows is None else labels[self._rows]
        return found

    @staticmethod
    def _read_labels(dataset: "Dataset", column: str | None) -> tuple[Sequence[str] | None, np.ndarray | None]:
        if column is None:
            return None, None
        cells = dataset.select_columns(column)[:][column]
        return number_labels(cells, getattr(dataset.features[column], "names", None), column)


def _own_paths(images: "Dataset", column: str) -> list[str | None] | None:
    """The path of the image in each row, without the folder that all share; None if two rows have the same."""
    from datasets import Image

    stored = images.data.table.column(column)  # memory-mapped: the bytes of the images are not read
    if isinstance(images.features[column], Image):
        stored = compute.struct_field(stored, "path")  # pyright: ignore[reportAttributeAccessIssue]
    elif getattr(images.features[column], "dtype", None) != "string":
        return None
    paths: list[str | None] = stored.to_pylist()
    if images._indices is not None:  # pyright: ignore[reportPrivateUsage]
        rows = images._indices.column(0).to_pylist()  # pyright: ignore[reportPrivateUsage]
        paths = [paths[row] for row in rows]
    there = [path for path in paths if path]
    if not there or len(set(there)) < len(there):
        return None
    if not all(map(os.path.isabs, there)):
        return paths
    shared = os.path.commonpath([os.path.dirname(path) for path in there])
    return [Path(os.path.relpath(path, shared)).as_posix() if path else None for path in paths]


def _commit_of(dataset: "Dataset") -> str | None:
    """The commit of a Hub dataset: a folder of its cache has this name."""
    folders = [Path(file["filename"]).parent.name for file in dataset.cache_files]
    return next((folder for folder in folders if re.fullmatch("[0-9a-f]{40}", folder)), None)


class DomainRowSource:
    """Corrupted images: one RowSource for each domain, opened when it is first read.

    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from spear_hf.data.sources.columns import Columns
    >>> from spear_hf.data.sources.dataset_rows import split_by_columns
    >>> cells = {"image": [np.zeros((8, 8, 3), np.uint8)] * 2, "corruption": ["fog", "snow"], "severity": [5, 5]}
    >>> [str(domain) for domain in split_by_columns(Dataset.from_dict(cells), "C", Columns()).held]
    ['fog/5', 'snow/5']

    Args:
        name: for people.
        kind: how the domains are stored, for provenance.
        domains: those it holds.
        open_domain: returns the rows of one of them.

    Raises:
        DataError: domains with different numbers of images or classes.
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
        """(n,) int64, or None without a label column."""
        return self._rows(domain).labels(ids, domain)

    def names(self, ids: np.ndarray, domain: Domain) -> list[str]:
        """As the rows of the domain name them."""
        return self._rows(domain).names(ids, domain)

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """The images in the rows of the domain."""
        return self._rows(domain).read(ids, domain)

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The row in the dataset of the domain."""
        return f"{domain}: {self._rows(domain).locate(sample_id, domain)}"

    def describe(self) -> dict[str, Any]:
        """As the rows of the first domain, with the layout."""
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


class _RowsOfDomain:
    """Opens a domain as some of the rows of one RowSource; a class, because a worker process must pickle it."""

    def __init__(self, base: RowSource, rows: dict[Domain, np.ndarray]) -> None:
        self.base, self.rows = base, rows

    def __call__(self, domain: Domain) -> RowSource:
        return self.base.only(self.rows[domain])


def split_by_columns(dataset: "Dataset", name: str, columns: Columns) -> DomainRowSource | None:
    """The domains of a Dataset with a corruption and a severity in every row; None for another Dataset.

    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from spear_hf.data.sources.columns import Columns
    >>> from spear_hf.data.sources.dataset_rows import split_by_columns
    >>> split_by_columns(Dataset.from_dict({"image": [np.zeros((8, 8, 3), np.uint8)]}), "clean", Columns()) is None
    True
    """
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
    return DomainRowSource(name, "columns", list(rows), _RowsOfDomain(RowSource(dataset, name, columns), rows))


def domain_of(corruption: str, severity: str) -> Domain:
    """The domain of a corruption's name and a text with a number ("5", "severity_5"); severity 0 is clean.

    >>> from spear_hf.data.sources.dataset_rows import domain_of
    >>> str(domain_of("Gaussian Noise", "severity_3"))
    'gaussian_noise/3'

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
    """The name of a corruption as this package writes it.

    >>> from spear_hf.data.sources.dataset_rows import plain_name
    >>> plain_name("Gaussian Noise"), plain_name("gaussian-noise")
    ('gaussian_noise', 'gaussian_noise')
    """
    return re.sub(r"[\s-]+", "_", name.strip().lower())
