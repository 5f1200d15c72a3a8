"""Images in the rows of a `datasets.Dataset`."""

import re
from collections.abc import Sequence
from copy import copy
from pathlib import Path
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
    from datasets import Dataset


class RowSource:
    """The rows of a Dataset; the sample id is the row number.

    Args:
        dataset: read as it is stored: a format or transform set on it is left out.
        name: what to call it.
        columns: which of its columns to read.

    Raises:
        DataError: no rows, or not the columns asked for.
    """

    held = None
    window = None

    def __init__(self, dataset: "Dataset", name: str, columns: Columns) -> None:
        from datasets import Image

        if len(dataset) == 0:
            raise DataError(f"{name} has no rows; pass a source with images")
        self.name = name
        self.image_column = find_image_column(dataset.features, columns.image)
        self.label_column = find_label_column(dataset.features, columns)
        self.commit = commit_of(dataset)
        dataset = dataset.with_format(None)
        if isinstance(dataset.features[self.image_column], Image):
            dataset = dataset.cast_column(self.image_column, Image(decode=False))
        self._images = dataset.select_columns(self.image_column)
        self._rows: np.ndarray | None = None
        self.classes, self._labels = self._read_labels(dataset)

    def only(self, rows: np.ndarray) -> "RowSource":
        """The same source with these rows alone: sample id i is row rows[i]."""
        part = copy(self)
        part._rows = rows
        return part

    def __len__(self) -> int:
        return len(self._images if self._rows is None else self._rows)

    def labels(self, ids: np.ndarray, domain: Domain) -> np.ndarray | None:
        """(n,) int64 by row, or None without a label column."""
        return None if self._labels is None else self._labels[self._at(ids)]

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """The rows' images, encoded as they are stored."""
        return [as_encoded(cell) for cell in self._images[self._at(ids).tolist()][self.image_column]]

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The row, and the file where the dataset remembers one."""
        (row,) = self._at(np.array([sample_id])).tolist()
        return f"row {row} of {self.name}{path_of(self._images[row][self.image_column])}"

    def describe(self) -> dict[str, Any]:
        """Columns, count, and the commit of a Hub dataset."""
        columns = {"image_column": self.image_column, "label_column": self.label_column}
        return {"kind": "dataset", "name": self.name, "commit": self.commit, "count": len(self), **columns}

    def _at(self, ids: np.ndarray) -> np.ndarray:
        return ids if self._rows is None else self._rows[ids]

    def _read_labels(self, dataset: "Dataset") -> tuple[Sequence[str] | None, np.ndarray | None]:
        if self.label_column is None:
            return None, None
        column = dataset.select_columns(self.label_column).with_format("numpy")[:][self.label_column]
        return number_labels(column, getattr(dataset.features[self.label_column], "names", None), self.label_column)


def commit_of(dataset: "Dataset") -> str | None:
    """The commit that a Hub dataset was downloaded at: a folder of its cache is named for it."""
    folders = [Path(file["filename"]).parent.name for file in dataset.cache_files]
    return next((folder for folder in folders if re.fullmatch("[0-9a-f]{40}", folder)), None)
