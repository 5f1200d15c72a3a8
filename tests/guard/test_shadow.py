import pytest
import torch
from torch import Tensor

from spear_hf.guard.shadow import ShadowEvaluation, evidence
from spear_hf.utils.distributed import ProcessGroup

shard_of = ProcessGroup().shard


def mean_logits(x: Tensor) -> Tensor:
    """(B, 3) from images of any resolution."""
    return 5 * x.mean((2, 3))


def test_regret_follows_the_mean_of_both_probabilities() -> None:
    source, method = torch.tensor([[0.8, 0.2], [0.6, 0.4]]).log(), torch.tensor([[0.7, 0.3], [0.1, 0.9]]).log()
    found = evidence(method, source, shard_of(2))
    assert (found.n, found.classes.tolist()) == (2, [[1, 1], [2, 0]])
    assert found.regret == pytest.approx((0.6 + 0.1) / 2 - (0.4 + 0.9) / 2)  # the method is the more certain one


def test_an_answer_that_is_not_finite_is_wrong_and_uncertain() -> None:
    found = evidence(torch.tensor([[torch.nan, 0.0]]), torch.tensor([[5.0, -5.0]]), shard_of(1))
    assert found.regret == 1.0
    assert found.entropy_rise == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("size", "compared"), [(1, 1), (16, 16), (32, 16), (256, 16)])
def test_of_a_large_batch_every_image_is_sixteen(size: int, compared: int) -> None:
    shadow, numbers = ShadowEvaluation(16, pool=10_000), torch.arange(float(size))[:, None]
    shadow.add(numbers, numbers, shard_of(size), every_image=True)
    assert shadow.waiting == compared


@pytest.mark.parametrize(("size", "stride"), [(1, 4), (2, 8), (4, 16), (40, 16)])
def test_shadow_images_are_every_sixteenth_or_one_of_four_smaller_batches(size: int, stride: int) -> None:
    shadow = ShadowEvaluation(16, pool=10_000)
    for numbers in torch.arange(480.0).split(size):
        shadow.add(numbers[:, None], numbers[:, None], shard_of(len(numbers)))
        shadow.seen += len(numbers)
    assert torch.cat(shadow.images)[:, 0].tolist() == [
        stride * block + block % stride for block in range(480 // stride)
    ]


def test_images_of_one_resolution_go_through_the_source_in_one_forward() -> None:
    shadow, shapes = ShadowEvaluation(1, pool=6), []
    for _ in range(3):
        shadow.add(torch.rand(2, 3, 8, 8), torch.rand(2, 3), shard_of(2))
    shadow.compare(lambda x: shapes.append(tuple(x.shape)) or mean_logits(x), shard_of(2))
    assert shapes == [(6, 3, 8, 8)]


def test_images_of_several_resolutions_are_compared_each_with_its_own_answer(images: Tensor) -> None:
    batches, answers = [images[:4], images[4:6, :, :24, :20], images[6:10]], torch.randn(10, 3)
    shadow = ShadowEvaluation(1, pool=10)
    for x, method in zip(batches, answers.split([4, 2, 4]), strict=True):
        shadow.add(x, method, shard_of(len(x)))
    resumed = ShadowEvaluation(1, pool=10)
    resumed.load_state_dict(shadow.state_dict())
    found = resumed.compare(mean_logits, shard_of(10))
    assert found is not None
    assert found.n == 10
    expected = evidence(answers, torch.cat([mean_logits(x) for x in batches]), shard_of(10))
    assert found.regret == pytest.approx(expected.regret, abs=1e-5)


def test_waiting_images_hold_no_graph(images: Tensor) -> None:
    shadow = ShadowEvaluation(1, pool=100)
    for x in images.requires_grad_().split(8):
        shadow.add(x, mean_logits(x), shard_of(8))
    assert shadow.answers is not None
    assert not any(kept.requires_grad for kept in [*shadow.images, shadow.answers])
