"""Which columns of a dataset hold images and labels, and how their cells are read."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spear_hf.data.decode import Encoded
from spear_hf.errors import DataError

if TYPE_CHECKING:
    from datasets import Features

IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp", "pixel_values")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "class_id", "cls", "target", "category", "imagenet_index")
WNID_COLUMNS = ("wnid", "synset", "wordnet_id")


class Columns(NamedTuple):
    """The columns that a user asks for; "auto" finds them.

    >>> from spear_hf.data.sources import Columns
    >>> Columns(label=None)
    Columns(image='auto', label=None, prefer_wnid=False)

    Args:
        image: "auto" takes the only Image column, otherwise a usual name.
        label: "auto" takes a usual name; None reads no labels.
        prefer_wnid: "auto" takes a column of WordNet ids rather than a column of numbers.
    """

    image: str = "auto"
    label: str | None = "auto"
    prefer_wnid: bool = False


def find_image_column(features: "Features", wanted: str) -> str:
    """The column that holds images.

    >>> from datasets import Features, Image, Value
    >>> from spear_hf.data.sources.columns import find_image_column
    >>> find_image_column(Features({"photo": Image(), "id": Value("int64")}), "auto")
    'photo'

    Raises:
        DataError: no such column, or "auto" finds none.
    """
    from datasets import Image

    if wanted != "auto":
        return _present(features, wanted, "image_column")
    of_images = [column for column, feature in features.items() if isinstance(feature, Image)]
    found = of_images if len(of_images) == 1 else [column for column in IMAGE_COLUMNS if column in features]
    if not found:
        raise DataError(f"no image column among {', '.join(features)}; pass image_column=")
    return found[0]


def find_label_column(features: "Features", wanted: Columns) -> str | None:
    """The column that holds labels; None if "auto" finds none.

    >>> from datasets import Features, Image, Value
    >>> from spear_hf.data.sources.columns import Columns, find_label_column
    >>> find_label_column(Features({"image": Image(), "target": Value("int64")}), Columns())
    'target'

    Raises:
        DataError: no such column.
    """
    from datasets import ClassLabel

    if wanted.label is None:
        return None
    if wanted.label != "auto":
        return _present(features, wanted.label, "label_column")
    of_classes = [column for column, feature in features.items() if isinstance(feature, ClassLabel)]
    usual = [column for column in LABEL_COLUMNS if column in features]
    wnids = [column for column in WNID_COLUMNS if column in features]
    ranked = [*(c for c in usual if c in of_classes), *(of_classes if len(of_classes) == 1 else []), *usual]
    return next(iter([*wnids, *ranked] if wanted.prefer_wnid else [*ranked, *wnids]), None)


def number_labels(
    column: Any, names: Sequence[str] | None, column_name: str
) -> tuple[Sequence[str] | None, np.ndarray]:
    """(class names or None, (N,) int64) of a column of numbers or names.

    >>> from spear_hf.data.sources.columns import number_labels
    >>> classes, numbers = number_labels(["cat", "bee", "cat"], None, "kind")
    >>> classes, numbers.tolist()
    (['bee', 'cat'], [1, 0, 1])

    Args:
        column: its cells.
        names: of the classes, if the column holds numbers and the names are known.
        column_name: for the error message.

    Raises:
        DataError: a column of other values.
    """
    values = np.asarray(column)
    if values.ndim == 1 and np.issubdtype(values.dtype, np.integer):
        return names, values.astype(np.int64)
    if values.ndim == 1 and len(values) and isinstance(values[0], str):
        classes, numbers = np.unique(values.astype(str), return_inverse=True)
        return classes.tolist(), numbers.astype(np.int64)
    raise DataError(
        f"label column {column_name!r} holds {values.dtype} of shape {values.shape}; it takes integers or names"
    )


def as_encoded(cell: Any) -> Encoded:
    """A cell of an image column as an encoded image.

    >>> from spear_hf.data.sources.columns import as_encoded
    >>> as_encoded({"bytes": None, "path": "cat.jpg"}).name
    'cat.jpg'

    Args:
        cell: {"bytes", "path"} of an Image that is not decoded, bytes, or nested lists of pixels.
    """
    if isinstance(cell, dict):
        return cell["bytes"] if cell.get("bytes") is not None else Path(cell["path"])
    return cell if isinstance(cell, bytes) else np.asarray(cell, dtype=np.uint8)


def file_note(cell: Any) -> str:
    """ " (cat.jpg)" if a cell has the name of its file, otherwise "".

    >>> from spear_hf.data.sources.columns import file_note
    >>> file_note({"bytes": b"", "path": "photos/cat.jpg"})
    ' (cat.jpg)'
    """
    path = cell.get("path") if isinstance(cell, dict) else None
    return f" ({Path(path).name})" if path else ""


def _present(features: "Features", column: str, option: str) -> str:
    if column not in features:
        raise DataError(
            f"{option}={column!r} is not a column; the columns are {', '.join(features)}: pass one of these"
        )
    return column
