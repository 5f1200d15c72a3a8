"""What a user can name as a source, and what is refused."""

from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features
from datasets import Image as ImageFeature
from PIL import Image

from spear_hf.data.load_stream import load_stream
from spear_hf.errors import DataError
from tests.builders import picture_rows, write_pictures

pytestmark = pytest.mark.filterwarnings("ignore:.* is sorted by class", "ignore:Specifying null_placement")


def test_a_saved_dataset_is_read(tmp_path: Path) -> None:
    picture_rows().save_to_disk(tmp_path / "saved")
    assert len(load_stream(tmp_path / "saved", corruptions="fog").batch(0)["index"]) == 12


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
    with pytest.raises(DataError, match=r"gone' does not exist; pass a folder of images"):
        load_stream(tmp_path / "gone")
    with pytest.raises(DataError, match=r"'gone\.parquet' does not exist"):
        load_stream("./gone.parquet")


def test_an_empty_folder_and_an_empty_dataset_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ant").mkdir()
    with pytest.raises(DataError, match=r"holds no image file \(.*pass the folder of the images"):
        load_stream(tmp_path)
    write_pictures(tmp_path / "bee", 1)
    with pytest.raises(DataError, match=r"class folders ant of .* hold no image file; remove them, or pass label_c"):
        load_stream(tmp_path)
    with pytest.raises(DataError, match="has no rows; pass a source with images"):
        load_stream(Dataset.from_dict({"image": []}))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.xls").write_text("a,b")
    with pytest.raises(DataError, match=r"1 of 1 files are no images \(data\.xls\); pass a folder"):
        load_stream(tmp_path / "data.xls")


def test_an_object_that_is_no_source_is_refused() -> None:
    with pytest.raises(DataError, match="source is an object of type int; pass a folder"):
        load_stream(3)
