"""Image files on disk: one folder for each class, or ImageNet-C's tree of corruption, severity and class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spear_hf.data.decode import Encoded
from spear_hf.data.domains import Domain
from spear_hf.errors import DataError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"})
SEVERITIES = tuple("12345")


class FolderSource:
    """`root/class/*.jpg`, or image files without classes; the sample id is the position in the sorted list of files.

    `datasets` reads such a folder too, but takes words in file names ("val", "test") for splits, and copies the list
    into a cache.

    Args:
        root: holds a folder for each class, or image files.

    Raises:
        DataError: a folder without an image file, or a class folder that is empty.
    """

    held: tuple[Domain, ...] | None = None
    window = None

    def __init__(self, root: Path) -> None:
        self.name = root.name
        self._root = root
        folders = subfolders(root)
        self.classes: Sequence[str] | None = [folder.name for folder in folders] or None
        groups = [list_images(folder) for folder in folders] or [list_images(root)]
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
        """(n,) int64 position of each file's folder, or None without class folders."""
        return None if self._labels is None else self._labels[ids]

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """The paths of the files."""
        return [self._root / self._files[i] for i in ids]

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The file, from the root on."""
        return f"{self.name}/{self._files[sample_id].as_posix()}"

    def describe(self) -> dict[str, Any]:
        """Count of images and classes."""
        return {"kind": "imagefolder", "name": self.name, "count": len(self), "classes": len(self.classes or ())}


class TreeSource(FolderSource):
    """`root/corruption/severity/class/*.JPEG`, as ImageNet-C is published: images that are corrupted already.

    The files of the first domain stand for those of all; one that another domain lacks is an error when it is read.

    Args:
        root: holds a folder for each corruption.
        domains: the folder, below the root, of each domain; see `find_tree`.
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
        """The file, from the root on."""
        return f"{self.name}/{self._folders[domain].as_posix()}/{self._files[sample_id].as_posix()}"

    def describe(self) -> dict[str, Any]:
        """Count of images and classes."""
        return super().describe() | {"kind": "corruption tree"}


def find_tree(root: Path) -> dict[Domain, Path]:
    """The folder of each domain in a corruption tree, or nothing where `root` is none.

    A folder between them ("noise/gaussian_noise/1", as some unpack the archives) does no harm.
    """
    for corruptions in (subfolders(root), [inner for outer in subfolders(root) for inner in subfolders(outer)]):
        found = {
            Domain(((folder.name, float(severity.name)),)): severity.relative_to(root)
            for folder in corruptions
            for severity in subfolders(folder)
            if severity.name in SEVERITIES
        }
        if found:
            return found
    return {}


def subfolders(folder: Path) -> list[Path]:
    """The visible folders in a folder, sorted by name."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def list_images(folder: Path) -> list[Path]:
    """The image files below a folder, sorted by path."""
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file())
