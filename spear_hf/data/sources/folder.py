"""Image files on disk, one folder for each class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spear_hf.data.decode import Encoded
from spear_hf.data.domains import Domain
from spear_hf.errors import DataError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"})


class FolderSource:
    """`root/class/*.jpg`, or image files without classes; the sample id is the position in the sorted list of files.

    `datasets` reads such a folder too, but takes words in file names ("val", "test") for splits, and copies the list
    into a cache.

    Args:
        root: holds a folder for each class, or image files.

    Raises:
        DataError: a folder without an image file, or a class folder that is empty.
    """

    held = None

    def __init__(self, root: Path) -> None:
        self.name = root.name
        self._root = root
        folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
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

    def labels(self) -> np.ndarray | None:
        """(N,) int64 position of each file's folder, or None without class folders."""
        return self._labels

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """The paths of the files."""
        return [self._root / self._files[i] for i in ids]

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The file, below the root."""
        return f"{self.name}/{self._files[sample_id].as_posix()}"

    def describe(self) -> dict[str, Any]:
        """Count of images and classes."""
        return {"kind": "imagefolder", "name": self.name, "count": len(self), "classes": len(self.classes or ())}


def list_images(folder: Path) -> list[Path]:
    """The image files below a folder, sorted by path."""
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file())
