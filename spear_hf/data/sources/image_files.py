"""Which files below a folder are images, and which folder names are classes."""

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np
from PIL import Image

from spear_hf.data.sources.columns import MISSING
from spear_hf.errors import DataError
from spear_hf.utils.validation import first_of

IMAGE_SUFFIXES = frozenset((
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".bmp", ".dib", ".ppm", ".pgm", ".pbm", ".pnm", ".tif",
    ".tiff", ".gif", ".jp2", ".j2k", ".avif", ".tga",
))  # fmt: skip
SIDECARS = frozenset((
    ".txt", ".md", ".json", ".jsonl", ".csv", ".tsv", ".xml", ".yaml", ".yml", ".html", ".log", ".npy", ".npz",
    ".parquet", ".arrow", ".ini", ".db", ".py", ".sh", ".lock", ".cls",
))  # fmt: skip
_DATE = re.compile(r"(19|20)\d\d([-_. ]?[01]\d([-_. ]?[0-3]\d([-_. T]?[\d:.-]*)?)?)?")


class Listing(NamedTuple):
    """What lies below a folder.

    >>> from spear_hf.data.sources.image_files import Listing
    >>> Listing([], [], []).images
    []
    """

    images: list[PurePosixPath]  # relative to the folder, sorted
    unknown: list[str]  # files of an unknown kind, which are left out
    beside: list[str]  # text, tables and hidden files, which are left out


def list_images(root: Path) -> Listing:
    """The image files below a folder; links are followed, but not into a folder that is being listed.

    A file of an unknown ending is an image if Pillow knows its first bytes. A link to nothing counts as an image, so
    that it is named as a broken one.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from spear_hf.data.sources.image_files import list_images
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (8, 8)).save(Path(folder) / "photo.png")
    ...     list_images(Path(folder))
    Listing(images=[PurePosixPath('photo.png')], unknown=[], beside=[])
    """
    found = Listing([], [], [])
    _visit(root, PurePosixPath(), (os.path.realpath(root),), found)
    found.images.sort()
    return found


def _visit(folder: Path, at: PurePosixPath, chain: tuple[str, ...], found: Listing) -> None:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        place, suffix = at / entry.name, Path(entry.name).suffix.lower()
        if entry.is_dir():
            real = os.path.realpath(entry.path)
            if real not in chain and not entry.name.startswith(".") and entry.name != "__MACOSX":
                _visit(Path(entry.path), place, (*chain, real), found)
        elif entry.name.startswith("."):
            found.beside.append(str(place))
        elif suffix in IMAGE_SUFFIXES:
            found.images.append(place)
        elif suffix in SIDECARS:
            found.beside.append(str(place))
        elif is_image(entry.path):
            found.images.append(place)
        else:
            found.unknown.append(str(place))


def is_image(path: str | Path) -> bool:
    """True if Pillow knows the first bytes of a file.

    >>> from spear_hf.data.sources.image_files import is_image
    >>> is_image(__file__)
    False
    """
    try:
        with Image.open(path):
            return True
    except Exception:  # a file of any kind can raise anything in Pillow
        return False


class FolderClasses(NamedTuple):
    """The classes that folder names give.

    >>> from spear_hf.data.sources.image_files import FolderClasses
    >>> FolderClasses(None, None, "labels: none").classes is None
    True
    """

    classes: list[str] | None
    labels: np.ndarray | None  # (n,) int64
    note: str | None  # why there are no labels


def classes_of_folders(paths: Sequence[PurePosixPath], wanted: str | None, source: str) -> FolderClasses:
    """The outermost folder of each image as its class, unless the folders can hardly be classes.

    >>> from pathlib import PurePosixPath
    >>> from spear_hf.data.sources.image_files import classes_of_folders
    >>> classes_of_folders([PurePosixPath("bee/1.png"), PurePosixPath("cat/1.png")], "auto", "pets").classes
    ['bee', 'cat']
    >>> classes_of_folders([PurePosixPath("2024-05-01/1.png")], "auto", "photos").classes is None
    True

    Args:
        paths: of the images, relative to the source.
        wanted: "auto" takes no labels from folders that are dates, nor if images lie beside the folders; "folder"
            takes them from any folder; None takes none.
        source: its name, for messages.

    Raises:
        DataError: another `wanted`, or "folder" without a folder.
    """
    tops = sorted({path.parts[0] for path in paths if len(path.parts) > 1})
    loose = [path for path in paths if len(path.parts) == 1]
    if wanted not in ("auto", "folder", None) or (wanted == "folder" and not tops):
        raise DataError(
            f"label_column={wanted!r}, but {source} holds images {'in folders' if tops else 'without folders'}; pass "
            "label_column='folder' for the folders as classes, or None for no labels"
        )
    if wanted is None or not tops:
        return FolderClasses(None, None, None)
    if wanted == "auto" and all(_DATE.fullmatch(top) for top in tops):
        return FolderClasses(None, None, f"labels: none, because the folders are dates ({first_of(tops, 3, ', and ')})")
    if wanted == "auto" and loose:
        beside = f"{len(loose)} of {len(paths)} images lie beside the folders ({first_of(loose, 3, ', and ')})"
        return FolderClasses(
            None, None, f"labels: none, because {beside}; label_column='folder' takes the folders as classes"
        )
    number = {top: i for i, top in enumerate(tops)}
    labels = np.array([number[path.parts[0]] if len(path.parts) > 1 else MISSING for path in paths], dtype=np.int64)
    plain = [unquote(top) for top in tops]  # an exported class "a/b" is the folder "a%2Fb"
    return FolderClasses(plain if len(set(plain)) == len(plain) else tops, labels, None)


def left_out(listing: Listing, source: str) -> str | None:
    """A line that counts and names the files that were taken for no images; None without any.

    >>> from spear_hf.data.sources.image_files import Listing, left_out
    >>> left_out(Listing([], ["a.heic"], []), "photos")
    'photos: 1 file of an unknown kind is left out (a.heic)'
    """
    count = len(listing.unknown)
    what = "file of an unknown kind is" if count == 1 else "files of an unknown kind are"
    return f"{source}: {count} {what} left out ({first_of(listing.unknown, 3, ', and ')})" if count else None
