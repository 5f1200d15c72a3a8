from typing import Any

import pytest
import torch
from torch import nn

from spear_hf.errors import InputError
from spear_hf.utils.model_inputs import (
    Arguments,
    arguments_of,
    check_further,
    images_and_further,
    normal_tensors,
    rows_of,
    with_one_row,
)

TWO = Arguments(("image", "mask"), ("image",))


@pytest.mark.parametrize(
    ("x", "pixel_values", "given", "refusal"),
    [
        (None, None, {}, "no batches of images"),
        (1, 2, {}, "two batches of images"),
        (1, None, {"image": 2}, "two batches of images"),
        ({"mask": 1}, None, {"mask": 2}, "mask came twice"),
        ({"mask": 1}, None, {}, r"the batch has \['mask'\]; allowed is one with pixel_values"),
        (1, None, {"maks": 2}, "the model takes no maks; allowed are image, mask"),
    ],
)
def test_what_is_no_batch_is_refused(x: Any, pixel_values: Any, given: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InputError, match=refusal):
        images_and_further(x, pixel_values, given, TWO)


def test_labels_and_what_streams_add_is_passed_over() -> None:
    given = {"labels": 3, "names": ["a"], "domain": "fog", "mask": None}
    assert images_and_further(None, 1, given, TWO) == (1, {})
    assert images_and_further({"pixel_values": 1, "mask": 2, "id": 7}, None, {}, TWO) == (1, {"mask": 2})


def test_a_model_of_starred_arguments_takes_images_alone() -> None:
    class Starred(nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> None: ...

    assert arguments_of(Starred()) == Arguments()
    with pytest.raises(InputError, match="its forward names no arguments"):
        images_and_further(1, None, {"mask": 2}, Arguments())


def test_rows_and_flags() -> None:
    further = {"mask": torch.tensor([[1], [2], [3]]), "flag": True}
    some = rows_of(further, torch.tensor([2, 0]))
    assert (some["mask"].tolist(), some["flag"]) == ([[3], [1]], True)
    one = with_one_row(further | {"table": torch.rand(3, 2)})
    assert one["mask"].tolist() == [[1]]
    assert one["table"].tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("value", "refusal"), [(torch.tensor(1), r"shape \(\)"), (torch.tensor([0.0, torch.nan]), "NaN")]
)
def test_values_that_must_not_be_learned_from(value: torch.Tensor, refusal: str) -> None:
    with pytest.raises(InputError, match=refusal):
        check_further({"table": value}, 2)


def test_tensors_of_inference_mode_are_copied() -> None:
    with torch.inference_mode():
        x = torch.zeros(1)
    images, further = normal_tensors(x, {"mask": x})
    assert not images.is_inference()
    assert not further["mask"].is_inference()
