"""Opening a stream of corrupted images: seeded, lazy and resumable.

    stream = load_stream("photos.parquet", corruptions="all", severity=5, processor=load_processor(model))
    for batch in stream:
        logits = tta.step(batch["pixel_values"])

Batch g is a pure function of g. Any number of workers and processes sees the same batches, and a run that was killed
continues from one integer.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from spear_hf.data.domains import CLEAN, Domain, resolve_domains, resolve_held_domains
from spear_hf.data.image_stream import ImageStream
from spear_hf.data.labels import ClassNames, LabelMap, describe_match, has_wnids, is_monotone, match_classes
from spear_hf.data.processor import Processor
from spear_hf.data.protocols import make_custom_plan, make_plan
from spear_hf.data.rendering import make_recipe
from spear_hf.data.schedule import Pool, Schedule
from spear_hf.data.sources import MISSING, Columns, ImageSource, RowSource, open_source
from spear_hf.data.sources.video import VideoSource
from spear_hf.errors import DataError


def load_stream(
    source: Any,
    *,
    corruptions: str | Iterable[str] = "clean",
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
    shuffle: bool = False,
    window: int = 512,
    delta: float = 0.1,
    schedule: Sequence[tuple[str, int]] | None = None,
    cycles: int | None = 1,
    class_names: ClassNames | None = None,
    num_workers: int = 0,
    skip_broken: bool = False,
    streaming: bool = False,
) -> ImageStream:
    """A stream of images in batches, in their order and as they are; corrupted and shuffled only if asked.

    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from spear_hf import load_stream
    >>> rows = Dataset.from_dict({"image": [np.zeros((32, 32, 3), np.uint8)] * 3})
    >>> load_stream(rows).batch(0)["names"]
    ['0', '1', '2']
    >>> load_stream(rows, corruptions="noise", severity=3).domains
    ['gaussian_noise/3', 'shot_noise/3', 'impulse_noise/3']

    Args:
        source: a folder of images (with class folders, dates, or flat; a metadata.csv is read), one image, a pattern
            ("photos/*.jpg"), a text file of paths, a csv, tsv or jsonl with a column of paths, parquet, zip or tar
            files, a video; a list of paths, PIL images or arrays; a `datasets` Dataset or IterableDataset; a Hub id; a
            folder with CIFAR-10-C's arrays or ImageNet-C's tree, whose images are corrupted already and stay so.
        corruptions: "clean" for none, "all" (the 15), "extra", a group, names, or "fog/2+gaussian_noise/1" for a
            composition.
        severity: in (0, 5]; of several, all are shown for each corruption.
        protocol: "single" (a method is reset before each domain), "continual" (it is not reset), "gradual" (severities
            rise and fall within each corruption), "mixed" (all domains shuffled), "correlated" (classes in runs).
        batch_size: images in a batch, over all processes.
        limit: images of the source in each domain: the first ones, or a seeded sample with `shuffle`. None takes all;
            an IterableDataset is then read once to count them.
        seed: of the order and of the corruptions.
        processor: see `load_processor`; without one, batches hold uint8 images.
        image_column: of a Dataset or a table; "auto" finds it.
        label_column: of a Dataset or a table; "auto" finds it if there is one, None reads no labels. In a folder,
            "auto" takes the folders as classes unless they are dates or images lie beside them; "folder" always does.
        split: "auto" takes the test or validation split.
        config: of a repository with several configurations.
        layout: of a repository with corrupted images, one of LAYOUTS; "auto" detects it.
        revision: the commit of a Hub dataset.
        preset: "imagenet" (with its crop), "cifar" or "tiny" choose the constants; "auto" takes the
            nearest to the size of the first image, and `notes` tells which.
        jpeg_quality: of the JPEG after a corruption; "auto" is 85 for imagenet, as published, and None for the others.
        frost_dir: folder of the published frost textures; default: SPEAR_FROST_DIR, or synthetic textures.
        shuffle: True for a seeded order; without it, a source sorted by class gives batches of a single class.
        window: number of images of an IterableDataset that are held and shuffled at once.
        delta: of "correlated": Dirichlet concentration; 0.1 is strong correlation, 10 is weak.
        schedule: your own domains over time, [("fog/2", 640), ("fog/2+snow/1", 640)]; replaces `corruptions`.
        cycles: number of passes, each in another order; None is endless.
        class_names: of the model, in index order (see `load_class_names`); labels then use its numbering.
        num_workers: processes that prepare batches in advance.
        skip_broken: leave out images that cannot be decoded, are too small for a corruption or have an empty label,
            and add their ids to `stream.skipped`.
        streaming: download the images of a Hub id when they are shown.

    Raises:
        DataError: an argument that does not fit; the message says what would.
    """
    columns = Columns(image_column, label_column, prefer_wnid=has_wnids(class_names))
    opened = open_source(
        source,
        columns,
        split=split,
        config=config,
        layout=layout,
        limit=limit,
        window=window,
        revision=revision,
        streaming=streaming,
    )
    pool = Pool(len(opened), _checked_limit(limit, opened), seed, shuffle, opened.window)
    first = (opened.held or (CLEAN,))[0]
    known = np.arange(len(opened)) if opened.window is None else np.arange(min(opened.window, len(opened)))
    labels = opened.labels(known, first)
    label_map = None
    notes: list[str] = list(getattr(opened, "notes", ()))
    if labels is not None:
        there = _labelled(opened, labels, skip_broken)
        label_map = _match(opened, labels, there, class_names)
        present = len(np.unique(label_map(labels[there])))
        column = getattr(opened, "label_column", None)
        where = f"column {column!r}: " if column else ""
        notes.append(where + describe_match(label_map, opened.classes, class_names, present))
        _warn_if_sorted(opened, pool, labels, there)
    if schedule is not None:
        severities = severity if isinstance(severity, Sequence) else [severity]
        plan = make_custom_plan(pool, schedule, severities[0])
        _domains(opened, [str(domain) for domain in plan.domains], severity)
    else:
        plan = make_plan(protocol, pool, _domains(opened, corruptions, severity), labels, delta)
    if num_workers and isinstance(opened, VideoSource):
        num_workers = 0
        notes.append("num_workers: 0, because the frames of a video are decoded in order by one process")
    recipe = make_recipe(opened, plan.domains, preset, seed, jpeg_quality, frost_dir)
    return ImageStream(
        opened,
        Schedule(plan, batch_size, cycles),
        recipe,
        protocol=protocol,
        label_map=label_map,
        processor=processor,
        skip_broken=skip_broken,
        num_workers=num_workers,
        notes=[*notes, recipe.note] if recipe.note else notes,
    )


def _domains(
    source: ImageSource, corruptions: str | Iterable[str], severity: float | Sequence[float]
) -> tuple[Domain, ...]:
    if source.held is None:
        return resolve_domains(corruptions, severity)
    return resolve_held_domains(corruptions, severity, source.held, source.name)


def _checked_limit(limit: int | None, source: ImageSource) -> int:
    if limit is None:
        return len(source)
    if not 1 <= limit <= len(source):
        raise DataError(f"limit={limit}, but {source.name} has {len(source)} images; pass 1..{len(source)} or None")
    return limit


def _match(source: ImageSource, labels: np.ndarray, there: np.ndarray, class_names: ClassNames | None) -> LabelMap:
    """The LabelMap of a source; its subset are the classes that occur."""
    if class_names is None and getattr(source, "classes_are_partial", False):
        raise DataError(
            f"the labels of {source.name} are names, and only those of its first {len(source)} rows are known, so they "
            "cannot be numbered; pass class_names= in the order of the model, or label_column=None to go without labels"
        )
    found = match_classes(source.classes, class_names)
    numbers = found(labels[there])  # refuses a wrong label now, not at batch 700
    if isinstance(source, RowSource):
        _refuse_disagreement(source, there, numbers, class_names)
    if class_names is None or source.window is not None:
        return found
    subset = np.unique(numbers)
    return replace(found, subset=subset if len(subset) < len(class_names) else None)


def _refuse_disagreement(
    source: RowSource, there: np.ndarray, numbers: np.ndarray, class_names: ClassNames | None
) -> None:
    """Refuse a source in which another column says other classes than the one that "auto" chose."""
    for column, (classes, labels) in source.rival_labels().items():
        kept = labels[there]
        try:
            others = match_classes(classes, class_names)(kept)
        except DataError:  # it does not hold classes of this model
            continue
        if (source.classes is None) == (classes is None) or class_names is not None:
            for i in np.flatnonzero(others != numbers)[:1]:
                row = source.locate(int(np.flatnonzero(there)[i]), CLEAN)
                raise DataError(
                    f"column {source.label_column!r} gives {row} the class {numbers[i]}, column {column!r} the class "
                    f"{others[i]}; pass label_column= with the one that is right"
                )


def _labelled(source: ImageSource, labels: np.ndarray, skip_broken: bool) -> np.ndarray:
    """(N,) bool, the images that have a label; without `skip_broken` an image without one is refused."""
    missing = np.flatnonzero(labels == MISSING)
    if len(missing) and not skip_broken:
        shown = ", ".join(source.locate(int(i), (source.held or (CLEAN,))[0]) for i in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise DataError(
            f"{len(missing)} of {len(labels)} images have no label: {shown}{more}; fill them, "
            "pass label_column=None to go without labels, or skip_broken=True to leave the images out"
        )
    return labels != MISSING


def _warn_if_sorted(source: ImageSource, pool: Pool, labels: np.ndarray, there: np.ndarray) -> None:
    """Warn of batches of a single class: they mislead every method that learns from the mean prediction."""
    if not pool.shuffle and is_monotone(labels[: pool.limit][there[: pool.limit]]):
        way_out = "pass shuffle=True"
    elif source.window is not None and (is_monotone(labels) or len(np.unique(labels)) == 1 < len(labels)):
        way_out = "a streaming source is shuffled in windows only: load it without streaming=True"
    else:
        return
    warnings.warn(
        f"{source.name} is sorted by class, and batches of a single class mislead a method that learns from the "
        f"mean prediction; {way_out}",
        stacklevel=3,
    )
