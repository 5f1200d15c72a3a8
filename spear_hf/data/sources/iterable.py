"""Images of a `datasets.IterableDataset`: downloaded when they are shown, in windows."""

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from spear_hf.data.decode import Encoded
from spear_hf.data.domains import Domain
from spear_hf.data.sources.columns import (
    MISSING,
    Columns,
    as_encoded,
    file_note,
    find_image_column,
    find_label_column,
    number_labels,
    pixel_dtype,
)
from spear_hf.errors import DataError

if TYPE_CHECKING:
    from datasets import Features, IterableDataset

ENDLESS = 5_000_000  # rows; a dataset with more is not counted to its end


class IterableSource:
    """The first `length` rows of an IterableDataset; the sample id is the position in its own order.

    It is read from the start, a window of encoded images at a time, and from the start again for the next domain. A
    stream shuffles inside windows only, so batch g is a function of g; a dataset sorted by class stays sorted. A column
    of class names is read once in advance, for as many rows as are shown, so that the names can be numbered.

    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from spear_hf.data.sources.columns import Columns
    >>> from spear_hf.data.sources.iterable import IterableSource
    >>> rows = Dataset.from_dict({"image": [np.zeros((8, 8, 3), np.uint8)] * 5}).to_iterable_dataset()
    >>> len(IterableSource(rows, "photos", Columns(), length=4, window=2))
    4

    Args:
        dataset: read without decoding.
        name: for people.
        columns: which of its columns to read.
        length: number of rows that a domain shows. An IterableDataset does not know its own: None counts them, which
            reads it once.
        window: number of rows that are held at once; 512 photographs take about 50 MB.

    Attributes:
        classes_are_partial: whether `classes` are names of the first `length` rows, of which later rows may have more.

    Raises:
        DataError: no rows, or no such columns.
    """

    held = None

    def __init__(
        self, dataset: "IterableDataset", name: str, columns: Columns, length: int | None, window: int
    ) -> None:
        from datasets import Image

        features = dataset.features or _infer_features(dataset, name)
        self.name = name
        self.window = window
        self.image_column = find_image_column(features, columns.image)
        self.label_column = find_label_column(features, columns)
        self.classes: Sequence[str] | None = (
            getattr(features[self.label_column], "names", None) if self.label_column else None
        )
        self._dtype = pixel_dtype(features[self.image_column])
        if isinstance(features[self.image_column], Image):
            dataset = dataset.cast(_undecoded(features, self.image_column))
        self._dataset = dataset.select_columns([c for c in (self.image_column, self.label_column) if c])
        self.classes_are_partial = False
        if self.label_column and self.classes is None and _may_hold_names(features[self.label_column]):
            cells = list(chain.from_iterable(_column(self._dataset, name, self.label_column, length)))
            self.classes, _ = number_labels(cells, None, self.label_column)
            self.classes_are_partial = self.classes is not None and length is not None
            length = len(cells) if length is None else length
        if length is None:
            length = sum(map(len, _column(self._dataset, name, self.label_column or self.image_column)))
        self._length = length
        self._windows: dict[int, dict[str, list[Any]]] = {}
        self._reader: Iterator[dict[str, list[Any]]] | None = None
        # (process, next window): a forked process must not use its parent's reader, whose file position it shares
        self._reader_at = (-1, 0)

    def __len__(self) -> int:
        return self._length

    def __getstate__(self) -> dict[str, Any]:  # an open reader cannot be pickled
        return vars(self) | {"_reader": None, "_reader_at": (-1, 0), "_windows": {}}

    def labels(self, ids: np.ndarray, domain: Domain) -> np.ndarray | None:
        """(n,) int64, or None without a label column."""
        if self.label_column is None:
            return None
        names, numbers = number_labels(self._cells(ids, self.label_column), None, self.label_column)
        if names is None:
            return numbers
        # the names of these rows are numbered among themselves; MISSING stays
        places = np.searchsorted(np.array(self.classes), np.array(names))
        return np.where(numbers == MISSING, MISSING, places[np.where(numbers == MISSING, 0, numbers)])

    def names(self, ids: np.ndarray, domain: Domain) -> list[str]:
        """The paths in the image column, or the numbers of the rows that have none."""
        cells = self._cells(ids, self.image_column)
        paths = [cell.get("path") if isinstance(cell, dict) else cell for cell in cells]
        paths = [path.split("::")[0].split("://")[-1].lstrip("/") if _is_url(path) else path for path in paths]
        return [
            path if path and isinstance(path, str) else str(row) for path, row in zip(paths, ids.tolist(), strict=True)
        ]

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """The images of the rows, not decoded."""
        return [as_encoded(cell, self._dtype) for cell in self._cells(ids, self.image_column)]

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The row, and the file if the dataset has its name."""
        (cell,) = self._cells(np.array([sample_id]), self.image_column)
        return f"row {sample_id} of {self.name}{file_note(cell)}"

    def describe(self) -> dict[str, Any]:
        """Columns, number of images, and window."""
        columns = {"image_column": self.image_column, "label_column": self.label_column}
        return {"kind": "streaming", "name": self.name, "count": len(self), "window": self.window, **columns}

    def _cells(self, ids: np.ndarray, column: str) -> list[Any]:
        needed = {int(number) for number in ids // self.window}
        self._windows = {number: held for number, held in self._windows.items() if number in needed}
        for number in sorted(needed - self._windows.keys()):
            self._windows[number] = self._read_window(number)
        return [self._windows[i // self.window][column][i % self.window] for i in ids.tolist()]

    def _read_window(self, number: int) -> dict[str, list[Any]]:
        if self._reader is None or self._reader_at != (os.getpid(), number):
            # iter(dataset) would give each DataLoader worker another part of the rows; dataset.iter() gives all of them
            self._reader = self._dataset.skip(number * self.window).iter(batch_size=self.window)
        rows = next(self._reader, {self.image_column: []})
        self._reader_at = (os.getpid(), number + 1)
        there, wanted = len(rows[self.image_column]), min(self.window, self._length - number * self.window)
        if there < wanted:
            found = number * self.window + there
            raise DataError(
                f"limit={self._length}, but {self.name} ended after {found} images; pass limit={found} or less"
            )
        return rows


def _column(dataset: "IterableDataset", name: str, column: str, length: int | None = None) -> Iterator[list[Any]]:
    """One column of the first `length` rows, in parts; None takes all rows, up to ENDLESS."""
    found = 0
    for rows in dataset.select_columns([column]).iter(batch_size=1000):
        cells = rows[column] if length is None else rows[column][: length - found]
        found += len(cells)
        yield cells
        if found == length:
            return
        if found >= ENDLESS:
            raise DataError(f"limit=None, but {name} has {found:,} rows or more; pass limit=, images of each domain")
    if not found:
        raise DataError(f"{name} has no rows; pass a source with images")


def _may_hold_names(feature: Any) -> bool:
    """True for text, and for a column of which nothing is known yet (its first cell is empty)."""
    return getattr(feature, "dtype", None) in ("string", "large_string", "string_view", "null")


def _is_url(path: Any) -> bool:
    return isinstance(path, str) and "://" in path


def _infer_features(dataset: "IterableDataset", name: str) -> "Features":
    """The features of a dataset that declares none, inferred from its first row."""
    from datasets import Dataset

    first = list(dataset.take(1))
    if not first:
        raise DataError(f"{name} has no rows; pass a source with images")
    return Dataset.from_list(first).features


def _undecoded(features: "Features", column: str) -> "Features":
    from datasets import Features, Image

    return Features({**features, column: Image(decode=False)})
