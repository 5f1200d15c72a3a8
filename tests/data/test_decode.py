"""Images of every kind become uint8 RGB; broken ones are named."""

import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Array3D, Dataset, Features, Value
from PIL import Image

from spear_hf.data.decode import decode_rgb
from spear_hf.data.load_stream import load_stream
from spear_hf.errors import DataError
from tests.builders import write_pictures


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Six JPEG files, one of which is cut in half."""
    folder = write_pictures(tmp_path / "photos", 6, suffix="jpg")
    data = (folder / "03.jpg").read_bytes()
    (folder / "03.jpg").write_bytes(data[: len(data) // 2])
    return folder


@pytest.mark.parametrize("workers", [0, 1])
def test_a_truncated_file_is_named(broken: Path, workers: int) -> None:
    with pytest.raises(DataError, match=r"^photos/03.jpg cannot be decoded .*skip_broken=True"):
        list(load_stream(broken, corruptions="fog", num_workers=workers))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_truncated_file_is_skipped_and_counted_on_demand(broken: Path, workers: int) -> None:
    stream = load_stream(broken, corruptions="fog, snow", skip_broken=True, batch_size=4, num_workers=workers)
    index = [int(i) for batch in stream for i in batch["index"]]
    assert sorted(index) == sorted([0, 1, 2, 4, 5] * 2)
    assert (stream.skipped, stream.skipped_names) == ({3}, ["03.jpg"])


def test_the_broken_files_of_a_batch_are_counted_and_named(broken: Path) -> None:
    (broken / "01.jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"^2 of 6 images of a batch: photos/01.jpg .*; photos/03.jpg .*skip_broken=T"):
        list(load_stream(broken, corruptions="clean", shuffle=False))


def test_an_image_too_small_for_corruptions_is_named_and_skipped_on_demand(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "photos", 4)
    Image.new("RGB", (40, 8)).save(folder / "02.png")
    with pytest.raises(DataError, match=r"^photos/02.png is 8 x 40 pixels, too small to be corrupted .*skip_broken=Tr"):
        list(load_stream(folder, corruptions="fog"))
    stream = load_stream(folder, corruptions="fog", skip_broken=True)
    assert [batch["names"] for batch in stream] == [["00.png", "01.png", "03.png"]]
    assert stream.skipped_names == ["02.png"]


def encode(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("L", (32, 32), 100), (100, 100, 100)),
        (Image.new("RGBA", (32, 32), (10, 20, 30, 255)), (10, 20, 30)),
        (Image.new("RGBA", (32, 32), (10, 20, 30, 0)), (255, 255, 255)),
        (Image.new("LA", (32, 32), (100, 255)), (100, 100, 100)),
        (Image.new("1", (32, 32), 1), (255, 255, 255)),
        (Image.new("P", (32, 32)), (0, 0, 0)),
        (Image.fromarray(np.full((32, 32), 100 * 257, np.uint16)), (100, 100, 100)),
    ],
    ids=["grey", "opaque", "transparent", "grey with alpha", "bits", "palette", "16 bits"],
)
def test_images_of_every_mode_become_rgb(image: Image.Image, expected: tuple[int, int, int]) -> None:
    rows = Dataset.from_dict({"image": [encode(image)]}, features=Features({"image": Value("binary")}))
    pixels = load_stream(rows, corruptions="clean").batch(0)["pixel_values"]
    assert pixels.shape == (1, 32, 32, 3)
    assert tuple(pixels[0, 5, 5].tolist()) == expected


def test_a_sideways_photograph_is_turned_upright(tmp_path: Path) -> None:
    image = Image.new("RGB", (48, 32))
    exif = image.getexif()
    exif[0x0112] = 6
    (tmp_path / "photos").mkdir()
    image.save(tmp_path / "photos" / "a.jpg", exif=exif)
    assert load_stream(tmp_path / "photos", corruptions="clean").batch(0)["pixel_values"].shape == (1, 48, 32, 3)


def test_a_photograph_with_a_damaged_exif_entry_is_turned_all_the_same() -> None:
    """An Orientation and a negative width, which Pillow's own transposition does not survive."""
    entries = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0) + struct.pack("<HHIi", 0x0100, 9, 1, -5)
    exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 2) + entries + bytes(4)
    file = BytesIO()
    Image.new("RGB", (48, 32)).save(file, "JPEG")
    head, rest = file.getvalue()[:2], file.getvalue()[2:]
    photograph = head + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + rest
    assert decode_rgb(photograph, str).shape == (48, 32, 3)


@pytest.mark.parametrize(
    ("pixels", "white"),
    [
        (np.ones((2, 4, 3), np.float32), 255),
        (np.full((2, 4, 3), 200.0), 200),
        (np.full((3, 2, 8), 0.5, np.float16)[..., :5], 128),
        (np.full((2, 4), 65535, np.uint16), 255),
        (np.full((2, 4, 1), 200, np.int64), 200),
        (np.ones((2, 4), bool), 255),
    ],
    ids=["0 to 1", "0 to 255", "channels first", "16 bits", "whole numbers", "bits"],
)
def test_pixels_are_scaled_by_their_range(pixels: np.ndarray, white: int) -> None:
    image = decode_rgb(pixels, str)
    assert (image.shape[0], image.shape[2], image.max()) == (2, 3, white)


@pytest.mark.parametrize(
    ("pixels", "refusal"),
    [
        (np.full((2, 4, 3), -1.0), "float64 pixels from -1 to -1.* look normalised already"),
        (np.full((2, 4, 3), np.nan), "float64 pixels from nan to nan"),
        (np.full((2, 4), 300), "int64 pixels from 300 to 300.*16 bits to uint16"),
        (np.full((2, 4), 255, np.uint16), "16-bit pixels up to 255 of 65535, nearly black"),
        (np.zeros((2, 4, 5)), r"array of shape \(2, 4, 5\)"),
        (np.array([["a"]]), "array of <U1"),
        (Image.fromarray(np.full((2, 4), 70_000, np.int32)), "int32 pixels from 7e"),
    ],
)
def test_pixels_of_no_known_range_are_refused(pixels: Any, refusal: str) -> None:
    with pytest.raises(DataError, match=f"^row 3 (is|has).*{refusal}"):
        decode_rgb(pixels, lambda: "row 3")


def test_a_tiff_of_floats_is_not_black() -> None:
    file = BytesIO()
    Image.fromarray(np.full((2, 4), 0.5, np.float32)).save(file, "TIFF")
    assert decode_rgb(file.getvalue(), str).max() == 128


def test_a_column_of_floats_is_not_black() -> None:
    features = Features({"image": Array3D((32, 32, 3), "float32")})
    rows = Dataset.from_dict({"image": [np.full((32, 32, 3), 0.2, np.float32)]}, features=features)
    assert load_stream(rows, corruptions="clean").batch(0)["pixel_values"].unique().tolist() == [51]
