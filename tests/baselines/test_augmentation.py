"""Random views, destroyed images, and the normalisation they undo."""

import pytest
import torch
from torch import nn

from spear_hf.baselines import METHODS
from spear_hf.baselines.augmentation import Augmentation, Normalization, ObjectDestruction
from spear_hf.errors import ConfigError
from tests.builders import NORMALIZATION


def test_a_model_that_carries_no_normalisation_needs_it_said(net: nn.Module) -> None:
    with pytest.raises(ConfigError, match=r"TinyNet has no preprocessing .* pass mean= and std= for each channel"):
        METHODS["roid"](net)
    with pytest.raises(ConfigError, match=r"std=\(0\.0,\) are not allowed"):
        Normalization((0.5,), (0.0,))


def test_augmented_views_stay_in_range_and_come_from_their_own_seed() -> None:
    x = NORMALIZATION.normalized(torch.rand(4, 3, 16, 16))
    first, before = Augmentation(NORMALIZATION)(x), torch.get_rng_state()
    view = Augmentation(NORMALIZATION)
    assert torch.equal(view(x), first)
    assert not torch.equal(view(x), first)
    view.reset()
    assert torch.equal(view(x), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.shape == x.shape
    assert 0 <= float(NORMALIZATION.pixels(first).min()) < float(NORMALIZATION.pixels(first).max()) <= 1.0001


@pytest.mark.parametrize("kind", ["patch", "pixel"])
def test_shuffled_images_hold_the_same_pixels_each_in_its_own_order(kind: str) -> None:
    x = torch.arange(2 * 3 * 8 * 8.0).view(2, 3, 8, 8)
    x[1] = x[0]
    found = ObjectDestruction(kind)(x)
    assert not torch.equal(found, x)
    assert not torch.equal(found[0], found[1])
    torch.testing.assert_close(found.flatten(2).sort().values, x.flatten(2).sort().values)


def test_patches_move_whole_and_together_over_the_channels() -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3).repeat(1, 3, 1, 1)
    found = ObjectDestruction()(x)
    assert torch.equal(found[:, :, ::2, ::2].repeat_interleave(2, 2).repeat_interleave(2, 3), found)
    assert torch.equal(found[:, 0], found[:, 2])


def test_a_side_that_the_grid_does_not_divide_comes_back_in_its_size() -> None:
    assert ObjectDestruction()(torch.rand(2, 3, 30, 27)).shape == (2, 3, 30, 27)
    assert ObjectDestruction()(torch.rand(2, 3, 2, 2)).shape == (2, 3, 2, 2)


def test_occlusion_covers_the_middle_with_the_mean() -> None:
    x = torch.rand(2, 3, 8, 8)
    found = ObjectDestruction("occlusion")(x)
    torch.testing.assert_close(found[1, 2, 2:6, 2:6], x[1, 2].mean().expand(4, 4))
    assert torch.equal(found[:, :, 6:], x[:, :, 6:])
    with pytest.raises(ConfigError, match="destruction='blur' is not known; allowed are patch, pixel, occlusion"):
        ObjectDestruction("blur")
