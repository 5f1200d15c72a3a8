"""Streaming datasets, read in windows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from datasets import IterableDataset
from PIL import Image as PILImage

from spear_hf.data.load_stream import load_stream
from spear_hf.errors import DataError
from tests.builders import picture_rows, pictures, shuffled_stream, write_pictures

pytestmark = pytest.mark.filterwarnings("ignore:.* is sorted by class", "ignore:Specifying null_placement")


N = 12


def as_iterable(**more: Any) -> IterableDataset:
    return picture_rows(**more).to_iterable_dataset(num_shards=3)


def test_a_streaming_dataset_gives_the_same_images_as_a_stored_one() -> None:
    options: dict[str, Any] = {"corruptions": "gaussian_noise", "limit": N, "shuffle": False, "batch_size": 5}
    for streamed, stored in zip(
        load_stream(as_iterable(), **options), load_stream(picture_rows(), **options), strict=True
    ):
        assert streamed["pixel_values"].equal(stored["pixel_values"])
        assert torch.equal(streamed["labels"], stored["labels"])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("workers", [0, 2, pytest.param(1, marks=pytest.mark.slow)])
def test_windows_are_shuffled_in_themselves_for_any_workers(workers: int) -> None:
    options = {"limit": 11, "window": 4, "batch_size": 3, "num_workers": workers}
    stream = shuffled_stream(as_iterable(), corruptions="fog, snow", **options)
    index = torch.cat([batch["index"] for batch in stream]).tolist()
    assert [sorted(part) for part in (index[:4], index[4:8], index[8:11])] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert index[:11] == index[11:]
    assert index[:11] != sorted(index[:11])


def test_a_batch_of_a_streaming_dataset_needs_no_batch_before_it() -> None:
    def fresh() -> Any:
        return load_stream(as_iterable(), corruptions="noise", limit=10, window=4, batch_size=3)

    for number, batch in enumerate(fresh()):
        assert fresh().batch(number)["pixel_values"].equal(batch["pixel_values"])


def test_a_streaming_dataset_is_counted_unless_it_has_a_limit_and_meets_it() -> None:
    assert [name for batch in load_stream(as_iterable()) for name in batch["names"]] == [str(i) for i in range(N)]
    with pytest.raises(DataError, match=r"limit=20, but dataset ended after 12 images; pass limit=12 or less"):
        load_stream(as_iterable(), limit=20)


def test_a_generator_without_features_is_read() -> None:
    def generate() -> Iterator[dict[str, Any]]:
        for i, image in enumerate(pictures(12)):
            yield {"image": PILImage.fromarray(image), "label": i % 3}

    batch = load_stream(IterableDataset.from_generator(generate), corruptions="clean", limit=N, shuffle=False).batch(0)
    assert np.array_equal(batch["pixel_values"].numpy(), pictures(12))


KINDS = ["cat", "ant", "bee", "cat", "bee", "ant", "cat", "dog", "ant", "bee", "cat", "ant"]


@pytest.mark.parametrize("options", [{}, {"class_names": ["dog", "cat", "bee", "ant", "fly"], "limit": 7}])
def test_names_as_labels_of_a_streaming_dataset_are_those_of_a_stored_one(options: dict[str, Any]) -> None:
    rows = picture_rows(kind=KINDS).remove_columns("label")
    streamed, stored = (
        load_stream(each, label_column="kind", window=4, batch_size=3, **options)
        for each in (rows.to_iterable_dataset(), rows)
    )
    for mine, expected in zip(streamed, stored, strict=True):
        assert torch.equal(mine["labels"], expected["labels"])
    assert streamed.classes == stored.classes


def test_names_of_which_later_rows_may_have_more_need_the_model_s() -> None:
    rows = picture_rows(kind=KINDS).remove_columns("label").to_iterable_dataset()
    with pytest.raises(DataError, match=r"only those of its first 7 rows are known.*pass class_names="):
        load_stream(rows, label_column="kind", limit=7)


def test_an_empty_cell_among_names_of_a_streaming_dataset_is_skipped_on_demand() -> None:
    kinds = [None, *KINDS[1:5], "", *KINDS[6:]]
    rows = picture_rows(kind=kinds).remove_columns("label").to_iterable_dataset()
    stream = load_stream(rows, label_column="kind", skip_broken=True, window=4, batch_size=3)
    assert [batch["labels"].tolist() for batch in stream] == [[0, 1], [2, 1], [2, 3, 0], [1, 2, 0]]
    assert stream.skipped == {0, 5}


def test_a_streaming_dataset_sorted_by_class_warns() -> None:
    dataset = picture_rows().sort("label").to_iterable_dataset()
    with pytest.warns(UserWarning, match="shuffled in windows only: load it without streaming=True"):
        load_stream(dataset, limit=N, corruptions="fog", shuffle=True)


@pytest.mark.parametrize("protocol", ["mixed", "correlated"])
def test_protocols_that_read_in_any_order_refuse_a_streaming_dataset(protocol: str) -> None:
    with pytest.raises(DataError, match=f"protocol='{protocol}' reads images in any order"):
        load_stream(as_iterable(), limit=N, protocol=protocol)


def test_images_in_an_archive_are_streamed_by_their_urls(tmp_path: Path) -> None:
    write_pictures(tmp_path / "cat", 4)
    with ZipFile(tmp_path / "test.zip", "w") as archive:
        for file in sorted((tmp_path / "cat").iterdir()):
            archive.write(file, f"cat/{file.name}")
    urls = [{"image": f"zip://cat/{i:02d}.png::{tmp_path}/test.zip"} for i in range(4)]
    rows = IterableDataset.from_generator(lambda: iter(urls))
    batch = load_stream(rows, corruptions="clean", limit=4, shuffle=False).batch(0)
    assert np.array_equal(batch["pixel_values"].numpy(), pictures(4))
    assert batch["names"][3] == "cat/03.png"


def test_a_parquet_file_is_streamed_as_it_is_read(tmp_path: Path) -> None:
    picture_rows().to_parquet(tmp_path / "a.parquet")
    streamed, stored = (load_stream(tmp_path / "a.parquet", streaming=given) for given in (True, False))
    assert streamed.describe()["source"]["kind"] == "streaming"
    assert streamed.batch(0)["pixel_values"].equal(stored.batch(0)["pixel_values"])
