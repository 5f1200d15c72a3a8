"""One process at a time writes to a folder."""

import os
import sys
import threading
import weakref
from pathlib import Path

from spear_hf.errors import OutputError
from spear_hf.utils.files import locked, writing

LOCK_NAME = ".lock"


class FolderLock:
    """Held from when it is made until `release`, or until the process ends in whatever way.

    Several of one process share it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from spear_hf.utils.folder_lock import FolderLock
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lock = FolderLock(folder)
    ...     held = Path(folder, ".lock").exists()
    ...     lock.release()
    ...     print(held, Path(folder, ".lock").exists())
    True False

    Args:
        folder: made where it is missing.

    Raises:
        OutputError: another process holds it, or the folder cannot be written to.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).resolve()
        with _REGISTRY_LOCK:
            handle, users = _REGISTRY.get(self.folder, (None, 0))
            if handle is None:
                handle = _acquired(self.folder)
            _REGISTRY[self.folder] = handle, users + 1
        self._finalizer = weakref.finalize(self, _release, self.folder)

    def release(self) -> None:
        """Let another process write; calling it again does nothing."""
        self._finalizer()


_REGISTRY: dict[Path, tuple[int, int]] = {}  # folder -> its open lock file, and how many hold it
_REGISTRY_LOCK = threading.RLock()


def _acquired(folder: Path) -> int:
    path = folder / LOCK_NAME
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            if not locked(handle, wait=False):
                owner = os.read(handle, 20).decode(errors="replace").strip()
                os.close(handle)
                raise OutputError(
                    f"{folder} is in use by process {owner or '?'}; wait until it ends, or name another folder"
                )
            if sys.platform == "win32" or os.fstat(handle).st_nlink:
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n".encode())
                return handle
            os.close(handle)  # its holder removed the file in the meantime


def _release(folder: Path) -> None:
    with _REGISTRY_LOCK:
        handle, users = _REGISTRY.pop(folder, (None, 0))
        if handle is None:
            return
        if users > 1:
            _REGISTRY[folder] = handle, users - 1
            return
        try:
            if sys.platform != "win32":
                (folder / LOCK_NAME).unlink()
                folder.rmdir()  # where nothing was written
        except OSError:
            pass
        finally:
            os.close(handle)
