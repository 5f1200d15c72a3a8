"""Write the files of a folder all or nothing: a kill at any moment leaves the old ones together, or the new ones."""

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from spear_hf.utils.files import locked, sweep, temporary_name, writing

JOURNAL = ".spear-hf-save"  # holds new files until all of them are in their places
_DELETED = ".deleted"  # the end of the name of an empty file in the journal, for a file that is to go


@contextmanager
def staged_folder(target: str | Path) -> Iterator[Path]:
    """An empty folder beside `target`, which takes its place when the `with` ends; it is removed after an error.

    What killed processes left beside `target` is removed first.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from spear_hf.utils.folders import staged_folder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with staged_folder(f"{folder}/copy") as copy:
    ...         _ = (copy / "a.txt").write_text("fog")
    ...     [path.name for path in Path(folder).iterdir()]
    ['copy']

    Args:
        target: is not there, or an empty folder.

    Raises:
        OutputError: the disk is full or read-only, or `target` is not empty.
    """
    target = Path(target)
    with writing(target), _temporary_folder(target) as temporary:
        yield temporary
        if target.is_dir():
            target.rmdir()  # os.replace takes an empty folder's place on POSIX only
        os.replace(temporary, target)


def write_together(folder: str | Path, files: Mapping[str, bytes | None]) -> Path:
    """The folder, after all of these files were written into it, or none of them; its other files stay.

    On Linux a second folder is filled and exchanged with the first in one call, so no reader sees a mixture. Where that
    cannot be (another system, a folder that holds folders, is the current one, or has a read-only parent), the files
    are collected in a journal inside the folder first, and a kill while they are moved is made good by `settle`, which
    every reader of adapters calls.

    >>> import tempfile
    >>> from spear_hf.utils.folders import write_together
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_together(f"{folder}/a", {"x.txt": b"old", "y.txt": b"old"})
    ...     path = write_together(f"{folder}/a", {"x.txt": b"new", "y.txt": None})
    ...     sorted(file.name for file in path.iterdir())
    ['x.txt']

    Args:
        folder: made if it is missing. A link to a folder stays one.
        files: name -> content; None deletes the file.

    Raises:
        OutputError: the disk is full or read-only; the old files are kept.
    """
    folder = Path(folder)
    real = folder.resolve()
    with writing(folder):
        if not real.exists():
            with staged_folder(real) as new:
                _fill(new, files)
            return folder
        settle(real)
        sweep(real)
        if not (_can_be_exchanged(real) and _by_exchange(real, files)):
            _by_journal(real, files)
    return folder


def settle(folder: str | Path) -> None:
    """Finish a save that was killed after its files were complete, and before all of them were in their places.

    >>> from spear_hf.utils.folders import settle
    >>> settle("a-folder-without-a-journal")
    """
    journal = Path(folder) / JOURNAL
    if not journal.is_dir() or journal.is_symlink():
        return
    with writing(folder), suppress(FileNotFoundError):  # another process does the same
        for path in sorted(journal.iterdir()):
            if path.name.endswith(_DELETED):
                (Path(folder) / path.name.removesuffix(_DELETED)).unlink(missing_ok=True)
                path.unlink()
            else:
                os.replace(path, Path(folder) / path.name)
        journal.rmdir()


def _fill(folder: Path, files: Mapping[str, bytes | None]) -> None:
    for name, content in files.items():
        if content is not None:
            with (folder / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())


@contextmanager
def _temporary_folder(target: Path) -> Iterator[Path]:
    """A new folder beside `target`, locked while it is filled; what is there at the end is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent)
    handle = None
    while True:
        temporary = temporary_name(target)
        temporary.mkdir()
        if sys.platform == "win32":
            break
        with suppress(FileNotFoundError):  # a `sweep` in another process was faster than the lock
            handle = os.open(temporary, os.O_RDONLY)
            locked(handle)
            if temporary.is_dir():
                break
            os.close(handle)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def _can_be_exchanged(folder: Path) -> bool:
    if not sys.platform.startswith("linux") or os.path.ismount(folder) or folder == Path.cwd():
        return False
    return os.access(folder.parent, os.W_OK) and not any(path.is_dir() for path in folder.iterdir())


def _by_exchange(folder: Path, files: Mapping[str, bytes | None]) -> bool:
    """Fill a second folder, with links to the files that stay, and exchange the two; False where that cannot be."""
    with _temporary_folder(folder) as new:
        shutil.copymode(folder, new)
        _link_others(folder, new, files)
        _fill(new, files)
        if not _exchanged(new, folder):
            return False
        _link_others(new, folder, files)  # what came into the old folder meanwhile
    return True


def _link_others(source: Path, target: Path, files: Mapping[str, bytes | None]) -> None:
    for path in source.iterdir():
        if path.name in files or (target / path.name).exists():
            continue
        try:
            os.link(path, target / path.name, follow_symlinks=False)
        except OSError as error:
            if error.errno == errno.ENOENT:
                continue
            shutil.copy2(path, target / path.name, follow_symlinks=False)


def _exchanged(a: Path, b: Path) -> bool:
    """Whether the system exchanged the two names in one call."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_cwd, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of linux/fs.h
    return renameat2(at_cwd, os.fsencode(a), at_cwd, os.fsencode(b), exchange) == 0


def _by_journal(folder: Path, files: Mapping[str, bytes | None]) -> None:
    with _temporary_folder(folder / JOURNAL) as new:
        _fill(new, files)
        for name, content in files.items():
            if content is None:
                (new / f"{name}{_DELETED}").touch()
        settle(folder)
        os.replace(new, folder / JOURNAL)  # from here on the new files count
    settle(folder)
