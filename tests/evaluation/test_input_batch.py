from typing import Any

import pytest
import torch
from transformers import BatchFeature

from spear_hf.errors import DataError
from spear_hf.evaluation.input_batch import input_batches

X, Y = torch.zeros(2, 3, 8, 8), torch.tensor([1, 0])


@pytest.mark.parametrize(
    "item", [{"pixel_values": X, "labels": Y}, {"pixel_values": X, "label": [1, 0]}, (X, Y), [X, Y]]
)
def test_labels_are_found(item: Any) -> None:
    assert next(input_batches([item])).labels.tolist() == [1, 0]  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize("item", [X, (X,), {"pixel_values": X}, BatchFeature({"pixel_values": X})])
def test_images_need_no_labels(item: Any) -> None:
    batch = next(input_batches([item]))
    assert (batch.labels, batch.names, batch.domain) == (None, ["0", "1"], "images")


@pytest.mark.parametrize("item", [{"images": X}, "photo.jpg", {"pixel_values": [1]}, (X, Y, Y)])
def test_something_else_is_refused(item: Any) -> None:
    with pytest.raises(DataError, match="allowed are dictionaries with pixel_values"):
        next(input_batches([item]))


def test_a_domain_starts_where_its_name_changes() -> None:
    stream = [{"pixel_values": X, "domain": name} for name in ("day", "day", "night")]
    assert [batch.is_domain_start for batch in input_batches(stream, {"day": "morning"})] == [True, False, True]
    assert next(input_batches(stream, {"day": "morning"})).domain == "morning"


def test_names_that_are_not_as_many_as_images_are_refused() -> None:
    with pytest.raises(DataError, match="2 images and 1 names"):
        next(input_batches([{"pixel_values": X, "names": ["a.jpg"]}]))
