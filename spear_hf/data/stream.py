"""A stream of corrupted images in batches, as a deployed classifier would meet them: seeded, lazy and resumable.

    stream = load_stream("photos.parquet", corruptions="all", severity=5, processor=load_processor(model))
    for batch in stream:
        logits = tta.step(batch["pixel_values"])

Batch g is a pure function of g: any number of workers and processes sees the same batches, and a run that was killed
goes on from one integer.
"""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spear_hf.data.batches import Stream, StreamBatch
from spear_hf.data.domains import resolve_domains
from spear_hf.data.labels import ClassNames, LabelMap, has_wnids, is_monotone, match_classes, match_indices
from spear_hf.data.processor import Processor
from spear_hf.data.protocols import make_plan
from spear_hf.data.rendering import make_recipe
from spear_hf.data.schedule import Pool, Schedule
from spear_hf.data.sources import Source, open_source
from spear_hf.errors import DataError

__all__ = ["Stream", "StreamBatch", "load_stream"]


def load_stream(
    source: Any,
    *,
    corruptions: str | Iterable[str] = "all",
    severity: float | Sequence[float] = 5,
    protocol: str = "single",
    batch_size: int = 64,
    limit: int | None = None,
    seed: int = 0,
    processor: Processor | None = None,
    image_column: str = "auto",
    label_column: str | None = "auto",
    split: str = "auto",
    preset: str = "auto",
    jpeg_quality: int | str | None = "auto",
    shuffle: bool = True,
    class_names: ClassNames | None = None,
    num_workers: int = 0,
    frost_dir: str | Path | None = None,
    revision: str | None = None,
    skip_broken: bool = False,
    cycles: int | None = 1,
) -> Stream:
    """A stream of images under corruptions, one domain after the other, each in the same order.

    Args:
        source: a `datasets.Dataset`, a parquet file, a folder of images, or a Hub id.
        corruptions: "all" (the 15), "extra", a group, names, "fog/2+gaussian_noise/1" for a composition, or "clean".
        severity: in (0, 5]; several come innermost.
        protocol: "single" (the method is reset before each domain) or "continual" (it goes on).
        batch_size: images in a batch, over all processes.
        limit: images of the source in each domain: a seeded sample. None takes all.
        seed: of the order and of the corruptions.
        processor: see `load_processor`; None yields uint8 images.
        image_column: for a Dataset; "auto" finds it.
        label_column: for a Dataset; "auto" finds it where there is one, None goes without.
        split: "auto" takes the test or validation split.
        preset: whose constants: "imagenet" (and its crop), "cifar" or "tiny"; "auto" goes by the size of the images.
        jpeg_quality: of the JPEG after a corruption; "auto" is 85 for imagenet as published, None for the others.
        shuffle: a seeded order; without it class-sorted sources give batches of a single class.
        class_names: of the model, in index order, so that labels can be put into its numbering.
        num_workers: processes that prepare batches ahead.
        frost_dir: where frost's official textures are.
        revision: the commit of a Hub dataset.
        skip_broken: leave out images that cannot be decoded, and keep their ids in `stream.skipped`.
        cycles: how often everything comes; None is endless.

    Raises:
        DataError: something that is not there or does not fit; says what would.
    """
    opened = open_source(
        source,
        split=split,
        image_column=image_column,
        label_column=label_column,
        prefer_wnid=has_wnids(class_names),
        revision=revision,
    )
    domains = resolve_domains(corruptions, severity)
    pool = Pool(len(opened), _checked_limit(limit, opened), seed, shuffle)
    labels, label_map = _labels(opened, class_names)
    if labels is not None and not shuffle and is_monotone(labels[pool.order()]):
        warnings.warn(
            f"{opened.name} is sorted by class and shuffle=False: batches of a single class mislead any method that "
            "learns from the mean prediction; leave shuffle on",
            stacklevel=2,
        )
    return Stream(
        opened,
        Schedule(make_plan(protocol, pool, domains), batch_size, cycles),
        make_recipe(opened, domains, preset, seed, jpeg_quality, frost_dir),
        protocol=protocol,
        labels=labels,
        label_map=label_map,
        processor=processor,
        skip_broken=skip_broken,
        num_workers=num_workers,
    )


def _checked_limit(limit: int | None, source: Source) -> int:
    if limit is None:
        return len(source)
    if not 1 <= limit <= len(source):
        raise DataError(f"limit={limit}, but {source.name} has {len(source)} images; pass 1..{len(source)} or None")
    return limit


def _labels(source: Source, class_names: ClassNames | None) -> tuple[np.ndarray | None, LabelMap | None]:
    """(N,) labels in the model's numbering, and how they were matched."""
    labels = source.labels()
    if labels is None:
        return None, None
    found = match_indices(labels, class_names) if source.classes is None else match_classes(source.classes, class_names)
    return found(labels), found
