"""Files of an adapter's folder, and never what a link in it leads to outside."""

import errno
from pathlib import Path

from spear_hf.errors import AdapterFormatError


def contained(folder: str | Path, name: str) -> Path:
    """`folder`/`name`, which need not exist.

    A link may lead to another place in the folder, and in the cache of huggingface_hub to another place in that of the
    repo, where all files are links.

    >>> from spear_hf.adapters.containment import contained
    >>> contained("adapters/fog", "README.md").as_posix()
    'adapters/fog/README.md'

    Raises:
        AdapterFormatError: a link that leads out of the folder.
    """
    path = Path(folder) / name
    if _is_loop(path):  # from Python 3.13 on `resolve` raises nothing
        raise AdapterFormatError(f"{path} is a link that leads to itself; copy the file into the folder")
    target, root = path.resolve(), _root(Path(folder).absolute())
    if not target.is_relative_to(root):
        raise AdapterFormatError(
            f"{path} is a link to {target}, outside of its folder, and is not followed; copy the file into the folder"
        )
    return path


def _is_loop(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _root(folder: Path) -> Path:
    """The folder, or that of its repo where it is a snapshot in the cache of huggingface_hub."""
    for parent in folder.parents:
        if parent.name == "snapshots" and (parent.parent / "blobs").is_dir():
            return parent.parent.resolve()
    return folder.resolve()
