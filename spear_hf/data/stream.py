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
from spear_hf.data.domains import CLEAN, Domain, resolve_domains, resolve_held_domains
from spear_hf.data.labels import ClassNames, has_wnids, is_monotone, match_classes
from spear_hf.data.processor import Processor
from spear_hf.data.protocols import make_journey, make_plan
from spear_hf.data.rendering import make_recipe
from spear_hf.data.schedule import Pool, Schedule
from spear_hf.data.sources import Columns, Source, open_source
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
    config: str = "auto",
    layout: str = "auto",
    revision: str | None = None,
    preset: str = "auto",
    jpeg_quality: int | str | None = "auto",
    frost_dir: str | Path | None = None,
    shuffle: bool = True,
    window: int = 512,
    delta: float = 0.1,
    schedule: Sequence[tuple[str, int]] | None = None,
    cycles: int | None = 1,
    class_names: ClassNames | None = None,
    num_workers: int = 0,
    skip_broken: bool = False,
) -> Stream:
    """A stream of images under corruptions, in batches.

    Args:
        source: a `datasets` Dataset or IterableDataset; a parquet file; a folder of images, of parquet files, of
            CIFAR-10-C's arrays or of ImageNet-C's tree; or a Hub id. Images that are corrupted already stay so.
        corruptions: "all" (the 15), "extra", a group, names, "fog/2+gaussian_noise/1" for a composition, or "clean".
        severity: in (0, 5]; several come innermost.
        protocol: "single" (the method is reset before each domain), "continual" (it goes on), "gradual" (severities
            climb and fall within each corruption), "mixed" (all domains shuffled), "correlated" (classes in runs).
        batch_size: images in a batch, over all processes.
        limit: images of the source in each domain: a seeded sample. None takes all; an IterableDataset needs it.
        seed: of the order and of the corruptions.
        processor: see `load_processor`; None yields uint8 images.
        image_column: for a Dataset; "auto" finds it.
        label_column: for a Dataset; "auto" finds it where there is one, None goes without.
        split: "auto" takes the test or validation split.
        config: of a repository with several.
        layout: of a repository with corrupted images: see LAYOUTS; "auto" knows some and looks at others.
        revision: the commit of a Hub dataset.
        preset: whose constants: "imagenet" (and its crop), "cifar" or "tiny"; "auto" goes by the size of the images.
        jpeg_quality: of the JPEG after a corruption; "auto" is 85 for imagenet as published, None for the others.
        frost_dir: where frost's official textures are.
        shuffle: a seeded order; without it class-sorted sources give batches of a single class.
        window: images of an IterableDataset that are held and shuffled at once.
        delta: of "correlated": Dirichlet concentration, 0.1 is strong and 10 weak.
        schedule: your own domains over time, [("fog/2", 640), ("fog/2+snow/1", 640)], in place of `corruptions`.
        cycles: how often everything comes; None is endless. Each cycle has another order.
        class_names: of the model, in index order (see `load_class_names`), to put labels into its numbering.
        num_workers: processes that prepare batches ahead.
        skip_broken: leave out images that cannot be decoded, and keep their ids in `stream.skipped`.

    Raises:
        DataError: something that is not there or does not fit; says what would.
    """
    columns = Columns(image_column, label_column, prefer_wnid=has_wnids(class_names))
    opened = open_source(
        source, columns, split=split, config=config, layout=layout, limit=limit, window=window, revision=revision
    )
    pool = Pool(len(opened), _checked_limit(limit, opened), seed, shuffle, opened.window)
    first = (opened.held or (CLEAN,))[0]
    known = np.arange(len(opened)) if opened.window is None else np.arange(min(opened.window, len(opened)))
    labels = opened.labels(known, first)
    label_map = None if labels is None else match_classes(opened.classes, class_names)
    if labels is not None and label_map is not None:
        label_map(labels)  # labels beyond the classes are refused now, not at batch 700
        _warn_of_sorted(opened, pool, labels)
    if schedule is not None:
        severities = severity if isinstance(severity, Sequence) else [severity]
        plan = make_journey(pool, schedule, severities[0])
        _domains(opened, [str(domain) for domain in plan.domains], severity)
    else:
        plan = make_plan(protocol, pool, _domains(opened, corruptions, severity), labels, delta)
    return Stream(
        opened,
        Schedule(plan, batch_size, cycles),
        make_recipe(opened, plan.domains, preset, seed, jpeg_quality, frost_dir),
        protocol=protocol,
        label_map=label_map,
        processor=processor,
        skip_broken=skip_broken,
        num_workers=num_workers,
    )


def _domains(source: Source, corruptions: str | Iterable[str], severity: float | Sequence[float]) -> tuple[Domain, ...]:
    if source.held is None:
        return resolve_domains(corruptions, severity)
    return resolve_held_domains(corruptions, severity, source.held, source.name)


def _checked_limit(limit: int | None, source: Source) -> int:
    if limit is None:
        return len(source)
    if not 1 <= limit <= len(source):
        raise DataError(f"limit={limit}, but {source.name} has {len(source)} images; pass 1..{len(source)} or None")
    return limit


def _warn_of_sorted(source: Source, pool: Pool, labels: np.ndarray) -> None:
    """Say that batches will be of a single class: any method that learns from the mean prediction is misled by them."""
    if not pool.shuffle and is_monotone(labels[pool.order()[: len(labels)]]):
        way_out = "leave shuffle on"
    elif source.window is not None and (is_monotone(labels) or len(np.unique(labels)) == 1 < len(labels)):
        way_out = "a streaming source is shuffled in windows only: load it without streaming=True"
    else:
        return
    warnings.warn(
        f"{source.name} comes sorted by class, and batches of a single class mislead a method that learns from the "
        f"mean prediction; {way_out}",
        stacklevel=3,
    )
