"""Which norms are learned, and the statistics they normalise by: of the batch, or a slow average of the stream."""

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from spear_hf.baselines import METHODS
from spear_hf.baselines.norms import RobustStatistics, kept_norms, use_batch_statistics
from spear_hf.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "by_structure", "by_name"),
    [
        ("test_resnet", (12, 3), (12, 3)),
        ("test_vit", (8, 5), (12, 1)),
        pytest.param("resnet50", (43, 10), (43, 10), marks=pytest.mark.slow),
        pytest.param("vit_base_patch16_224", (18, 7), (18, 7), marks=pytest.mark.slow),
        pytest.param("resnetv2_50d_gn", (41, 10), (50, 1), marks=pytest.mark.slow),
    ],
)
def test_the_last_stage_is_skipped_by_structure_or_as_published(
    name: str, by_structure: tuple[int, int], by_name: tuple[int, int]
) -> None:
    net = timm.create_model(name).eval()
    for skip, expected in (("last_stage", by_structure), ("published", by_name)):
        kept = len(kept_norms(net, skip=skip))
        assert (kept, len(kept_norms(net)) - kept) == expected


def test_named_modules_are_skipped_with_all_inside_them(net: nn.Module) -> None:
    assert len(kept_norms(net, skip=["layer3", "stem.1"])) == 2
    with pytest.raises(ConfigError, match=r"skip=\['layer9'\] is not allowed; give None"):
        METHODS["tent"](net, skip=["layer9"])
    with pytest.raises(ConfigError, match="skip='last' is not allowed"):
        METHODS["tent"](net, skip="last")


# --- statistics of the batch -----------------------------------------------------------------------------------------


def test_batch_statistics_are_those_of_torch_and_gradients_flow_through_them() -> None:
    norm, x = nn.BatchNorm2d(3), torch.randn(4, 3, 5, 5, requires_grad=True)
    norm.running_mean.fill_(7.0)  # pyright: ignore
    expected = norm.train()(x)
    (gradient,) = torch.autograd.grad(expected[0].sum(), x)
    norm = nn.BatchNorm2d(3).eval()
    use_batch_statistics(norm)
    torch.testing.assert_close(norm(x), expected)
    torch.testing.assert_close(torch.autograd.grad(norm(x)[0].sum(), x)[0], gradient)


def test_one_value_a_channel_takes_the_statistics_of_the_source() -> None:
    norm, x = nn.BatchNorm2d(3).eval(), torch.randn(1, 3, 1, 1)
    norm.running_mean.fill_(2.0)  # pyright: ignore
    expected = norm(x)
    use_batch_statistics(norm)
    assert torch.equal(norm(x), expected)
    assert not torch.equal(norm(x.expand(1, 3, 2, 2)), expected.expand(1, 3, 2, 2))


def test_buffers_are_there_again_after_every_forward_also_after_one_that_failed() -> None:
    norm = nn.BatchNorm2d(3).eval()
    before = dict(norm.state_dict())
    use_batch_statistics(norm)
    norm(torch.randn(2, 3, 4, 4))
    with pytest.raises(RuntimeError):
        norm(torch.randn(2, 5, 4, 4))
    assert norm.state_dict().keys() == before.keys()
    assert all(torch.equal(v, before[k]) for k, v in norm.state_dict().items())


def test_a_norm_with_an_activation_keeps_it() -> None:
    from timm.layers.norm_act import BatchNormAct2d

    norm = BatchNormAct2d(3).eval()
    use_batch_statistics(norm)
    assert bool((norm(torch.randn(4, 3, 5, 5)) >= 0).all())


# --- statistics of the stream ----------------------------------------------------------------------------------------


def norm() -> Any:
    layer: Any = nn.BatchNorm2d(2)
    layer.running_mean.copy_(torch.tensor([1.0, -1.0]))
    layer.running_var.copy_(torch.tensor([4.0, 0.25]))
    return layer.eval()


def test_a_batch_is_normalised_by_the_average_that_it_has_moved() -> None:
    layer, robust, x = norm(), RobustStatistics(0.05), torch.randn(8, 2, 3, 3) + 5
    robust.attach(layer)
    with robust.acting("student", learning=True):
        found = layer(x)
    variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    mean, variance = 0.95 * layer.running_mean + 0.05 * mean, 0.95 * layer.running_var + 0.05 * variance
    expected = (x - mean.view(1, 2, 1, 1)) / (variance.view(1, 2, 1, 1) + layer.eps).sqrt()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(robust.student, [mean, variance])
    assert robust.teacher is None
    with robust.acting("student"):
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(robust.student, [mean, variance])


def test_answers_are_the_sources_at_first_and_buffers_stay() -> None:
    layer, robust, x = norm(), RobustStatistics(), torch.randn(8, 2, 3, 3)
    expected, before = layer(x), {k: v.clone() for k, v in layer.state_dict().items()}
    robust.attach(layer)
    assert torch.equal(layer(x), expected)
    with robust.acting("teacher", learning=True):
        layer(x)
    assert not torch.equal(layer(x), expected)
    torch.testing.assert_close(dict(layer.state_dict()), before, rtol=0, atol=0)
    robust.reset()
    assert torch.equal(layer(x), expected)


def test_gradients_flow_through_the_batch_in_the_average() -> None:
    layer, robust = norm().double(), RobustStatistics(0.5)
    robust.attach(layer)

    def call(x: Tensor) -> Tensor:
        robust.reset()
        with robust.acting("student", learning=True):
            return layer(x)

    assert torch.autograd.gradcheck(call, torch.randn(3, 2, 2, 2, dtype=torch.double, requires_grad=True))
