"""A stream whose images are corrupted once and kept in a file: more methods and batch sizes then cost little.

    stream = cached(load_stream("photos.parquet", processor=load_processor(model), batch_size=16), "runs/cache")

The file depends only on the images, their order and the corruptions. Streams of other batch sizes, of other models and
of the protocols "single" and "continual" share it.
"""

import json
import os
from copy import copy
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from spear_hf.data.image_stream import ImageStream
from spear_hf.data.schedule import BatchPlan, Schedule
from spear_hf.errors import DataError
from spear_hf.utils.files import write_atomically

_CHUNK = 256  # images that are corrupted at once
_INDEPENDENT = ("batch_size", "processor", "protocol", "skip_broken", "labels")  # these do not change the images


def cached(stream: ImageStream, folder: str | Path, *, progress: bool = True) -> "CachedStream":
    """The same batches, bit for bit, from a file in `folder`; the file is written if it does not exist.

    >>> import tempfile
    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from spear_hf import load_stream
    >>> from spear_hf.data.cached import cached
    >>> rows = Dataset.from_dict({"image": [np.zeros((32, 32, 3), np.uint8)] * 3})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kept = cached(load_stream(rows, corruptions="contrast"), folder, progress=False)
    >>> len(kept)
    1

    Args:
        stream: of one cycle; all images have one size, as the cropped ones of ImageNet have.
        folder: for each set of images and corruptions it holds a .npy of uint8 images, and a .json that describes them.
        progress: show a progress bar while the file is written.

    Raises:
        DataError: several cycles, skip_broken, or images of several sizes.
    """
    facts = stream.describe()
    if facts["cycles"] != 1 or facts["skip_broken"]:
        raise DataError(
            f"the stream has cycles={facts['cycles']} and skip_broken={facts['skip_broken']}; a cache holds every "
            "image of one cycle: load it with cycles=1 and skip_broken=False, or use no cache"
        )
    identity = {name: value for name, value in facts.items() if name not in _INDEPENDENT}
    identity["first"] = _first_image_hash(stream)
    text = json.dumps(identity, indent=2, sort_keys=True) + "\n"
    path = Path(folder) / f"{_hash(text.encode())}.npy"
    if not path.exists():
        write_atomically(path.with_suffix(".json"), text)
        _write_images(stream, path, progress)
    return CachedStream(stream, np.load(path, mmap_mode="r"))


class CachedStream(ImageStream):
    """A stream that reads its images from an array.

    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from spear_hf import load_stream
    >>> from spear_hf.data.cached import CachedStream
    >>> rows = Dataset.from_dict({"image": [np.zeros((32, 32, 3), np.uint8)] * 3})
    >>> stream = CachedStream(load_stream(rows, corruptions="fog"), np.ones((3, 32, 32, 3), np.uint8))
    >>> stream.batch(0)["pixel_values"].unique()
    tensor([1], dtype=torch.uint8)

    Args:
        stream: the original.
        images: (images of the cycle, H, W, 3) uint8, in the order of the stream.
    """

    def __init__(self, stream: ImageStream, images: np.ndarray) -> None:
        self.__dict__.update(vars(stream))
        self.num_workers = 0  # reading is fast, so there is nothing to prepare in advance
        self._images = images

    def _render(self, part: BatchPlan, skip_broken: bool) -> tuple[list[np.ndarray | None], list[int]]:
        return list(self._images[part.position : part.position + len(part.ids)]), []


def _raw_stream(stream: ImageStream, batch_size: int) -> ImageStream:
    """The uint8 images of a stream, in batches of another size."""
    raw = copy(stream)
    raw.processor, raw.schedule = None, Schedule(stream.schedule.plan, batch_size)
    return raw


def _first_image_hash(stream: ImageStream) -> str:
    """A hash of the first corrupted image: it differs for another source of the same name and length."""
    return _hash(_raw_stream(stream, 1).batch(0)["pixel_values"].numpy().tobytes())


def _hash(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def _write_images(stream: ImageStream, path: Path, progress: bool) -> None:
    """Write every image of the stream to a temporary file, then rename it, so `path` is always complete."""
    total = stream.schedule.images_per_cycle
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    array: Any = None
    try:
        with tqdm(total=total, unit="image", desc="corrupting", disable=None if progress else True) as bar:
            for batch in _raw_stream(stream, _CHUNK):
                images = batch["pixel_values"].numpy()
                if array is None:
                    array = np.lib.format.open_memmap(temporary, "w+", np.uint8, (total, *images.shape[1:]))
                if images.shape[1:] != array.shape[1:]:
                    raise DataError(
                        f"images of {array.shape[1:3]} and of {images.shape[1:3]} do not fit one array; pass "
                        "preset='imagenet', which crops, resize them to one size, or use no cache"
                    )
                array[batch["position"] : batch["position"] + len(images)] = images
                bar.update(len(images))
        array.flush()
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
