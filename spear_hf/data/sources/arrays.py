"""The arrays of CIFAR-10-C: images that are corrupted already."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spear_hf.data.decode import Encoded
from spear_hf.data.domains import Domain
from spear_hf.errors import DataError

SEVERITIES = 5
LABELS = "labels.npy"


class ArraySource:
    """`root/fog.npy`, uint8 (5 n, H, W, 3): severity s is rows (s - 1) n to s n; the sample id is the row within it.

    The arrays are memory-mapped.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from spear_hf.data.sources.arrays import ArraySource
    >>> with tempfile.TemporaryDirectory() as name:
    ...     np.save(Path(name) / "fog.npy", np.zeros((10, 8, 8, 3), np.uint8))
    ...     len(ArraySource({"fog.npy": Path(name) / "fog.npy"}, "CIFAR-10-C"))
    2

    Args:
        files: the arrays by file name; also labels.npy, (5 n,) or (n,), if there are labels.
        name: for people.

    Raises:
        DataError: an array of another shape or dtype.
    """

    classes = None
    window = None

    def __init__(self, files: Mapping[str, Path], name: str) -> None:
        self.name = name
        self._files = dict(files)
        stems = {Path(file).stem: path for file, path in sorted(files.items()) if file != LABELS}
        self._arrays = {corruption: np.load(path, mmap_mode="r") for corruption, path in stems.items()}
        for corruption, array in self._arrays.items():
            _check_array(array, f"{name}/{corruption}.npy")
        rows = {len(array) for array in self._arrays.values()}
        if len(rows) != 1:
            raise DataError(f"the arrays in {name!r} have {sorted(rows)} rows; they need one length: download again")
        self._count = rows.pop() // SEVERITIES
        levels = [float(severity) for severity in range(1, SEVERITIES + 1)]
        self.held = tuple(Domain(((name, level),)) for name in self._arrays for level in levels)
        self._labels = self._load_labels(files.get(LABELS))

    def __len__(self) -> int:
        return self._count

    def __reduce__(self) -> tuple[Any, ...]:  # pickling a memmap would copy its contents
        return type(self), (self._files, self.name)

    def labels(self, ids: np.ndarray, domain: Domain) -> np.ndarray | None:
        """(n,) int64, or None without labels.npy."""
        return None if self._labels is None else self._labels[ids]

    def names(self, ids: np.ndarray, domain: Domain) -> list[str]:
        """The numbers of the rows within a severity."""
        return [str(i) for i in ids.tolist()]

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """Copies of the rows."""
        ((name, severity),) = domain.steps
        return [np.array(self._arrays[name][self._row(severity, i)]) for i in ids.tolist()]

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The row in the file."""
        ((name, severity),) = domain.steps
        return f"row {self._row(severity, sample_id)} of {self.name}/{name}.npy"

    def describe(self) -> dict[str, Any]:
        """Number and shape of the images."""
        shape = list(next(iter(self._arrays.values())).shape[1:])
        return {"kind": "npy", "name": self.name, "count": len(self), "shape": shape}

    def _row(self, severity: float, sample_id: int) -> int:
        return (int(severity) - 1) * self._count + sample_id

    def _load_labels(self, file: Path | None) -> np.ndarray | None:
        if file is None:
            return None
        labels = np.load(file)
        if labels.shape not in ((self._count,), (SEVERITIES * self._count,)):
            raise DataError(
                f"{LABELS} has shape {labels.shape}, but {self.name} has {self._count} images at each of {SEVERITIES} "
                f"severities; it needs ({self._count},) or ({SEVERITIES * self._count},)"
            )
        if (labels.reshape(-1, self._count) != labels[: self._count]).any():
            raise DataError(f"{LABELS} of {self.name} differs between severities; download it again")
        return labels[: self._count].astype(np.int64)


def _check_array(array: np.ndarray, what: str) -> None:
    """Refuse what is not uint8 (5 n, H, W, 3) with n > 0."""
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3 or len(array) % SEVERITIES or not len(array):
        raise DataError(
            f"{what} is {array.dtype} of shape {array.shape}; CIFAR-10-C's layout is uint8 (5 n, H, W, 3), "
            "n images at each of 5 severities: download it again, or write it with spear-hf corrupt"
        )
