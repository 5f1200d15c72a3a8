"""Whether images look to a model as its training images did."""

import pytest
import torch
from torch import Tensor, nn

from spear_hf import load_processor
from spear_hf.evaluation.calibration.clean_images import CleanImages
from spear_hf.evaluation.calibration.preprocessing_fit import (
    USUAL,
    PreprocessingFit,
    preprocessing_fits,
    preprocessing_warning,
)
from tests.builders import TwoStages


@pytest.fixture(scope="module")
def colours() -> Tensor:
    """(64, 16, 16, 3) uint8, each of one colour and a little noise."""
    generator = torch.Generator().manual_seed(0)
    colour = torch.randint(20, 235, (64, 1, 1, 3), generator=generator)
    return (colour + torch.randint(-20, 20, (64, 16, 16, 3), generator=generator)).to(torch.uint8)


def under(name: str, pixels: Tensor) -> CleanImages:
    mean, std = USUAL[name]
    processor = load_processor(None, mean=mean, std=std, size=16)
    return CleanImages.read([processor(pixels)], None, processor=processor)


@pytest.fixture(scope="module")
def net(colours: Tensor) -> nn.Module:
    """A network whose batch norms were trained on these colours under a mean and std of a half."""
    torch.manual_seed(0)
    net = TwoStages()
    for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.momentum = None  # the mean of all
    with torch.no_grad():
        net(under("0.5", colours).inputs(colours))
    return net.eval()


def test_the_right_mean_and_std_pass(net: nn.Module, colours: Tensor) -> None:
    fits = preprocessing_fits(net, under("0.5", colours))
    assert fits[0].name == "given"
    assert min(fits, key=lambda fit: fit.shift or 0.0) is fits[0]
    assert preprocessing_warning(fits) is None


@pytest.mark.parametrize("name", ["ImageNet", "pixels in [0, 1]"])
def test_the_wrong_ones_are_told_of_with_those_that_fit(net: nn.Module, colours: Tensor, name: str) -> None:
    told = preprocessing_warning(preprocessing_fits(net, under(name, colours)))
    assert told is not None
    assert told.startswith("preprocessing looks wrong: ")
    assert told.endswith("nothing was changed; if the model was trained so, pass mean=0.5 and std=0.5")


def test_no_hook_is_left_and_no_buffer_is_written(net: nn.Module, colours: Tensor) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    preprocessing_fits(net, under("0.5", colours))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(module._forward_pre_hooks for module in net.modules())


def fit(name: str, shift: float | None, told: float = 1.0) -> PreprocessingFit:
    return PreprocessingFit(name, (0.5,), (0.5,), shift, told)


def test_a_small_shift_is_no_reason_to_warn() -> None:
    assert preprocessing_warning([fit("given", 0.02), fit("other", 0.001)]) is None
    assert preprocessing_warning([fit("given", 0.09), fit("other", 0.08)]) is None


def test_a_shift_that_nothing_usual_explains_is_told_of() -> None:
    told = preprocessing_warning([fit("given", 0.9), fit("other", 0.8)])
    assert told is not None
    assert told.startswith("images look unlike those of the training")


def test_without_batch_norms_the_answers_tell() -> None:
    assert preprocessing_warning([fit("given", None, 1.98), fit("other", None, 2.0)]) is None
    told = preprocessing_warning([fit("given", None, 1.7), fit("other", None, 2.0)])
    assert told is not None
    assert "an answer tells 1.70 nats about its image" in told
