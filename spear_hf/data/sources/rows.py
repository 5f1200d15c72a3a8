"""Images in the rows of a `datasets.Dataset`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spear_hf.data.decode import Encoded
from spear_hf.data.domains import Domain
from spear_hf.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset, Features

IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp", "pixel_values")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "class_id", "cls", "target", "category", "imagenet_index")
WNID_COLUMNS = ("wnid", "synset", "wordnet_id")


class RowSource:
    """The rows of a Dataset; the sample id is the row number.

    Args:
        dataset: read as it is stored: a format or transform set on it is left out.
        name: what to call it.
        image_column: "auto" takes the one Image column, else a usual name.
        label_column: "auto" takes a usual name; None reads no labels.
        prefer_wnid: whether "auto" takes a column of WordNet ids before one of numbers.
    """

    held = None

    def __init__(
        self,
        dataset: "Dataset",
        name: str,
        *,
        image_column: str = "auto",
        label_column: str | None = "auto",
        prefer_wnid: bool = False,
    ) -> None:
        from datasets import Image

        self.name = name
        self.image_column = find_image_column(dataset.features, image_column)
        self.label_column = find_label_column(dataset.features, label_column, prefer_wnid)
        dataset = dataset.with_format(None)
        if isinstance(dataset.features[self.image_column], Image):
            dataset = dataset.cast_column(self.image_column, Image(decode=False))
        self._images = dataset.select_columns(self.image_column)
        self.classes, self._labels = self._read_labels(dataset)

    def __len__(self) -> int:
        return len(self._images)

    def labels(self) -> np.ndarray | None:
        """(N,) int64 by row, or None."""
        return self._labels

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """The rows' images, encoded as they are stored."""
        return [as_encoded(cell) for cell in self._images[ids.tolist()][self.image_column]]

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The row, and the file where the dataset remembers one."""
        cell = self._images[int(sample_id)][self.image_column]
        path = cell.get("path") if isinstance(cell, dict) else None
        return f"row {sample_id} of {self.name}" + (f" ({path})" if path else "")

    def describe(self) -> dict[str, Any]:
        """Columns and count."""
        columns = {"image_column": self.image_column, "label_column": self.label_column}
        return {"kind": "dataset", "name": self.name, "count": len(self), **columns}

    def _read_labels(self, dataset: "Dataset") -> tuple[Sequence[str] | None, np.ndarray | None]:
        if self.label_column is None:
            return None, None
        column = dataset.select_columns(self.label_column).with_format("numpy")[:][self.label_column]
        return number_labels(column, getattr(dataset.features[self.label_column], "names", None), self.label_column)


def number_labels(
    column: Any, names: Sequence[str] | None, what: str
) -> tuple[Sequence[str] | None, np.ndarray | None]:
    """(class names or None, (N,) int64) of a column of numbers or names.

    Raises:
        DataError: a column that holds neither.
    """
    values = np.asarray(column)
    if values.ndim == 1 and np.issubdtype(values.dtype, np.integer):
        return names, values.astype(np.int64)
    if values.ndim == 1 and len(values) and isinstance(values[0], str):
        classes, numbers = np.unique(values.astype(str), return_inverse=True)
        return classes.tolist(), numbers.astype(np.int64)
    raise DataError(f"label column {what!r} holds {values.dtype} of shape {values.shape}; it takes integers or names")


def as_encoded(cell: Any) -> Encoded:
    """A cell of an image column: {"bytes", "path"} of an undecoded Image, bytes, or nested lists of pixels."""
    if isinstance(cell, dict):
        return cell["bytes"] if cell.get("bytes") is not None else Path(cell["path"])
    return cell if isinstance(cell, bytes) else np.asarray(cell, dtype=np.uint8)


def find_image_column(features: "Features", wanted: str) -> str:
    """The column that holds images.

    Raises:
        DataError: it is absent, or "auto" finds none or several.
    """
    from datasets import Image

    if wanted != "auto":
        return _present(features, wanted, "image_column")
    of_images = [column for column, feature in features.items() if isinstance(feature, Image)]
    found = of_images if len(of_images) == 1 else [column for column in IMAGE_COLUMNS if column in features]
    if not found:
        raise DataError(f"no image column among {', '.join(features)}; pass image_column=")
    return found[0]


def find_label_column(features: "Features", wanted: str | None, prefer_wnid: bool) -> str | None:
    """The column that holds labels; None where "auto" finds none.

    Raises:
        DataError: a column that was named and is absent.
    """
    from datasets import ClassLabel

    if wanted is None:
        return None
    if wanted != "auto":
        return _present(features, wanted, "label_column")
    of_classes = [column for column, feature in features.items() if isinstance(feature, ClassLabel)]
    usual = [column for column in LABEL_COLUMNS if column in features]
    wnids = [column for column in WNID_COLUMNS if column in features]
    ranked = [*(c for c in usual if c in of_classes), *(of_classes if len(of_classes) == 1 else []), *usual]
    return next(iter([*wnids, *ranked] if prefer_wnid else [*ranked, *wnids]), None)


def _present(features: "Features", column: str, what: str) -> str:
    if column not in features:
        raise DataError(f"{what}={column!r} is not a column; the columns are {', '.join(features)}: pass one of these")
    return column
