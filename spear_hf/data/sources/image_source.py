"""The interface between a stream and its images: numbered images that can be read in any order."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from spear_hf.data.decode import Encoded
from spear_hf.data.domains import Domain


class ImageSource(Protocol):
    """Numbered images, read when they are needed. The number of an image, its sample id, never depends on an order.

    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from spear_hf.data.sources import Columns, open_source
    >>> rows = Dataset.from_dict({"image": [np.zeros((32, 32, 3), np.uint8)] * 3, "label": [1, 0, 1]})
    >>> source = open_source(rows, Columns())
    >>> len(source), source.held, source.window
    (3, None, None)
    """

    @property
    def name(self) -> str:
        """A name for people, without a path of the machine."""
        ...

    @property
    def classes(self) -> Sequence[str] | None:
        """Names or WordNet ids of the classes, in the order of the labels; None if labels are numbers without names."""
        ...

    @property
    def held(self) -> tuple[Domain, ...] | None:
        """The domains whose corrupted images it holds; None if its images are clean and the stream corrupts them."""
        ...

    @property
    def window(self) -> int | None:
        """The number of consecutive images that it can hold at once; None if it can be read in any order."""
        ...

    def __len__(self) -> int:
        """Number of images (in one domain)."""
        ...

    def labels(self, ids: np.ndarray, domain: Domain) -> np.ndarray | None:
        """(n,) int64 labels of sample ids, or None without labels; `domain` matters if the source holds several."""
        ...

    def names(self, ids: np.ndarray, domain: Domain) -> list[str]:
        """A name for each sample id: the path relative to the source, or the number of the row."""
        ...

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """The images of sample ids, not decoded."""
        ...

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The place of an image, for an error message: "row 17 of test.parquet"."""
        ...

    def describe(self) -> dict[str, Any]:
        """Kind and details for provenance, JSON-ready."""
        ...
