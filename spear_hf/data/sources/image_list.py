"""Images that a user holds in a list: paths, PIL images, arrays or encoded bytes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from spear_hf.data.decode import Encoded
from spear_hf.data.domains import Domain
from spear_hf.errors import DataError


class ImageList:
    """Images without labels, in the order of the list; the sample id is the position in it.

    >>> import numpy as np
    >>> from spear_hf.data.domains import CLEAN
    >>> from spear_hf.data.sources.image_list import ImageList
    >>> ImageList(["cat.jpg", np.zeros((8, 8, 3), np.uint8)]).names(np.array([0, 1]), CLEAN)
    ['cat.jpg', '1']

    Args:
        images: paths, URLs, PIL images, arrays (H, W, 3) or bytes of image files.
        name: for people.
        names: of the images; by default their paths, or their positions.

    Raises:
        DataError: an empty list, or an item of another kind.
    """

    held: tuple[Domain, ...] | None = None
    window = None
    classes = None

    def __init__(self, images: Sequence[Any], name: str = "list", names: Sequence[str] | None = None) -> None:
        if not len(images):
            raise DataError(f"{name} is empty; pass at least one image")
        self.name = name
        self._images = [_encoded(item, i) for i, item in enumerate(images)]
        self._names = list(names or (_name(item, i) for i, item in enumerate(images)))

    def __len__(self) -> int:
        return len(self._images)

    def labels(self, ids: np.ndarray, domain: Domain) -> np.ndarray | None:
        """None: a list has no labels."""
        return None

    def names(self, ids: np.ndarray, domain: Domain) -> list[str]:
        """The paths of the images, or their positions in the list."""
        return [self._names[i] for i in ids.tolist()]

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """The items of the list."""
        return [self._images[i] for i in ids.tolist()]

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The path, or the position."""
        name = self._names[sample_id]
        return f"image {name} of the {self.name}" if name == str(sample_id) else name

    def describe(self) -> dict[str, Any]:
        """Number of images."""
        return {"kind": "list", "name": self.name, "count": len(self)}


def _encoded(item: Any, place: int) -> Encoded:
    if isinstance(item, str):
        return item if "://" in item else Path(item).expanduser()
    if item is None or isinstance(item, bytes | Path | np.ndarray | Image.Image):
        return item
    if hasattr(item, "numpy"):
        return item.numpy()
    raise DataError(
        f"item {place} of the list is a {type(item).__name__}; a list holds paths, PIL images, arrays or bytes"
    )


def _name(item: Any, place: int) -> str:
    path = getattr(item, "filename", item)
    return Path(path).as_posix() if isinstance(path, str | Path) and str(path) else str(place)
