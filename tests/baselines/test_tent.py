"""Tent and Buffer by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf.baselines import METHODS
from spear_hf.errors import ConfigError


def test_tent_is_one_adam_step_down_the_mean_entropy(net: nn.Module, images: Tensor) -> None:
    tent = METHODS["tent"](net, learning_rate=0.01)
    p = tent.adapted.forward(images).softmax(1)
    loss = -(p * p.log()).sum(1).mean()
    gradients = torch.autograd.grad(loss, list(tent.parameters()))
    expected = [w.detach() - 0.01 * g / (g.abs() + 1e-8) for w, g in zip(tent.parameters(), gradients, strict=True)]
    tent.step(images)
    assert tent.last.loss == pytest.approx(float(loss.detach()))
    torch.testing.assert_close([w.detach() for w in tent.parameters()], expected, rtol=1e-4, atol=1e-6)


def test_buffer_is_tent_on_the_stem_with_its_own_rule(net: nn.Module, images: Tensor) -> None:
    buffer: Any = METHODS["buffer"](net, alpha=1e-4)
    buffer.step(images)
    moved = [
        float((p.detach() - s).abs().max()) for p, s in zip(buffer.parameters(), buffer.learned.start, strict=True)
    ]
    assert moved[0] == pytest.approx(1e-3, rel=1e-2)  # Adam moves alpha by the rate, ten times its value
    with pytest.raises(ConfigError, match="Buffer learns buffer layers, not 'rsp'; leave where= out"):
        METHODS["buffer"](net, where="rsp")
