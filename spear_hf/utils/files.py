"""Write files so that neither a concurrent reader nor a killed process leaves or sees half of one."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: str | Path, content: str | bytes, *, durable: bool = True) -> Path:
    """The path, after `content` was written to it whole; missing parent folders are made.

    The content goes to a temporary file in the same folder first, because `os.replace` is atomic only within one file
    system; it is flushed to disk before the move, because a crash could otherwise leave an empty file under the final
    name.

    Args:
        durable: wait until the disk has the content. Without it a kill leaves the old file or the new one all the same,
            and only a power failure can lose the latest write.

    >>> import tempfile
    >>> from spear_hf.utils.files import write_atomically
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(write_atomically(f"{folder}/new/notes.txt", "fog").read_text())
    fog
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def _umask() -> int:
    mask = os.umask(0)  # the only way to read the mask is to set it
    os.umask(mask)
    return mask
