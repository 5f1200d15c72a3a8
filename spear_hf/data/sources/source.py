"""What a stream reads from: numbered images that it can ask for in any order."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from spear_hf.data.decode import Encoded
from spear_hf.data.domains import Domain


class Source(Protocol):
    """Numbered images, read lazily. The number of an image is its sample id: it never depends on an order."""

    @property
    def name(self) -> str:
        """What a person calls it; no machine's path."""
        ...

    @property
    def classes(self) -> Sequence[str] | None:
        """Names or WordNet ids that labels count through; None where labels are bare numbers."""
        ...

    @property
    def held(self) -> tuple[Domain, ...] | None:
        """The domains it holds as corrupted images; None where its images are clean and the stream corrupts them."""
        ...

    @property
    def window(self) -> int | None:
        """How many consecutive images it can hold at once; None where it can read in any order."""
        ...

    def __len__(self) -> int:
        """Number of images (in one domain)."""
        ...

    def labels(self, ids: np.ndarray, domain: Domain) -> np.ndarray | None:
        """(n,) int64 of some sample ids, or None without labels; `domain` matters to a source that holds several."""
        ...

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """The images of some sample ids, not decoded yet."""
        ...

    def locate(self, sample_id: int, domain: Domain) -> str:
        """Where an image is, for an error: "row 17 of test.parquet"."""
        ...

    def describe(self) -> dict[str, Any]:
        """Kind and details for provenance, JSON-ready."""
        ...
