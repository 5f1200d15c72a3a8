"""Clean images as pixels again."""

import pytest
import torch

from spear_hf import load_processor
from spear_hf.errors import ConfigError, DataError, InputError
from spear_hf.evaluation.calibration.clean_images import CleanImages
from tests.builders import pictures

HALF = load_processor(None, mean=[0.5] * 3, std=[0.5] * 3, size=16)
PIXELS = torch.from_numpy(pictures(64, side=16))


def test_pixels_are_what_the_processor_was_given() -> None:
    clean = CleanImages.read(HALF(PIXELS).split(24), None, processor=HALF, limit=64)
    assert torch.equal(clean.pixels, PIXELS)
    assert clean.batch_size == 24
    torch.testing.assert_close(clean.inputs(clean.pixels), HALF(PIXELS))


def test_inputs_are_of_the_precision_that_came() -> None:
    clean = CleanImages.read([HALF(PIXELS).bfloat16()], None, processor=HALF)
    assert clean.inputs(clean.pixels).dtype == torch.bfloat16


def test_no_more_is_read_than_asked_for() -> None:
    batches = iter([HALF(PIXELS), HALF(PIXELS)])
    assert len(CleanImages.read(batches, None, processor=HALF, limit=64)) == 64
    assert len(next(batches)) == 64


def test_a_corruption_is_that_of_a_stream() -> None:
    clean = CleanImages.read([HALF(PIXELS)], None, processor=HALF)
    found = clean.corrupted("brightness", 5)
    assert (found.shape, found.dtype) == (PIXELS.shape, torch.uint8)
    assert found.float().mean() > PIXELS.float().mean()


def test_a_grey_model_gets_one_channel() -> None:
    grey = load_processor(None, mean=[0.5], std=[0.5], size=16)
    clean = CleanImages.read([grey(PIXELS)], None, processor=grey)
    assert clean.pixels.shape == PIXELS.shape
    torch.testing.assert_close(clean.inputs(clean.pixels), grey(PIXELS))


def test_few_images_are_refused_with_the_way_out() -> None:
    with pytest.raises(DataError, match=r"63 clean images are too few; give at least 64, .* or go without"):
        CleanImages.read([HALF(PIXELS[:63])], None, processor=HALF)


@pytest.mark.parametrize("limit", [0, 63, -1, None, "all"])
def test_a_limit_below_what_is_needed_is_refused(limit: object) -> None:
    with pytest.raises(ConfigError, match="is not allowed; give a number of images, at least 64"):
        CleanImages.read([HALF(PIXELS)], None, processor=HALF, limit=limit)  # pyright: ignore[reportArgumentType]


def test_images_that_are_in_no_batch_are_refused() -> None:
    with pytest.raises(DataError, match=r"shape \(3, 16, 16\); give batches \(B, C, H, W\)"):
        CleanImages.read(HALF(PIXELS), None, processor=HALF)


def test_pixels_outside_of_what_images_have_are_refused() -> None:
    with pytest.raises(DataError, match=r"pixels reach from -0\.50 to 1\.00 .* pass processor=load_processor"):
        CleanImages.read([HALF(PIXELS) * 1.5 - 0.5], None, processor=HALF)


def test_corrupted_images_are_refused() -> None:
    batch = {"pixel_values": HALF(PIXELS), "domain": "fog/5"}
    with pytest.raises(DataError, match="images under 'fog/5' are not clean"):
        CleanImages.read([batch], None, processor=HALF)


def test_images_that_no_processor_has_prepared_are_refused() -> None:
    with pytest.raises(DataError, match="images are uint8; give what the model takes"):
        CleanImages.read([PIXELS.movedim(-1, 1)], None, processor=HALF)


def test_what_the_model_takes_beside_images_is_refused() -> None:
    class Two(torch.nn.Module):
        def forward(self, pixel_values, table): ...

    batch = {"pixel_values": HALF(PIXELS), "table": torch.zeros(64, 2), "position": 7}
    with pytest.raises(InputError, match="table"):
        CleanImages.read([batch], Two(), processor=HALF)
