from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spear_hf import Spear, SpearConfig, get_spear_model
from spear_hf.errors import ConfigError, InputError
from spear_hf.learning.tta_views import further_views, mean_answer
from tests.builders import steered


def learner(net: nn.Module, views: int, **changes: Any) -> Spear:
    return Spear(steered(net, SpearConfig(tta_views=views, tau=0.0, **changes)))


def test_views_are_mirrored_and_moved_by_a_32nd_of_the_side() -> None:
    x = torch.arange(64.0 * 64).view(1, 1, 64, 64)
    mirrored, right_down, left_up = further_views(x, 4)
    assert torch.equal(mirrored, x.flip(-1))
    assert torch.equal(right_down[..., 2:, 2:], x[..., :-2, :-2])
    assert torch.equal(right_down[..., 0, 2:], x[..., 0, :-2])  # the border is repeated
    assert torch.equal(left_up.flip(-1)[..., :-2, :-2], x[..., 2:, 2:])


@pytest.mark.parametrize(("count", "further"), [(1, 0), (2, 1), (3, 2), (4, 3)])
def test_as_many_views_as_were_asked_for(count: int, further: int) -> None:
    assert len(list(further_views(torch.rand(2, 3, 8, 8), count))) == further


def test_small_images_are_moved_by_a_pixel() -> None:
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(list(further_views(x, 3))[1][..., 1:, 1:], x[..., :-1, :-1])


def test_the_answer_is_the_mean_of_the_probabilities() -> None:
    logits = [torch.randn(4, 5) * 30 for _ in range(3)]
    expected = torch.stack([F.softmax(each, -1) for each in logits]).mean(0)
    torch.testing.assert_close(F.softmax(mean_answer(logits), -1), expected)
    assert mean_answer(logits[:1]) is logits[0]
    assert mean_answer([each.half() for each in logits]).dtype == torch.float16


def test_a_step_answers_over_the_views_and_learns_from_the_image(net: nn.Module, images: Tensor) -> None:
    one = learner(net, 1, alpha=0.0)
    alone = one.step(images)
    learned = one.model.snapshot()
    base = one.unload()
    mirrored = base(images.flip(-1))
    two = learner(base, 2, alpha=0.0)
    answer = two.step(images)
    torch.testing.assert_close(F.softmax(answer, -1), (F.softmax(alone, -1) + F.softmax(mirrored, -1)) / 2)
    torch.testing.assert_close(two.model.snapshot(), learned, rtol=0, atol=0)
    assert not answer.requires_grad


def test_views_are_answered_under_the_statistics_of_the_batch(net: nn.Module, images: Tensor) -> None:
    tta = learner(net, 4, alpha=0.5, memory_images=16, learning_rate=0.0)
    answer = tta.step(images)
    kept = tta.state_dict()["statistics"]
    one = learner(tta.unload(), 1, alpha=0.5, memory_images=16, learning_rate=0.0)
    alone = one.step(images)
    torch.testing.assert_close(one.state_dict()["statistics"], kept, rtol=0, atol=0)
    assert not torch.equal(alone, answer)


def test_views_go_with_a_part_of_the_batch_and_further_steps(net: nn.Module, images: Tensor) -> None:
    plain = learner(net, 1, learn_stride=2, steps=2)
    plain.step(images)
    learned = plain.model.snapshot()
    tta = learner(plain.unload(), 4, learn_stride=2, steps=2)
    tta.step(images)
    torch.testing.assert_close(tta.model.snapshot(), learned, rtol=0, atol=0)


def test_anything_but_images_has_one_view(images: Tensor) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    model = get_spear_model(net, SpearConfig(tta_views=2, boundaries="all"), inputs=torch.rand(2, 12))
    tta = Spear(model)
    with pytest.raises(InputError, match=r"tta_views=2 needs images \(B, C, H, W\)"):
        tta.step(torch.rand(8, 12))
    assert tta.num_steps == 0


@pytest.mark.parametrize("views", [0, 5, 2.0])
def test_other_numbers_of_views_are_refused(views: Any) -> None:
    with pytest.raises(ConfigError, match="tta_views is a whole number from 1 to 4"):
        SpearConfig(tta_views=views)
