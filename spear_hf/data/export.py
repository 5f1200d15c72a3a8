"""Corrupted copies of a dataset on disk, in the layouts in which ImageNet-C and CIFAR-10-C are published."""

import json
import re
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm.auto import tqdm

from spear_hf.data.image_stream import ImageStream
from spear_hf.errors import DataError
from spear_hf.utils.folders import staged_folder

LONGEST_NAME = 255  # bytes of a file name
ROW_GROUP = 256  # images that are held in memory before they are written

EncodedRow = tuple[bytes, str, int, int | None]  # file, suffix, sample id, label


def write_corrupted(stream: ImageStream, folder: str | Path, *, layout: str = "parquet", progress: bool = True) -> Path:
    """Write every corrupted image of a stream and return the folder; `load_stream(folder)` reads the same pixels.

    The copy is written next to the folder and moved at the end, so an error leaves nothing behind. provenance.json
    describes how it was made.

    >>> import tempfile
    >>> import numpy as np
    >>> from datasets import Dataset
    >>> from spear_hf import load_stream
    >>> from spear_hf.data.export import write_corrupted
    >>> rows = Dataset.from_dict({"image": [np.zeros((32, 32, 3), np.uint8)] * 3})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     copy = write_corrupted(load_stream(rows, corruptions="fog"), folder, layout="imagefolder", progress=False)
    ...     sorted(path.name for path in copy.iterdir())
    ['fog', 'provenance.json']

    Args:
        stream: without a processor; `shuffle=False` keeps the order of the source.
        folder: a new one, or an empty one.
        layout: "parquet" (configuration = corruption, split = severity_k), "npy" (CIFAR-10-C's arrays, which hold
            severities 1 to 5), or "imagefolder" (ImageNet-C's corruption/severity/class/file).
        progress: show a progress bar.

    Raises:
        DataError: a stream with a processor, with clean or composed domains, or of more than one cycle; a layout that
            cannot hold the stream; a folder that is not empty.
    """
    target = Path(folder)
    if layout not in EXPORT_LAYOUTS:
        raise DataError(f"layout={layout!r} is unknown; pass one of {', '.join(EXPORT_LAYOUTS)}")
    _check_stream(stream)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{str(target)!r} is not empty; pass a new folder")
    with staged_folder(target) as temporary:
        total = None if stream.schedule.num_batches is None else stream.schedule.images_per_cycle
        with tqdm(total=total, unit="image", disable=None if progress else True) as bar:
            EXPORT_LAYOUTS[layout](stream, temporary, bar.update)
        facts = json.dumps(stream.describe(), indent=2, sort_keys=True)
        (temporary / "provenance.json").write_text(facts + "\n", encoding="utf-8")
    return target


def _check_stream(stream: ImageStream) -> None:
    """Refuse a stream that does not show corrupted uint8 images, domain by domain."""
    if stream.processor is not None:
        raise DataError("the stream has a processor, and images are written as uint8; load it without processor=")
    if stream.schedule.cycles != 1:
        raise DataError(
            f"the stream has cycles={stream.schedule.cycles}; a copy holds one cycle: load it with cycles=1"
        )
    names = [segment.domain for segment in stream.schedule.segments]
    odd = [name for name in names if name not in stream.domains or "+" in name or name == "clean"]
    if odd or len(set(names)) < len(names):
        what = f"a segment {odd[0]!r}" if odd else "a domain twice"
        raise DataError(f"the stream holds {what}; a copy takes each corruption and severity once, domain by domain")


def _write_parquet(stream: ImageStream, folder: Path, done: Callable[[int], Any]) -> None:
    """data/<corruption>/severity_<k>/data.parquet, and a README.md that names configurations and splits."""
    from datasets import ClassLabel, Features, Image, Value
    from pyarrow import Table
    from pyarrow.parquet import ParquetWriter

    label = ClassLabel(names=stream.classes) if stream.classes else Value("int64")
    features = Features({"image": Image(), "index": Value("int64")} | ({"label": label} if stream.has_labels else {}))
    places: dict[str, list[str]] = {}
    for domain, images in _by_domain(stream):
        corruption, severity = domain.split("/")
        place = folder / "data" / corruption / f"severity_{severity}"
        place.mkdir(parents=True)
        places.setdefault(corruption, []).append(severity)
        with ParquetWriter(place / "data.parquet", features.arrow_schema) as writer:
            for rows in _groups_of(ROW_GROUP, images):
                columns: dict[str, list[Any]] = {
                    "image": [{"bytes": file, "path": f"{index:08d}.{kind}"} for file, kind, index, _ in rows],
                    "index": [index for _, _, index, _ in rows],
                }
                if stream.has_labels:
                    columns["label"] = [number for *_, number in rows]
                writer.write_table(Table.from_pydict(columns, schema=features.arrow_schema))
                done(len(rows))
    card = _readme(places, stream.describe()["source"]["name"])
    # in a locale without UTF-8, Python reads the letters of a file name as surrogates: these are its bytes again
    (folder / "README.md").write_bytes(card.encode("utf-8", "surrogateescape"))


def _write_npy(stream: ImageStream, folder: Path, done: Callable[[int], Any]) -> None:
    """<corruption>.npy, uint8 (5 n, H, W, 3), severities one after another, and labels.npy (5 n,)."""
    levels: dict[str, set[str]] = {}
    for domain in stream.domains:
        levels.setdefault(domain.split("/")[0], set()).add(domain.split("/")[1])
    short = {name: sorted(found) for name, found in levels.items() if found != set("12345")}
    if short:
        raise DataError(
            f"layout='npy' holds severities 1 to 5, the stream has {short}; load it with severity=[1,2,3,4,5]"
        )
    n = stream.schedule.segments[0].length
    shape = stream.batch(0)["pixel_values"].shape[1:]
    labels = np.full(5 * n, -1, dtype=np.int64)
    for corruption in levels:
        np.lib.format.open_memmap(folder / f"{corruption}.npy", "w+", np.uint8, (5 * n, *shape))
    row = 0
    for batch in stream:
        corruption, severity = batch["domain"].split("/")
        row = 0 if batch["is_domain_start"] else row
        start, count = (int(severity) - 1) * n + row, len(batch["index"])
        array = np.load(folder / f"{corruption}.npy", mmap_mode="r+")
        array[start : start + count] = batch["pixel_values"].numpy()
        if batch["labels"] is not None:
            labels[start : start + count] = batch["labels"].numpy()
        row += count
        done(count)
    if stream.has_labels:
        np.save(folder / "labels.npy", labels)


def _write_imagefolder(stream: ImageStream, folder: Path, done: Callable[[int], Any]) -> None:
    """<corruption>/<severity>/<class>/<sample id>.JPEG, or .png if the recipe has no JPEG."""
    for domain, images in _by_domain(stream):
        for file, kind, index, label in images:
            name = "" if label is None else stream.classes[label] if stream.classes else f"{label:04d}"
            place = folder / domain / folder_name(name)
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{index:08d}.{kind}").write_bytes(file)
            done(1)


def folder_name(label: str) -> str:
    """The name of a class as that of a folder: characters that a file system may refuse become %XX.

    `load_stream` reads the name back, and two classes never share a folder.

    >>> from spear_hf.data.export import folder_name
    >>> folder_name("T-shirt/top"), folder_name(".."), folder_name("tench, Tinca tinca")
    ('T-shirt%2Ftop', '%2E%2E', 'tench, Tinca tinca')
    """
    safe = re.sub(r'[%/\\:*?"<>|\x00-\x1f]|^\.|[. ]$', lambda found: f"%{ord(found.group()):02X}", label)
    if len(safe.encode()) > LONGEST_NAME:
        raise DataError(f"class {label[:40]!r}... is too long for the name of a folder; export with layout='parquet'")
    return safe


EXPORT_LAYOUTS: dict[str, Callable[[ImageStream, Path, Callable[[int], Any]], None]] = {
    "parquet": _write_parquet,
    "npy": _write_npy,
    "imagefolder": _write_imagefolder,
}


def _by_domain(stream: ImageStream) -> Iterator[tuple[str, Iterator[EncodedRow]]]:
    """Each domain with its images as files: JPEG if the recipe has a quality, as ImageNet-C was published, else PNG."""
    quality = stream.recipe.jpeg_quality
    before_jpeg = copy(stream)  # the file is the JPEG; compressing twice would change the pixels
    before_jpeg.recipe = replace(stream.recipe, jpeg_quality=None)
    batches = iter(before_jpeg)
    held = next(batches, None)

    def images(domain: str) -> Iterator[EncodedRow]:
        nonlocal held
        while held is not None and held["domain"] == domain:
            labels = held["labels"]
            for place, image in enumerate(held["pixel_values"].numpy()):
                label = None if labels is None else int(labels[place])
                yield _encode(image, quality), "png" if quality is None else "JPEG", int(held["index"][place]), label
            held = next(batches, None)

    while held is not None:
        yield held["domain"], images(held["domain"])


def _encode(image: np.ndarray, quality: int | None) -> bytes:
    """An image file: JPEG of a quality, or PNG if `quality` is None."""
    file = BytesIO()
    if quality is None:
        Image.fromarray(image).save(file, "PNG", compress_level=3)
    else:
        Image.fromarray(image).save(file, "JPEG", quality=quality, optimize=True)
    return file.getvalue()


def _groups_of(size: int, items: Iterator[EncodedRow]) -> Iterator[list[EncodedRow]]:
    """Lists of `size` items; the last list may be shorter."""
    group: list[EncodedRow] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _readme(places: dict[str, list[str]], source: str) -> str:
    """A dataset card with the configurations and the splits."""
    lines = ["---", "tags: [test-time-adaptation, robustness, corruptions]", "configs:"]
    for corruption, severities in places.items():
        lines += [f"- config_name: {corruption}", "  data_files:"]
        for severity in severities:
            path = f"data/{corruption}/severity_{severity}/*.parquet"
            lines += [f"  - split: severity_{severity}", f"    path: {path}"]
    text = f"Images of {source} under corruptions: a configuration for each corruption, a split for each severity."
    return "\n".join(
        [*lines, "---", "", f"# {source}, corrupted", "", text, "Made by spear-hf; see provenance.json.", ""]
    )
