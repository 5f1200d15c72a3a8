"""What does not fit is refused with what came, what is allowed and the way out; what can be read is read."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from datasets import Image as ImageFeature
from PIL import Image

from spear_hf.data.load_stream import load_stream
from spear_hf.errors import DataError


def write_images(folder: Path, n: int, side: int = 32, suffix: str = "png") -> Path:
    """n image files of random pixels."""
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{i:02d}.{suffix}")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two class folders, five images each."""
    for name in ("ant", "bee"):
        write_images(tmp_path / "pets" / name, 5)
    return tmp_path / "pets"


@pytest.mark.filterwarnings("ignore:pets is sorted")
def test_a_folder_is_read_with_its_classes(folder: Path) -> None:
    batch = load_stream(folder, corruptions="fog", shuffle=False, class_names=["bee", "ant"]).batch(0)
    assert batch["labels"].tolist() == [1] * 5 + [0] * 5  # pyright: ignore[reportOptionalMemberAccess]
    assert batch["index"].tolist() == list(range(10))


def test_a_folder_of_splits_is_read_at_its_test_split(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "val")
    write_images(tmp_path / "train" / "ant", 3)
    assert len(load_stream(tmp_path, corruptions="fog").batch(0)["index"]) == 10
    assert len(load_stream(tmp_path, corruptions="fog", split="train").batch(0)["index"]) == 3


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    assert load_stream(write_images(tmp_path / "flat", 4), corruptions="fog").batch(0)["labels"] is None


def test_a_parquet_file_is_read(folder: Path, tmp_path: Path) -> None:
    rows = {"image": [str(file) for file in sorted(folder.rglob("*.png"))], "label": [0] * 5 + [1] * 5}
    features = Features({"image": ImageFeature(), "label": ClassLabel(names=["ant", "bee"])})
    Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "pets.parquet")
    from_parquet, from_folder = (load_stream(path, corruptions="fog") for path in (tmp_path / "pets.parquet", folder))
    assert from_parquet.batch(0)["pixel_values"].equal(from_folder.batch(0)["pixel_values"])
    assert from_parquet.describe()["source"]["name"] == "pets.parquet"


def test_a_dataset_dict_is_read_at_its_test_split() -> None:
    rows = Dataset.from_dict({"image": [Image.new("RGB", (32, 32))]})
    assert len(load_stream(DatasetDict(train=rows, test=rows), corruptions="fog").batch(0)["index"]) == 1
    with pytest.raises(DataError, match="split='dev' does not exist or is ambiguous; pass one of 'train', 'other'"):
        load_stream(DatasetDict(train=rows, other=rows), split="dev")


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone' does not exist; pass a parquet file, a folder"):
        load_stream(tmp_path / "gone")
    with pytest.raises(DataError, match=r"'gone\.parquet' does not exist"):
        load_stream("./gone.parquet")


def test_an_empty_folder_and_an_empty_dataset_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ant").mkdir()
    with pytest.raises(DataError, match=r"class folders ant of .* hold no image file"):
        load_stream(tmp_path)
    with pytest.raises(DataError, match="has no rows; pass a source with images"):
        load_stream(Dataset.from_dict({"image": []}))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("a,b")
    with pytest.raises(DataError, match=r"'data\.csv' is not a parquet file; pass one"):
        load_stream(tmp_path / "data.csv")


def test_an_object_that_is_no_source_is_refused() -> None:
    with pytest.raises(DataError, match="source is an object of type int; pass a Dataset"):
        load_stream(3)


@pytest.fixture
def rows() -> Dataset:
    """Four images with a number in a column that is no usual label name."""
    images = [Image.new("RGB", (32, 32), color) for color in ("red", "green", "blue", "white")]
    return Dataset.from_dict({"image": images, "kind": [0, 1, 2, 3]})


def test_an_absent_column_is_named_with_those_that_are_there(rows: Dataset) -> None:
    with pytest.raises(DataError, match="label_column='label' is not a column; the columns are image, kind: pass one"):
        load_stream(rows, label_column="label")
    with pytest.raises(DataError, match="image_column='photo' is not a column"):
        load_stream(rows, image_column="photo")


def test_labels_are_read_from_the_column_asked_for_or_not_at_all(rows: Dataset) -> None:
    batch = load_stream(rows, corruptions="fog", label_column="kind").batch(0)
    assert batch["labels"].equal(batch["index"])  # pyright: ignore[reportOptionalMemberAccess]
    assert load_stream(rows, corruptions="fog").batch(0)["labels"] is None
    assert load_stream(rows, corruptions="fog", label_column=None).batch(0)["labels"] is None


def test_withheld_labels_are_refused(rows: Dataset) -> None:
    hidden = rows.remove_columns("kind").add_column("label", [-1] * 4)
    with pytest.raises(DataError, match=r"labels go down to -1.*pass label_column=None"):
        load_stream(hidden)


def test_labels_beyond_the_model_are_refused(rows: Dataset) -> None:
    with pytest.raises(DataError, match="labels go up to 3, but there are 2 classes"):
        load_stream(rows, label_column="kind", class_names=["ant", "bee"])


@pytest.mark.parametrize("limit", [0, 5])
def test_a_limit_is_met_or_refused(rows: Dataset, limit: int) -> None:
    with pytest.raises(DataError, match=rf"limit={limit}, but dataset has 4 images; pass 1..4 or None"):
        load_stream(rows, limit=limit)


def test_an_unknown_corruption_is_refused_with_near_names(rows: Dataset) -> None:
    for words in ("gausian_noise", "fog/2+gausian_noise", ["gausian_noise/1"]):
        with pytest.raises(DataError, match="'gausian_noise' is not one of the 19 known; did you mean gaussian_noise"):
            load_stream(rows, corruptions=words)
    with pytest.raises(DataError, match="names none"):
        load_stream(rows, corruptions=[])


@pytest.mark.parametrize("severity", [0, 6, -1, float("nan")])
def test_a_severity_outside_its_range_is_refused(rows: Dataset, severity: float) -> None:
    with pytest.raises(DataError, match=r"is not in \(0, 5\]; pass 1 to 5"):
        load_stream(rows, severity=severity)
    with pytest.raises(DataError, match=r"is not in \(0, 5\]"):
        load_stream(rows, corruptions=f"fog/{severity}")


def test_an_unknown_protocol_is_refused(rows: Dataset) -> None:
    with pytest.raises(
        DataError, match="protocol='episodic' is unknown; pass one of single, continual, gradual, mixed, correlated"
    ):
        load_stream(rows, protocol="episodic")


@pytest.mark.parametrize(("option", "value"), [("batch_size", 0), ("cycles", 0), ("jpeg_quality", 96)])
def test_numbers_out_of_range_are_refused(rows: Dataset, option: str, value: int) -> None:
    with pytest.raises(DataError, match=f"{option}={value} is not"):
        load_stream(rows, **{option: value})


def test_a_size_without_constants_is_refused_until_a_preset_is_named(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "odd", 2, side=28)
    with pytest.raises(DataError, match=r"28x28 pixels, but constants exist for .* preset='imagenet'"):
        load_stream(folder)
    assert load_stream(folder, preset="cifar").batch(0)["pixel_values"].shape == (2, 28, 28, 3)


def test_images_of_several_sizes_are_refused_where_constants_are_in_pixels() -> None:
    mixed = Dataset.from_dict({"image": [Image.new("RGB", (32, 32)), Image.new("RGB", (48, 32))]})
    with pytest.raises(DataError, match=r"several sizes \(32x32, 32x48\) and preset='cifar'"):
        load_stream(mixed, preset="cifar").batch(0)
    with pytest.raises(DataError, match=r"several sizes .* do not stack; pass processor="):
        load_stream(mixed, corruptions="clean").batch(0)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Six JPEG files, one of which is cut in half."""
    folder = write_images(tmp_path / "photos", 6, suffix="jpg")
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


def test_sorted_classes_without_shuffling_warn(folder: Path) -> None:
    with pytest.warns(UserWarning, match="pets is sorted by class, .* leave shuffle on"):
        load_stream(folder, corruptions="fog", shuffle=False)
