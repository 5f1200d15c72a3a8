"""Write files so that neither a concurrent reader nor a killed process leaves or sees half of one."""

import errno
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from spear_hf.errors import OutputError

TEMPORARY = ".spear-tmp"  # the end of the name of every temporary file and folder, so that `sweep` takes no other


def write_atomically(path: str | Path, content: str | bytes, *, durable: bool = True) -> Path:
    """The path, after `content` was written to it whole; missing parent folders are made.

    The content goes to a temporary file in the same folder first, because `os.replace` is atomic only within one file
    system; it is flushed to disk before the move, because a crash could otherwise leave an empty file under the final
    name.

    Args:
        path: of the file.
        content: text is written as UTF-8.
        durable: wait until the disk has the content. Without it a kill leaves the old file or the new one all the same,
            and only a power failure can lose the latest write.

    >>> import tempfile
    >>> from spear_hf.utils.files import write_atomically
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(write_atomically(f"{folder}/new/notes.txt", "fog").read_text())
    fog

    Raises:
        OutputError: the disk is full or read-only, or a part of the path is a file; what was there is kept.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _temporary_file(path)
        try:
            with file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
                if sys.platform == "win32":
                    file.close()  # it moves no file that is open
                os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    return path


def check_output_file(path: str | Path) -> None:
    """Raise OutputError where no file can be written: asked before minutes of work, not after them.

    >>> from spear_hf.utils.files import check_output_file
    >>> check_output_file("")
    Traceback (most recent call last):
    spear_hf.errors.OutputError: '.' cannot be written (it is a folder); give the path of a file
    """
    path = Path(path)
    if not path.name or path.is_dir():
        raise OutputError(f"{str(path)!r} cannot be written (it is a folder); give the path of a file")
    parent = next((parent for parent in path.parents if parent.exists()), path)
    if not parent.is_dir():
        raise OutputError(f"{str(path)!r} cannot be written ({str(parent)!r} is a file); give another path")
    if not os.access(parent, os.W_OK):
        raise OutputError(f"{str(path)!r} cannot be written ({str(parent)!r} is read-only); give another path")


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Inside, an error of the file system becomes one line that names this path.

    >>> from spear_hf.utils.files import writing
    >>> with writing("/proc/a.txt"):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    spear_hf.errors.OutputError: /proc/a.txt cannot be written (No space left on device); make room on the disk

    Raises:
        OutputError: with the errno of the error.
    """
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        way_out = _WAYS_OUT.get(error.errno or 0, "give another path")
        found = OutputError(f"{path} cannot be written ({error.strerror or error}); {way_out}")
        found.errno = error.errno
        raise found from error


_WAYS_OUT = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room in your quota",
    errno.EROFS: "give a path on a disk that can be written",
    errno.EACCES: "give a path that you may write to, or change its permissions",
    errno.EPERM: "give a path that you may write to, or change its permissions",
    errno.ENOTDIR: "a part of the path is a file; give another path",
    errno.EEXIST: "a file is in its place; give another path",
}


def sweep(folder: str | Path) -> int:
    """How many temporary files and folders of killed processes were removed from `folder`.

    A living process holds a lock on what it writes, so its files stay. Where there are no such locks (Windows), what
    was not changed for a day goes.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from spear_hf.utils.files import sweep
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, ".notes.txt.0a1b2c3d.spear-tmp").write_text("half a te")
    ...     sweep(folder)
    1
    """
    count = 0
    with suppress(OSError):  # a folder that is not there, or that may not be read, has nothing to remove
        for entry in list(os.scandir(folder)):
            if entry.name.startswith(".") and entry.name.endswith(TEMPORARY) and not entry.is_symlink():
                count += _remove_abandoned(Path(entry.path))
    return count


def temporary_name(path: Path) -> Path:
    """A new name beside `path`, which `sweep` recognises.

    >>> from pathlib import Path
    >>> from spear_hf.utils.files import temporary_name
    >>> temporary_name(Path("runs/fog")).name.startswith(".fog.")
    True
    """
    return path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}{TEMPORARY}")


def locked(handle: int, *, wait: bool = True) -> bool:
    """Whether this process holds the lock of an open file or folder now; it goes when the handle is closed.

    >>> import tempfile
    >>> from spear_hf.utils.files import locked
    >>> with tempfile.TemporaryFile() as file:
    ...     locked(file.fileno())
    True
    """
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        return error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF)  # a file system without locks
    return True


def _temporary_file(path: Path) -> IO[bytes]:
    """A new file beside `path`, open and locked, with the permissions that the umask gives."""
    while True:
        file = temporary_name(path).open("xb")
        locked(file.fileno())
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # a `sweep` in another process was faster than the lock


def _remove_abandoned(path: Path) -> bool:
    """Whether this temporary file or folder was of no living process, and was removed."""
    if sys.platform == "win32":
        import time

        if time.time() - path.stat().st_mtime < 86_400:
            return False
        handle = None
    else:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        if handle is not None and not locked(handle, wait=False):
            return False
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:  # another process was faster
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True
