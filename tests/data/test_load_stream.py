"""Arguments that do not fit are refused with what is allowed."""

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from PIL import Image

from spear_hf.data.load_stream import load_stream
from spear_hf.data.processor import load_processor
from spear_hf.errors import DataError
from tests.builders import write_pictures


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
        load_stream(rows, corruptions="fog", severity=severity)
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
        load_stream(rows, corruptions="fog", **{option: value})


@pytest.mark.parametrize(("side", "preset"), [(16, "cifar"), (28, "cifar"), (96, "tiny"), (150, "imagenet")])
def test_any_size_takes_the_constants_of_the_nearest_and_says_so(tmp_path: Path, side: int, preset: str) -> None:
    stream = load_stream(write_pictures(tmp_path / "odd", 1, side=side), corruptions="contrast")
    assert stream.batch(0)["pixel_values"].shape == (1, side, side, 3)
    assert stream.notes[-1].startswith(f"corruptions: constants of preset {preset}, made for")
    assert stream.notes[-1].endswith(f"the nearest to {side} x {side}")


def test_nothing_is_corrupted_or_shuffled_unless_asked(folder: Path) -> None:
    stream = load_stream(folder, label_column=None)
    assert (stream.domains, stream.batch(0)["index"].tolist()) == (["clean"], list(range(10)))


def test_images_of_several_sizes_are_corrupted_each_as_if_it_were_alone() -> None:
    mixed = [Image.new("RGB", (32, 32), "red"), Image.new("RGB", (48, 32)), Image.new("RGB", (32, 32), "blue")]
    options: dict[str, Any] = {"corruptions": "fog", "shuffle": False}
    keep = load_processor(None, mean=[0.0] * 3, std=[1.0] * 3, size=32)
    together = load_stream(Dataset.from_dict({"image": mixed}), processor=keep, **options).batch(0)["pixel_values"]
    alike = load_stream(Dataset.from_dict({"image": [mixed[0], mixed[2], mixed[2]]}), processor=keep, **options).batch(
        0
    )
    assert together[[0, 2]].equal(alike["pixel_values"][[0, 2]])


def test_images_of_several_sizes_do_not_stack_without_a_processor() -> None:
    mixed = Dataset.from_dict({"image": [Image.new("RGB", (32, 32)), Image.new("RGB", (48, 32))]})
    with pytest.raises(DataError, match=r"several sizes .* do not stack; pass processor="):
        load_stream(mixed, corruptions="clean").batch(0)


def test_a_folder_of_frost_textures_is_used_and_reported(rows: Dataset, tmp_path: Path) -> None:
    stream = load_stream(rows, corruptions="frost", frost_dir=tmp_path)
    assert stream.describe()["corruption"]["frost"] == "frost(official)"
    with pytest.raises(DataError, match=r"has no frost1\.png"):
        stream.batch(0)
