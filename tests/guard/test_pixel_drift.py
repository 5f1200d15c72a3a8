import torch

from spear_hf.guard.pixel_drift import PixelDriftDetector, replace_non_finite
from spear_hf.utils.distributed import ProcessGroup

SHARD = ProcessGroup().shard(8)


def test_pixels_too_large_to_square_do_not_stay_in_the_averages() -> None:
    detector, x = PixelDriftDetector(6.0), torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    for _ in range(10):
        assert detector.jump(x, SHARD) == 0.0
    assert detector.jump(x * 1e30, SHARD) == 0.0
    assert detector.jump(x + 5, SHARD) > 6


def test_the_averages_hold_no_graph() -> None:
    detector = PixelDriftDetector(6.0)
    for _ in range(3):
        detector.jump(torch.randn(8, 3, 4, 4, requires_grad=True), SHARD)
    assert [kept is not None and kept.requires_grad for kept in (detector.mean, detector.variance)] == [False, False]


def test_a_batch_whose_sum_overflows_is_not_taken_for_a_bad_one() -> None:
    x = torch.full((2, 3, 4, 4), 3e38)
    same, bad = replace_non_finite(x)
    assert same is x
    assert bad == []
