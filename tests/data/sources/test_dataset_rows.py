"""Rows of a Dataset: their columns, and the corruptions that they name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image, Value

from spear_hf.data.load_stream import load_stream
from spear_hf.errors import DataError
from tests.builders import picture_rows, pictures

pytestmark = pytest.mark.filterwarnings("ignore:.* is sorted by class", "ignore:Specifying null_placement")


N = 12


def test_rows_that_name_their_corruption_are_taken_apart() -> None:
    names, levels = ["fog"] * 6 + ["Gaussian Noise"] * 6, [1, 1, 1, 2, 2, 2] * 2
    dataset = picture_rows(corruption_name=names, corruption_level=levels)
    stream = load_stream(dataset, corruptions="gaussian_noise, fog", severity=2, shuffle=False)
    assert [batch["pixel_values"].shape[0] for batch in stream] == [3, 3]
    assert np.array_equal(stream.batch(0)["pixel_values"].numpy(), pictures(12)[9:12])
    assert stream.batch(1)["labels"].tolist() == [0, 1, 2]  # pyright: ignore[reportOptionalMemberAccess]


def test_wordnet_ids_are_preferred_where_the_model_knows_them() -> None:
    dataset = picture_rows(wnid=[f"n0000000{i % 3}" for i in range(N)])
    names = [("n00000002", "cat"), ("n00000001", "bee"), ("n00000000", "ant")]
    by_wnid, by_number = (
        load_stream(dataset, corruptions="fog", shuffle=False, class_names=given, label_column=column).batch(0)[
            "labels"
        ]
        for given, column in ((names, "wnid"), (["a", "b", "c"], "auto"))
    )
    assert by_wnid.tolist() == [2, 1, 0] * 4  # pyright: ignore[reportOptionalMemberAccess]
    assert by_number.tolist() == [0, 1, 2] * 4  # pyright: ignore[reportOptionalMemberAccess]
    with pytest.raises(
        DataError, match="column 'wnid' gives row 0 of dataset the class 2, column 'label' the class 0; pa"
    ):
        load_stream(dataset, class_names=names)


def test_a_domain_column_is_not_taken_for_the_label() -> None:
    features = Features({"image": Image(), "label": Value("int64"), "domain": ClassLabel(names=["art", "photo"])})
    rows = picture_rows(4, domain=[0, 1, 0, 1]).cast(features)
    stream = load_stream(rows, corruptions="clean", shuffle=False)
    assert stream.batch(0)["labels"].tolist() == [0, 1, 2, 0]  # pyright: ignore[reportOptionalMemberAccess]
    with pytest.raises(DataError, match="columns 'kind', 'domain' could each hold the labels; pass label_column="):
        load_stream(rows.rename_column("label", "kind").cast_column("kind", ClassLabel(names=["a", "b", "c"])))


def test_pixel_columns_and_named_labels_are_read() -> None:
    features = Features({"img": Value("binary"), "label": ClassLabel(names=["ant", "bee", "cat"])})
    encoded = [cell["bytes"] for cell in picture_rows().cast_column("image", Image(decode=False))["image"]]
    dataset = Dataset.from_dict({"img": encoded, "label": [0] * N}, features=features)
    batch = load_stream(dataset, corruptions="clean", shuffle=False, class_names=["cat", "bee", "ant"]).batch(0)
    assert np.array_equal(batch["pixel_values"].numpy(), pictures(12))
    assert batch["labels"].tolist() == [2] * N  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.slow
def test_every_photograph_of_the_imagenet_sample_finds_its_class_by_name(shared: Path) -> None:
    from timm.data.imagenet_info import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    names = [(info.index_to_label_name(k), info.index_to_description(k)) for k in range(1000)]
    path = shared / "imagenet_sample" / "train_1000.parquet"
    by_wnid, by_number = (
        load_stream(path, corruptions="fog", class_names=given, limit=32)
        for given in (names, [str(k) for k in range(1000)])
    )
    assert by_wnid.describe()["labels"] == "wnid"
    assert by_wnid.describe()["source"]["label_column"] == "wnid"
    assert torch.equal(by_wnid.batch(0)["labels"], by_number.batch(0)["labels"])  # pyright: ignore[reportArgumentType]


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


def test_a_row_without_an_image_is_named_and_skipped_on_demand() -> None:
    images = [cell["bytes"] for cell in picture_rows(3).cast_column("image", Image(decode=False))["image"]]
    holed = Dataset.from_dict({"image": [images[0], None, images[2]]}, features=Features({"image": Image()}))
    with pytest.raises(DataError, match=r"row 1 of dataset has no image \(an empty cell\)"):
        load_stream(holed, corruptions="clean").batch(0)
    stream = load_stream(holed, corruptions="clean", shuffle=False, skip_broken=True)
    assert [batch["index"].tolist() for batch in stream] == [[0, 2]]
    assert stream.skipped_names == ["1"]


@pytest.mark.parametrize("cells", [[0, None, 2], ["ant", None, "bee"], [0.0, float("nan"), 2.0]])
def test_a_row_without_a_label_is_named_and_skipped_on_demand(cells: list[Any]) -> None:
    rows = picture_rows(3).remove_columns("label").add_column("label", cells)  # pyright: ignore[reportCallIssue]
    with pytest.raises(DataError, match=r"1 of 3 images have no label: row 1 of dataset"):
        load_stream(rows, corruptions="clean")
    stream = load_stream(rows, corruptions="clean", shuffle=False, skip_broken=True)
    assert [batch["index"].tolist() for batch in stream] == [[0, 2]]
    assert stream.skipped == {1}


def test_a_column_of_paths_is_read_as_images(folder: Path) -> None:
    paths = sorted(map(str, folder.rglob("*.png")))
    stream = load_stream(Dataset.from_dict({"image": paths, "label": [0, 1] * 5}), corruptions="clean", shuffle=False)
    assert stream.batch(0)["names"][0] == "ant/00.png"
    assert stream.batch(0)["pixel_values"].equal(
        load_stream(folder, corruptions="clean", shuffle=False).batch(0)["pixel_values"]
    )
