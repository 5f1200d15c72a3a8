"""Images of a `datasets.IterableDataset`: downloaded as they are shown, in windows."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from spear_hf.data.decode import Encoded
from spear_hf.data.domains import Domain
from spear_hf.data.sources.columns import (
    Columns,
    as_encoded,
    find_image_column,
    find_label_column,
    number_labels,
    path_of,
)
from spear_hf.errors import DataError

if TYPE_CHECKING:
    from datasets import Features, IterableDataset


class IterableSource:
    """The first `length` rows of an IterableDataset; the sample id is the place in its own order.

    It is read from the front, a window of encoded images at a time, and again from the front for the next domain. A
    stream shuffles inside windows, so that batch g stays a function of g; a dataset sorted by class stays sorted.

    Args:
        dataset: any; read without decoding.
        name: what to call it.
        columns: which of its columns to read.
        length: how many rows a domain shows: it cannot be asked.
        window: how many rows are held at once; 512 photographs take some 50 MB.

    Raises:
        DataError: no rows, or not the columns asked for.
    """

    held = None

    def __init__(self, dataset: "IterableDataset", name: str, columns: Columns, length: int, window: int) -> None:
        from datasets import Image

        features = dataset.features or infer_features(dataset, name)
        self.name = name
        self.window = window
        self.image_column = find_image_column(features, columns.image)
        self.label_column = find_label_column(features, columns)
        self.classes = getattr(features[self.label_column], "names", None) if self.label_column else None
        self._length = length
        if isinstance(features[self.image_column], Image):
            dataset = dataset.cast(_undecoded(features, self.image_column))
        self._dataset = dataset.select_columns([c for c in (self.image_column, self.label_column) if c])
        self._windows: dict[int, dict[str, list[Any]]] = {}
        self._reader: Iterator[dict[str, list[Any]]] | None = None
        self._reader_at = (-1, 0)  # process, next window: a forked reader would share its file position

    def __len__(self) -> int:
        return self._length

    def __getstate__(self) -> dict[str, Any]:  # readers do not travel to another process
        return vars(self) | {"_reader": None, "_reader_at": (-1, 0), "_windows": {}}

    def labels(self, ids: np.ndarray, domain: Domain) -> np.ndarray | None:
        """(n,) int64, or None without a label column.

        Raises:
            DataError: a column of names, which can be numbered only once all are known.
        """
        if self.label_column is None:
            return None
        names, numbers = number_labels(self._cells(ids, self.label_column), None, self.label_column)
        if names is not None:
            raise DataError(
                f"label column {self.label_column!r} of {self.name} holds names, which a streaming source cannot "
                "number; pass label_column=None, cast it to datasets.ClassLabel, or load it without streaming=True"
            )
        return numbers

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """The rows' images, encoded as they come."""
        return [as_encoded(cell) for cell in self._cells(ids, self.image_column)]

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The row, and the file where the dataset remembers one."""
        (cell,) = self._cells(np.array([sample_id]), self.image_column)
        return f"row {sample_id} of {self.name}{path_of(cell)}"

    def describe(self) -> dict[str, Any]:
        """Columns, count and window."""
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
            # `iter` would hand each DataLoader worker another part of the rows; `.iter` gives all of them
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


def infer_features(dataset: "IterableDataset", name: str) -> "Features":
    """The features of a dataset that declares none, from its first row."""
    from datasets import Dataset

    first = list(dataset.take(1))
    if not first:
        raise DataError(f"{name} has no rows; pass a source with images")
    return Dataset.from_list(first).features


def _undecoded(features: "Features", column: str) -> "Features":
    from datasets import Features, Image

    return Features({**features, column: Image(decode=False)})
