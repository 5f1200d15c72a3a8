"""A stream whose images were corrupted once and kept in a file: further methods and batch sizes then cost little more.

    stream = cached(load_stream("photos.parquet", processor=load_processor(model), batch_size=16), "runs/cache")

The file depends on the images, their order and the corruptions alone, so streams of other batch sizes, of other models
and of the protocols "single" and "continual" share it.
"""

import json
import os
from copy import copy
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from spear_hf.data.batches import Stream, StreamBatch
from spear_hf.data.schedule import Schedule
from spear_hf.errors import DataError
from spear_hf.utils.files import write_atomically

_CHUNK = 256  # images that are made at once
_FREE = ("batch_size", "processor", "protocol", "skip_broken", "labels")  # what the images do not depend on


def cached(stream: Stream, folder: str | Path, *, progress: bool = True) -> "CachedStream":
    """The same batches, bit for bit, from a file in `folder` that is made where it is missing.

    Args:
        stream: of one cycle, whose images all have one size, as the cropped ones of ImageNet have.
        folder: holds, for each set of images and corruptions, a .npy of uint8 images and a .json that says which.
        progress: a bar while the file is made.

    Raises:
        DataError: several cycles, broken images that are to be skipped, or images of several sizes.
    """
    facts = stream.describe()
    if facts["cycles"] != 1 or facts["skip_broken"]:
        raise DataError(
            f"the stream has cycles={facts['cycles']} and skip_broken={facts['skip_broken']}; a cache holds every "
            "image of one cycle: load it with cycles=1 and skip_broken=False, or go without"
        )
    identity = {name: value for name, value in facts.items() if name not in _FREE} | {"first": _first_image(stream)}
    text = json.dumps(identity, indent=2, sort_keys=True) + "\n"
    path = Path(folder) / f"{_hash(text.encode())}.npy"
    if not path.exists():
        write_atomically(path.with_suffix(".json"), text)
        _write_images(stream, path, progress)
    return CachedStream(stream, np.load(path, mmap_mode="r"))


class CachedStream(Stream):
    """A stream that reads its images from an array in place of making them.

    Args:
        stream: what it is a copy of.
        images: (images of the cycle, H, W, 3) uint8, in the order of the stream.
    """

    def __init__(self, stream: Stream, images: np.ndarray) -> None:
        self.__dict__.update(vars(stream))
        self.num_workers = 0  # nothing is left to prepare ahead
        self._images = images

    def _make(self, number: int) -> tuple[StreamBatch, list[int]]:
        plan = self.schedule.batch(number)
        part = plan.part(self._rank, self._world)
        images = self._images[part.position : part.position + len(part.ids)].copy()
        made = StreamBatch(
            pixel_values=torch.from_numpy(images) if self.processor is None else self.processor(images),
            labels=self._labels(part.ids, [self.schedule.domains[i] for i in part.domains]),
            index=torch.tensor(part.ids),
            domain=plan.domain,
            domain_index=torch.from_numpy(part.domains),
            is_domain_start=plan.is_domain_start,
            position=part.position,
            batch=number,
        )
        return made, []


def _plain(stream: Stream, batch_size: int) -> Stream:
    """The stream's uint8 images in batches of another size."""
    plain = copy(stream)
    plain.processor, plain.schedule = None, Schedule(stream.schedule.plan, batch_size)
    return plain


def _first_image(stream: Stream) -> str:
    """A hash of the first image as it is corrupted: another file of the same name and length has another."""
    return _hash(_plain(stream, 1).batch(0)["pixel_values"].numpy().tobytes())


def _hash(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def _write_images(stream: Stream, path: Path, progress: bool) -> None:
    """Make every image of the stream, and move the file into place when it is whole."""
    total = stream.schedule.images_per_cycle
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    array: Any = None
    try:
        with tqdm(total=total, unit="image", desc="corrupting", disable=None if progress else True) as bar:
            for batch in _plain(stream, _CHUNK):
                images = batch["pixel_values"].numpy()
                if array is None:
                    array = np.lib.format.open_memmap(temporary, "w+", np.uint8, (total, *images.shape[1:]))
                if images.shape[1:] != array.shape[1:]:
                    raise DataError(
                        f"images of {array.shape[1:3]} and of {images.shape[1:3]} do not fit one array; pass "
                        "preset='imagenet', which crops, resize them to one size, or go without the cache"
                    )
                array[batch["position"] : batch["position"] + len(images)] = images
                bar.update(len(images))
        array.flush()
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
