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
    """What a user asked for; "auto" looks for it.

    Args:
        image: "auto" takes the one Image column, else a usual name.
        label: "auto" takes a usual name; None reads no labels.
        prefer_wnid: whether "auto" takes a column of WordNet ids before one of numbers.
    """

    image: str = "auto"
    label: str | None = "auto"
    prefer_wnid: bool = False


def find_image_column(features: "Features", wanted: str) -> str:
    """The column that holds images.

    Raises:
        DataError: it is absent, or "auto" finds none.
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
    """The column that holds labels; None where "auto" finds none.

    Raises:
        DataError: a column that was named and is absent.
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


def number_labels(column: Any, names: Sequence[str] | None, what: str) -> tuple[Sequence[str] | None, np.ndarray]:
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


def path_of(cell: Any) -> str:
    """ " (cat.jpg)" where a cell remembers the file it came from, else ""."""
    path = cell.get("path") if isinstance(cell, dict) else None
    return f" ({Path(path).name})" if path else ""


def _present(features: "Features", column: str, what: str) -> str:
    if column not in features:
        raise DataError(f"{what}={column!r} is not a column; the columns are {', '.join(features)}: pass one of these")
    return column
