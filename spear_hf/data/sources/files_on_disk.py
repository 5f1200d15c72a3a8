"""Image files on disk: a folder for each class, ImageNet-C's tree, or the arrays of CIFAR-10-C."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spear_hf.data.decode import Encoded
from spear_hf.data.domains import Domain
from spear_hf.errors import DataError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"})
SEVERITIES = 5
LABELS = "labels.npy"


class FolderSource:
    """`root/class/*.jpg`, or image files without classes; the sample id is the position in the sorted list of files.

    `datasets` reads such a folder too, but it takes words in file names ("val", "test") for splits, and copies the list
    into a cache.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from spear_hf.data.sources.files_on_disk import FolderSource
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (8, 8)).save(Path(folder) / "photo.png")
    ...     len(FolderSource(Path(folder)))
    1

    Args:
        root: holds a folder for each class, or image files.

    Raises:
        DataError: a folder without an image file, or an empty class folder.
    """

    held: tuple[Domain, ...] | None = None
    window = None

    def __init__(self, root: Path) -> None:
        self.name = root.name
        self._root = root
        folders = subfolders(root)
        self.classes: Sequence[str] | None = [folder.name for folder in folders] or None
        groups = [_list_images(folder) for folder in folders] or [_list_images(root)]
        empty = [folder.name for folder, files in zip(folders, groups, strict=False) if not files]
        if empty or not any(groups):
            which = f"class folders {', '.join(empty[:5])} of {self.name!r} hold" if empty else f"{self.name!r} holds"
            raise DataError(
                f"{which} no image file ({', '.join(sorted(IMAGE_SUFFIXES))}); pass the folder of the images"
            )
        self._files = [file.relative_to(root) for files in groups for file in files]
        self._labels = np.repeat(np.arange(len(groups)), [len(files) for files in groups]) if folders else None

    def __len__(self) -> int:
        return len(self._files)

    def labels(self, ids: np.ndarray, domain: Domain) -> np.ndarray | None:
        """(n,) int64, the position of each file's class folder, or None without class folders."""
        return None if self._labels is None else self._labels[ids]

    def names(self, ids: np.ndarray, domain: Domain) -> list[str]:
        """The paths of the files, relative to the root folder."""
        return [self._files[i].as_posix() for i in ids]

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """The paths of the files."""
        return [self._root / self._files[i] for i in ids]

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The path of the file, starting at the root folder."""
        return f"{self.name}/{self._files[sample_id].as_posix()}"

    def describe(self) -> dict[str, Any]:
        """Number of images and classes."""
        return {"kind": "imagefolder", "name": self.name, "count": len(self), "classes": len(self.classes or ())}


class TreeSource(FolderSource):
    """`root/corruption/severity/class/*.JPEG`, as ImageNet-C is published: images that are corrupted already.

    The list of files is taken from the first domain; a file that another domain lacks is an error when it is read.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from spear_hf.data.sources.files_on_disk import TreeSource, find_tree
    >>> with tempfile.TemporaryDirectory() as name:
    ...     root = Path(name)
    ...     (root / "fog" / "5" / "cat").mkdir(parents=True)
    ...     Image.new("RGB", (8, 8)).save(root / "fog" / "5" / "cat" / "1.png")
    ...     str(TreeSource(root, find_tree(root)).held[0])
    'fog/5'

    Args:
        root: holds a folder for each corruption.
        domains: the folder of each domain, relative to the root; see `find_tree`.
    """

    def __init__(self, root: Path, domains: dict[Domain, Path]) -> None:
        super().__init__(root / next(iter(domains.values())))
        self.name = root.name
        self.held = tuple(domains)
        self._tree, self._folders = root, domains

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """The paths of the files in the domain's folder."""
        return [self._tree / self._folders[domain] / self._files[i] for i in ids]

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The path of the file, starting at the root folder."""
        return f"{self.name}/{self._folders[domain].as_posix()}/{self._files[sample_id].as_posix()}"

    def describe(self) -> dict[str, Any]:
        """Number of images and classes."""
        return super().describe() | {"kind": "corruption tree"}


class ArraySource:
    """`root/fog.npy`, uint8 (5 n, H, W, 3): severity s is rows (s - 1) n to s n; the sample id is the row within it.

    The arrays are memory-mapped.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from spear_hf.data.sources.files_on_disk import ArraySource
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


def find_tree(root: Path) -> dict[Domain, Path]:
    """The folder of each domain in a corruption tree, relative to the root; empty for another folder.

    A group folder above the corruptions ("noise/gaussian_noise/1") is allowed, because the archives unpack so.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from spear_hf.data.sources.files_on_disk import find_tree
    >>> with tempfile.TemporaryDirectory() as name:
    ...     (Path(name) / "noise" / "shot_noise" / "3").mkdir(parents=True)
    ...     [str(domain) for domain in find_tree(Path(name))]
    ['shot_noise/3']
    """
    for corruptions in (subfolders(root), [inner for outer in subfolders(root) for inner in subfolders(outer)]):
        found = {
            Domain(((folder.name, float(severity.name)),)): severity.relative_to(root)
            for folder in corruptions
            for severity in subfolders(folder)
            if severity.name in tuple("12345")
        }
        if found:
            return found
    return {}


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted by name, without hidden ones.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from spear_hf.data.sources.files_on_disk import subfolders
    >>> with tempfile.TemporaryDirectory() as name:
    ...     (Path(name) / "cat").mkdir()
    ...     [folder.name for folder in subfolders(Path(name))]
    ['cat']
    """
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _list_images(folder: Path) -> list[Path]:
    """The image files below a folder, sorted by path."""
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file())
