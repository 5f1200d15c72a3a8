"""A hash of the images of a source: two streams are the same only if their images are, whatever folder they are in."""

from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from spear_hf.data.decode import Encoded
from spear_hf.data.schedule import Schedule
from spear_hf.data.sources import ImageSource

WHOLE = 1 << 20  # bytes of a file up to which all of it is read; of a larger one, its size, its two ends and its time
END = 1 << 16
AT_ONCE = 256  # images


def content_hash(source: ImageSource, schedule: Schedule) -> str | None:
    """A hash of the names and the bytes of all images that one cycle shows; None for a source that is read once.

    A file above 1 MB is known by its size, its first and last 64 kB, and its time.

    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from spear_hf import load_stream
    >>> from spear_hf.data.content import content_hash
    >>> streams = [
    ...     load_stream(Dataset.from_dict({"image": [np.full((8, 8, 3), v, np.uint8)]}), corruptions="clean")
    ...     for v in (0, 0, 1)
    ... ]
    >>> hashes = [content_hash(stream._source, stream.schedule) for stream in streams]
    >>> hashes[0] == hashes[1], hashes[0] == hashes[2]
    (True, False)
    """
    if source.window is not None:
        return None
    digest = blake2b(digest_size=16)
    seen: set[tuple[int, int]] = set()
    for segment in range(len(schedule.segments)):
        draw = schedule.plan.draw(0, segment)
        for domain in np.unique(draw.domains).tolist():
            ids = np.unique(draw.ids[draw.domains == domain])
            held = domain if source.held is not None else 0  # clean images are the same in every domain
            new = np.array([i for i in ids.tolist() if (held, i) not in seen], dtype=np.int64)
            seen.update((held, i) for i in new.tolist())
            for start in range(0, len(new), AT_ONCE):
                part, name = new[start : start + AT_ONCE], schedule.domains[domain]
                images = source.read(part, name)
                for label, image in zip(source.names(part, name), images, strict=True):
                    digest.update(f"{label}\0".encode(errors="surrogateescape"))
                    _add(digest, image)
    return digest.hexdigest()


def _add(digest: Any, image: Encoded) -> None:
    if isinstance(image, Path):
        try:
            _add_file(digest, image)
        except OSError:  # it is reported when the image is read
            digest.update(b"unreadable")
    elif isinstance(image, np.ndarray):
        digest.update(f"{image.dtype} {image.shape}".encode())
        digest.update(np.ascontiguousarray(image))
    elif isinstance(image, Image.Image):
        if not getattr(image, "filename", ""):
            digest.update(f"{image.mode} {image.size}".encode() + image.tobytes())
        else:
            _add(digest, Path(image.filename))  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(image, BytesIO):
        digest.update(image.getvalue())
    else:
        digest.update(image if isinstance(image, bytes) else repr(image).encode(errors="surrogateescape"))


def _add_file(digest: Any, path: Path) -> None:
    found = path.stat()
    with path.open("rb") as file:
        if found.st_size <= WHOLE:
            digest.update(file.read())
            return
        digest.update(f"{found.st_size} {found.st_mtime_ns}".encode() + file.read(END))
        file.seek(-END, 2)
        digest.update(file.read())
