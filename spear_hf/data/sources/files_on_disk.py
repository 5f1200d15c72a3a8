"""Image files on disk: a folder of images, with a folder for each class or not, or ImageNet-C's tree."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spear_hf.data.decode import Encoded
from spear_hf.data.domains import Domain
from spear_hf.data.sources.image_files import IMAGE_SUFFIXES, classes_of_folders, left_out, list_images
from spear_hf.errors import DataError


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
        root: holds a folder for each class, or image files; linked folders are followed.
        label: "auto" and "folder" take the outermost folders as classes, None takes no labels; see
            `classes_of_folders`.

    Raises:
        DataError: a folder without an image file, or an empty class folder.
    """

    held: tuple[Domain, ...] | None = None
    window = None

    def __init__(self, root: Path, label: str | None = "auto") -> None:
        self.name = root.name or root.resolve().name
        self._root = root
        listing = list_images(root)
        if not listing.images:
            raise DataError(
                f"{self.name!r} holds no image file ({', '.join(sorted(IMAGE_SUFFIXES)[:8])}, ...); pass the folder of "
                "the images"
            )
        self._files = listing.images
        self.classes: Sequence[str] | None
        self.classes, self._labels, note = classes_of_folders(listing.images, label, self.name)
        self.notes = [line for line in (left_out(listing, self.name), note) if line]
        for line in self.notes:
            if "left out" in line or "beside" in line:
                warnings.warn(line, stacklevel=5)
        filled = {file.parts[0] for file in self._files}
        above = {root.resolve(), *root.resolve().parents}  # a link to one of these holds the same images again
        folders = [folder.name for folder in subfolders(root) if folder.resolve() not in above]
        if self.classes and (empty := [folder for folder in folders if folder not in filled]):
            raise DataError(
                f"class folders {', '.join(empty[:5])} of {self.name!r} hold no image file; remove them, or pass "
                "label_column=None to go without labels"
            )

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
        label: as for a `FolderSource`.
    """

    def __init__(self, root: Path, domains: dict[Domain, Path], label: str | None = "auto") -> None:
        super().__init__(root / next(iter(domains.values())), label)
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
