"""Images inside zip and tar files, one or several shards, read without unpacking."""

import os
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from spear_hf.data.decode import Encoded
from spear_hf.data.domains import Domain
from spear_hf.data.sources.columns import number_labels
from spear_hf.data.sources.image_files import IMAGE_SUFFIXES, SIDECARS, Listing, classes_of_folders, left_out
from spear_hf.errors import DataError

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


def is_archive(path: str | Path) -> bool:
    """True for the name of a zip or tar file.

    >>> from spear_hf.data.sources.archives import is_archive
    >>> is_archive("shard-000.tar"), is_archive("photo.jpg")
    (True, False)
    """
    return str(path).lower().endswith(ARCHIVES)


class ArchiveSource:
    """The image files in archives, in the order of the archives and sorted inside each; the sample id is the position.

    Labels come from class folders, or from the .cls files of a WebDataset. An uncompressed tar and a zip are read at
    any place; a compressed tar is read from its start when an earlier image is asked for.

    >>> import tempfile, zipfile
    >>> from pathlib import Path
    >>> from spear_hf.data.sources.archives import ArchiveSource
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with zipfile.ZipFile(Path(folder) / "pets.zip", "w") as file:
    ...         file.writestr("cat/1.png", b"")
    ...     ArchiveSource([Path(folder) / "pets.zip"]).classes
    ['cat']

    Args:
        archives: the files.
        name: for people; by default that of the only archive.
        label: "cls" takes .cls files, "folder" folders, "auto" what there is, None no labels.

    Raises:
        DataError: a damaged archive, one without images, or labels of another name.
    """

    held: tuple[Domain, ...] | None = None
    window = None

    def __init__(self, archives: Sequence[Path], name: str | None = None, label: str | None = "auto") -> None:
        self.name = name or archives[0].name
        self.notes: list[str] = []
        self._archives = list(archives)
        self._members: list[tuple[int, str]] = []  # (archive, name of the member)
        self._open: dict[int, Any] = {}
        self._pid = os.getpid()
        words: dict[tuple[int, str], str] = {}  # (archive, stem of the member) -> what its .cls file says
        for number in range(len(self._archives)):
            images, unknown, cls = self._list(number)
            self._members += [(number, member) for member in images]
            words |= {(number, member[: -len(".cls")]): self._bytes(number, member).decode().strip() for member in cls}
            if line := left_out(Listing([], unknown, []), self._archives[number].name):
                self.notes.append(line)
        if not self._members:
            raise DataError(f"{self.name} holds no image file; pass an archive of images")
        self.classes: Sequence[str] | None
        self._labels: np.ndarray | None
        if words and label in ("auto", "cls"):
            cells = [words.get((number, member.rpartition(".")[0])) for number, member in self._members]
            is_whole = all(cell is None or cell.isdecimal() for cell in cells)
            typed = [None if cell is None else int(cell) for cell in cells] if is_whole else cells
            self.classes, self._labels = number_labels(typed, None, "cls")
        else:
            inner = [self._inside(number, member) for number, member in self._members]
            self.classes, self._labels, note = classes_of_folders(inner, label, self.name)
            self.notes += [note] if note else []

    def __len__(self) -> int:
        return len(self._members)

    def __getstate__(self) -> dict[str, Any]:  # an open file cannot be pickled
        return vars(self) | {"_open": {}}

    def __del__(self) -> None:
        for file in getattr(self, "_open", {}).values():
            file.close()

    def labels(self, ids: np.ndarray, domain: Domain) -> np.ndarray | None:
        """(n,) int64, or None without class folders and .cls files."""
        return None if self._labels is None else self._labels[ids]

    def names(self, ids: np.ndarray, domain: Domain) -> list[str]:
        """The names of the members, after that of the archive if there are several."""
        several = len(self._archives) > 1
        found = [(number, member.removeprefix("./")) for number, member in (self._members[i] for i in ids.tolist())]
        return [f"{self._archives[number].name}/{member}" if several else member for number, member in found]

    def read(self, ids: np.ndarray, domain: Domain) -> list[Encoded]:
        """The bytes of the members; none of one that is damaged, which is then a broken image."""
        return [self._readable(*self._members[i]) for i in ids.tolist()]

    def locate(self, sample_id: int, domain: Domain) -> str:
        """The archive and the member."""
        number, member = self._members[sample_id]
        return f"{self._archives[number].name}/{member.removeprefix('./')}"

    def describe(self) -> dict[str, Any]:
        """Number of images and archives."""
        return {"kind": "archive", "name": self.name, "count": len(self), "archives": len(self._archives)}

    def _inside(self, number: int, member: str) -> PurePosixPath:
        """The path of a member without a folder that has the name of the archive."""
        path = PurePosixPath(member)
        stem = self._archives[number].name.split(".")[0]
        return PurePosixPath(*path.parts[1:]) if len(path.parts) > 1 and path.parts[0] == stem else path

    def _list(self, number: int) -> tuple[list[str], list[str], list[str]]:
        """The members that are images, those of an unknown kind, and the .cls files."""
        file = self._file(number)
        if isinstance(file, zipfile.ZipFile):
            names = [info.filename for info in file.infolist() if not info.is_dir()]
            if any(info.flag_bits & 1 for info in file.infolist()):
                raise DataError(f"{self._archives[number].name!r} is encrypted; unpack it first")
        else:
            names = [info.name for info in file.getmembers() if info.isfile() or info.issym() or info.islnk()]
        shown = [
            n for n in names if not any(p.startswith((".", "__MACOSX")) and p != "." for p in PurePosixPath(n).parts)
        ]
        images = [name for name in shown if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES]
        unknown = [name for name in shown if PurePosixPath(name).suffix.lower() not in IMAGE_SUFFIXES | SIDECARS]
        return sorted(images), unknown, [name for name in shown if name.endswith(".cls")]

    def _file(self, number: int) -> Any:
        """The opened archive; a forked process opens its own, because it would share the place in the file."""
        if self._pid != os.getpid():
            self._open, self._pid = {}, os.getpid()
        if number not in self._open:
            path = self._archives[number]
            try:
                self._open[number] = zipfile.ZipFile(path) if path.suffix.lower() == ".zip" else tarfile.open(path)  # noqa: SIM115 - it stays open for the next images
            except (OSError, zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
                raise DataError(f"{path.name!r} is no readable archive ({error}); download it again") from error
        return self._open[number]

    def _bytes(self, number: int, member: str) -> bytes:
        file = self._file(number)
        if isinstance(file, zipfile.ZipFile):
            return file.read(member)
        opened = file.extractfile(member)
        return b"" if opened is None else opened.read()

    def _readable(self, number: int, member: str) -> bytes:
        try:
            return self._bytes(number, member)
        except Exception:  # damaged, or a link to nothing: whatever zipfile, tarfile and zlib raise
            return b""
