"""Images of every kind become uint8 RGB; broken ones are named."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, Features, Value
from PIL import Image

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
    assert stream.skipped == {3}


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
