"""Random views, destroyed images, and the normalisation they undo."""

from typing import Any

import pytest
import torch
from torch import nn

from spear_hf.baselines import METHODS
from spear_hf.baselines.augmentation import Augmentation, Normalization, ObjectDestruction
from spear_hf.errors import ConfigError
from tests.builders import NORMALIZATION, NORMALIZED


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


@pytest.mark.parametrize(
    ("name", "corners"),
    [
        ("cotta", [0.36045, 0.33614, 0.45813, 0.46869]),
        ("rotta", [0.36045, 0.33614, 0.45813, 0.46869]),
        ("roid", [0.39169, 0.35019, 0.45684, 0.47181]),
        ("cmf", [0.39169, 0.35019, 0.45684, 0.47181]),
    ],
)
def test_views_have_the_padding_of_their_authors(name: str, corners: list[float], net: nn.Module) -> None:
    """The corners of one view by torchvision's transforms with the same draws, padded by edge or reflect."""
    method: Any = METHODS[name](net, skip=(), seed=3, **NORMALIZED)
    view = method._answer.augmentation if name == "cotta" else method.objective.augmentation
    x = NORMALIZATION.normalized(torch.linspace(0, 1, 3 * 8 * 8).view(1, 3, 8, 8))
    found = NORMALIZATION.pixels(view(x))[0, 2, [0, 0, 7, 7], [0, 7, 0, 7]]
    torch.testing.assert_close(found, torch.tensor(corners), rtol=0, atol=1e-4)


def test_a_padding_that_nobody_used_is_refused() -> None:
    with pytest.raises(ConfigError, match="padding='zeros' is not known; allowed are edge, reflect"):
        Augmentation(NORMALIZATION, padding="zeros")


@pytest.mark.parametrize(("kind", "alike"), [("patch", False), ("pixel", True)])
def test_shuffled_images_hold_the_same_pixels_patches_in_an_order_for_each_image(kind: str, alike: bool) -> None:
    x = torch.arange(2 * 3 * 8 * 8.0).view(2, 3, 8, 8)
    x[1] = x[0]
    found = ObjectDestruction(kind)(x)
    assert not torch.equal(found, x)
    assert torch.equal(found[0], found[1]) is alike
    torch.testing.assert_close(found.flatten(2).sort().values, x.flatten(2).sort().values)


def test_patches_move_whole_and_together_over_the_channels() -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3).repeat(1, 3, 1, 1)
    found = ObjectDestruction()(x)
    assert torch.equal(found[:, :, ::2, ::2].repeat_interleave(2, 2).repeat_interleave(2, 3), found)
    assert torch.equal(found[:, 0], found[:, 2])


def test_a_side_that_the_grid_does_not_divide_comes_back_in_its_size() -> None:
    assert ObjectDestruction()(torch.rand(2, 3, 30, 27)).shape == (2, 3, 30, 27)
    assert ObjectDestruction()(torch.rand(2, 3, 2, 2)).shape == (2, 3, 2, 2)


@pytest.mark.parametrize(("antialias", "share"), [(True, 0.625), (False, 0.75)])
def test_a_side_that_the_grid_does_not_divide_is_filtered_first(antialias: bool, share: float) -> None:
    """From 6 to 4 a cell has the first pixel by 5/8 with a filter of 3 pixels, by 3/4 without; back to 6 by 3/2."""
    x = torch.zeros(1, 1, 6, 6)
    x[..., 0, 0] = 1
    total = ObjectDestruction(antialias=antialias)(x).sum()
    assert total.item() == pytest.approx((share * 1.5) ** 2, rel=1e-5)
    assert ObjectDestruction().antialias


def test_occlusion_covers_the_middle_with_the_mean() -> None:
    x = torch.rand(2, 3, 8, 8)
    found = ObjectDestruction("occlusion")(x)
    torch.testing.assert_close(found[1, 2, 2:6, 2:6], x[1, 2].mean().expand(4, 4))
    assert torch.equal(found[:, :, 6:], x[:, :, 6:])
    with pytest.raises(ConfigError, match="destruction='blur' is not known; allowed are patch, pixel, occlusion"):
        ObjectDestruction("blur")
