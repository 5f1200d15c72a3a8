"""A corrupted copy on disk holds the pixels of the stream that it was written from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features
from datasets import Image as ImageFeature
from PIL import Image

from spear_hf.data.export import write_corrupted
from spear_hf.data.image_stream import ImageStream
from spear_hf.data.load_stream import load_stream
from spear_hf.data.processor import load_processor
from spear_hf.errors import DataError
from tests.builders import picture_rows, shuffled_stream

pytestmark = pytest.mark.filterwarnings("ignore:.* is sorted by class")


ALL = [1, 2, 3, 4, 5]


def source(side: int = 32, n: int = 6) -> Dataset:
    """n random images of two classes, sorted."""
    pixels = np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    features = Features({"image": ImageFeature(), "label": ClassLabel(names=["ant", "bee"])})
    rows = {"image": [Image.fromarray(x) for x in pixels], "label": [int(i >= n // 2) for i in range(n)]}
    return Dataset.from_dict(rows, features=features)


def small(**options: Any) -> ImageStream:
    """Contrast and noise in the order of the source."""
    options = {"corruptions": "contrast, gaussian_noise", "severity": ALL, "shuffle": False, "batch_size": 4} | options
    return shuffled_stream(options.pop("source", source()), **options)


@pytest.mark.parametrize("layout", ["parquet", "npy", "imagefolder"])
def test_what_is_written_is_read_again_to_the_bit(tmp_path: Path, layout: str) -> None:
    folder = write_corrupted(small(), tmp_path / "copy", layout=layout, progress=False)
    again = small(source=folder)
    for original, copied in zip(small(), again, strict=True):
        assert copied["pixel_values"].equal(original["pixel_values"])
        assert torch.equal(copied["labels"], original["labels"])  # pyright: ignore[reportArgumentType]
        assert copied["domain"] == original["domain"]


@pytest.mark.parametrize("layout", ["parquet", "imagefolder"])
def test_imagenets_jpeg_is_written_once(tmp_path: Path, layout: str) -> None:
    options: dict[str, Any] = {"source": source(224, 2), "corruptions": "gaussian_noise", "severity": 3}
    folder = write_corrupted(small(**options), tmp_path / "copy", layout=layout, progress=False)
    again = small(**options | {"source": folder})
    assert again.batch(0)["pixel_values"].equal(small(**options).batch(0)["pixel_values"])
    if layout == "imagefolder":
        assert len(list(folder.rglob("*.JPEG"))) == 2


def test_class_names_are_kept(tmp_path: Path) -> None:
    options: dict[str, Any] = {"corruptions": "contrast", "severity": 1}
    for layout in ("parquet", "imagefolder"):
        folder = write_corrupted(small(**options), tmp_path / layout, layout=layout, progress=False)
        named = shuffled_stream(folder, shuffle=False, class_names=["bee", "ant"], **options).batch(0)["labels"]
        assert named.tolist() == [1, 1, 1, 0, 0, 0]  # pyright: ignore[reportOptionalMemberAccess]


def test_provenance_lies_beside_the_images(tmp_path: Path) -> None:
    stream = small(corruptions="contrast", severity=1)
    folder = write_corrupted(stream, tmp_path / "copy", progress=False)
    assert json.loads((folder / "provenance.json").read_text()) == stream.describe()


def test_nothing_is_left_behind_by_an_error(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for i, image in enumerate(source()["image"]):
        image.save(tmp_path / "photos" / f"{i}.jpg")
    (tmp_path / "photos" / "3.jpg").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"photos/3.jpg cannot be decoded"):
        write_corrupted(small(source=tmp_path / "photos"), tmp_path / "copy", progress=False)
    assert [entry.name for entry in tmp_path.iterdir()] == ["photos"]


def test_a_folder_with_contents_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(DataError, match="is not empty; pass a new folder"):
        write_corrupted(small(), tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.txt"]


def test_streams_that_are_no_copies_are_refused(tmp_path: Path) -> None:
    processor = load_processor(None, mean=[0.5] * 3, std=[0.5] * 3, size=32)
    for stream, reason in (
        (small(processor=processor), "has a processor"),
        (small(cycles=None), "has cycles=None"),
        (small(corruptions="clean"), "a segment 'clean'"),
        (small(corruptions="fog/1+snow/1"), r"a segment 'fog/1\+snow/1'"),
        (small(protocol="mixed"), "a segment 'mixed'"),
        (small(severity=5, protocol="gradual"), "a domain twice"),
    ):
        with pytest.raises(DataError, match=reason):
            write_corrupted(stream, tmp_path / "copy")
    with pytest.raises(DataError, match="layout='tar' is unknown; pass one of parquet, npy, imagefolder"):
        write_corrupted(small(), tmp_path / "copy", layout="tar")
    with pytest.raises(DataError, match=r"holds severities 1 to 5, the stream has .*contrast"):
        write_corrupted(small(severity=[1, 3]), tmp_path / "copy", layout="npy")


@pytest.mark.parametrize("names", [["a/b", "a_b", "c"], ["..", "dog"], [".hidden", "50%2F"], ["T-shirt/top", "x."]])
def test_no_class_of_an_image_folder_is_lost_or_merged(tmp_path: Path, names: list[str]) -> None:
    features = Features({"image": ImageFeature(), "label": ClassLabel(names=names)})
    rows = picture_rows(6, seed=1).map(lambda row: {"label": row["label"] % len(names)}).cast(features)
    write_corrupted(shuffled_stream(rows, corruptions="fog"), tmp_path / "copy", layout="imagefolder", progress=False)
    copy = load_stream(tmp_path / "copy", corruptions="fog", class_names=names)
    assert sorted(copy.batch(0)["labels"].tolist()) == sorted(rows["label"])  # pyright: ignore[reportOptionalMemberAccess]
