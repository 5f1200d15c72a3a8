"""DeYO's PLPD, filter and weight, and its destroyed images, by hand."""

import math

import pytest
import torch
from torch import Tensor

from spear_hf.baselines.deyo import ObjectEntropy
from spear_hf.baselines.patches import ObjectDestruction
from spear_hf.errors import ConfigError
from tests.builders import batch_of, logits_of_probabilities

SURE, SHAPE, UNSURE = [0.94, 0.02, 0.02, 0.02], [0.02, 0.9, 0.04, 0.04], [0.4, 0.2, 0.2, 0.2]


def h(p: list[float]) -> float:
    return -sum(v * math.log(v) for v in p)


def test_plpd_is_what_the_answer_loses_with_the_object() -> None:
    batch = batch_of(logits_of_probabilities([SURE, SHAPE]))
    destroyed = logits_of_probabilities([[0.9, 0.05, 0.03, 0.02], [0.5, 0.1, 0.2, 0.2]])
    found = ObjectEntropy().plpd(batch.x, batch.logits, batch_of(batch.logits, forward=lambda _: destroyed))
    torch.testing.assert_close(found, torch.tensor([0.04, 0.8]))


def test_the_loss_is_of_sure_answers_that_need_the_object() -> None:
    seen: list[Tensor] = []

    def forward(x: Tensor) -> Tensor:
        seen.append(x)
        return logits_of_probabilities([SURE, [0.5, 0.1, 0.2, 0.2]])

    loss = ObjectEntropy()(batch_of(logits_of_probabilities([SURE, UNSURE, SHAPE]), forward=forward))
    assert loss is not None
    weight = math.exp(0.4 * math.log(4) - h(SHAPE)) + math.exp(0.8)
    assert loss.item() == pytest.approx(h(SHAPE) * weight, rel=1e-5)
    assert [len(x) for x in seen] == [2]  # what is unsure is not forwarded again


def test_nothing_sure_or_nothing_of_shape_is_no_step() -> None:
    assert ObjectEntropy()(batch_of(logits_of_probabilities([UNSURE]))) is None
    assert ObjectEntropy()(batch_of(logits_of_probabilities([SURE]))) is None


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
