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
MISSING = np.iinfo(np.int64).min  # the label of an empty cell
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
        DataError: no such column, or an "auto" for which several columns could be meant.
    """
    from datasets import ClassLabel

    if wanted.label is None:
        return None
    if wanted.label != "auto":
        return _present(features, wanted.label, "label_column")
    of_classes = [column for column, feature in features.items() if isinstance(feature, ClassLabel)]
    usual = [column for column in LABEL_COLUMNS if column in features]
    wnids = [column for column in WNID_COLUMNS if column in features]
    if wanted.prefer_wnid and wnids:
        return wnids[0]
    named = [column for column in usual if column in of_classes]
    others = [column for column in of_classes if column not in usual]
    if plain := [column for column in ("label", "labels") if column in usual and not named]:
        return plain[0]
    if not named and others and (usual or len(others) > 1):
        both = ", ".join(map(repr, [*usual, *others]))
        raise DataError(
            f"columns {both} could each hold the labels; pass label_column= with one, or None for no labels"
        )
    return next(iter([*named, *others, *usual, *wnids]), None)


def rival_columns(features: "Features", chosen: str) -> list[str]:
    """The other columns that usually hold labels: what they say must not disagree with the chosen one.

    >>> from datasets import Features, Value
    >>> from spear_hf.data.sources.columns import rival_columns
    >>> rival_columns(Features({"label": Value("int64"), "wnid": Value("string"), "id": Value("int64")}), "wnid")
    ['label']
    """
    return [column for column in (*LABEL_COLUMNS, *WNID_COLUMNS) if column in features and column != chosen]


def number_labels(
    column: Any, names: Sequence[str] | None, column_name: str
) -> tuple[Sequence[str] | None, np.ndarray]:
    """(class names or None, (N,) int64) of a column of numbers or names.

    >>> from spear_hf.data.sources.columns import number_labels
    >>> classes, numbers = number_labels(["cat", "bee", "cat"], None, "kind")
    >>> classes, numbers.tolist()
    (['bee', 'cat'], [1, 0, 1])

    Args:
        column: its cells; an empty one gives MISSING.
        names: of the classes, if the column holds numbers and the names are known.
        column_name: for the error message.

    Raises:
        DataError: a column of other values.
    """
    cells = list(column)
    there = [cell is not None and cell != "" and cell == cell for cell in cells]  # NaN is an empty cell too
    filled = [cell for cell, is_there in zip(cells, there, strict=True) if is_there]
    if all(isinstance(cell, float) and cell.is_integer() for cell in filled):  # whole numbers beside an empty cell
        filled = [int(cell) for cell in filled]
    numbers = np.full(len(cells), MISSING)
    if filled and all(isinstance(cell, str) for cell in filled):
        classes, numbers[there] = np.unique(np.array(filled, dtype=str), return_inverse=True)
        return classes.tolist(), numbers
    if all(isinstance(cell, int | np.integer) and not isinstance(cell, bool) for cell in filled):
        numbers[there] = filled
        return names, numbers
    odd = next(cell for cell in filled if isinstance(cell, bool) or not isinstance(cell, int | np.integer))
    raise DataError(
        f"label column {column_name!r} holds {type(odd).__name__} values ({str(odd)[:40]}); it takes integers or "
        "names: choose another label_column, or None"
    )


def as_encoded(cell: Any, dtype: str | None = None, root: Path = Path()) -> Encoded:
    """A cell of an image column as an encoded image; None for an empty cell.

    >>> from spear_hf.data.sources.columns import as_encoded
    >>> as_encoded({"bytes": None, "path": "cat.jpg"}).name
    'cat.jpg'

    Args:
        cell: {"bytes", "path"} of an Image that is not decoded, bytes, a path or URL, or nested lists of pixels.
        dtype: of the pixels; None for that of the lists.
        root: the folder that relative paths start at.
    """
    if isinstance(cell, dict):
        cell = cell["bytes"] if cell.get("bytes") is not None else cell.get("path")
    if isinstance(cell, str):
        return cell if "://" in cell else root / cell if cell else None
    if cell is None or isinstance(cell, bytes):
        return cell
    try:
        return np.asarray(cell, dtype=dtype)
    except ValueError:  # rows of several lengths; refused when it is decoded
        return np.array(cell, dtype=object)


def pixel_dtype(feature: Any) -> str | None:
    """The dtype of a column of pixels, as numpy names it; None for a column of another kind.

    >>> from datasets import Array3D
    >>> from spear_hf.data.sources.columns import pixel_dtype
    >>> pixel_dtype(Array3D((8, 8, 3), "float32"))
    'float32'
    """
    while getattr(feature, "feature", None) is not None:
        feature = feature.feature
    found = getattr(feature, "dtype", None)
    return found if found in ("uint8", "uint16", "float16", "float32", "float64", "bool") else None


def file_note(cell: Any) -> str:
    """ " (cat.jpg)" if a cell has the name of its file, otherwise "".

    >>> from spear_hf.data.sources.columns import file_note
    >>> file_note({"bytes": b"", "path": "photos/cat.jpg"})
    ' (cat.jpg)'
    """
    path = cell.get("path") if isinstance(cell, dict) else cell if isinstance(cell, str) else None
    return f" ({Path(path).name})" if path else ""


def _present(features: "Features", column: str, option: str) -> str:
    if column not in features:
        raise DataError(
            f"{option}={column!r} is not a column; the columns are {', '.join(features)}: pass one of these"
        )
    return column
