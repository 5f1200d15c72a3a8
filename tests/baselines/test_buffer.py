"""Buffer: Tent's objective on buffer layers; the layers themselves are tested where places are."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spear_hf.baselines import METHODS, published
from spear_hf.baselines.buffers import buffer_layers
from spear_hf.errors import ConfigError


def test_buffer_is_tent_on_the_stem_with_its_own_rule(net: nn.Module, images: Tensor) -> None:
    buffer: Any = METHODS["buffer"](net, alpha=1e-4)
    buffer.step(images)
    moved = [
        float((p.detach() - s).abs().max()) for p, s in zip(buffer.parameters(), buffer.learned.start, strict=True)
    ]
    assert moved[0] == pytest.approx(1e-3, rel=1e-2)  # Adam moves alpha by the rate, ten times its value
    with pytest.raises(ConfigError, match="Buffer learns buffer layers, not 'rsp'; leave where= out"):
        METHODS["buffer"](net, where="rsp")


def test_any_method_may_host_buffer_layers(net: nn.Module, images: Tensor) -> None:
    place = partial(buffer_layers, boundaries=(0, 1), alpha=1e-2)
    roid: Any = METHODS["roid"](net, where=place, mean=(0.5,) * 3, std=(0.5,) * 3)
    roid.step(images)
    assert roid.last.adapted
    assert not any(p.requires_grad for p in net.parameters())


def test_the_convolutions_come_from_the_seed(net: nn.Module) -> None:
    def first(seed: int) -> Tensor:
        where = buffer_layers(net, seed=seed)
        where.undo()
        return where.learned.start[2]

    assert torch.equal(first(0), first(0))
    assert not torch.equal(first(0), first(1))


@pytest.mark.parametrize("benchmark", ["cifar10", "cifar100", "imagenet", "imagenet_vit"])
def test_what_was_published_can_be_passed_on(benchmark: str, net: nn.Module, images: Tensor) -> None:
    extra: dict[str, Any] = {
        name: {"mean": (0.5,) * 3, "std": (0.5,) * 3} for name in ("roid", "cmf", "cotta", "rotta")
    }
    extra["eata"] = {"source_images": images}
    for name in METHODS.keys() - {"source", "bn_adapt"}:
        METHODS[name](net, **published(name, benchmark), **extra.get(name, {})).unload()
    with pytest.raises(ConfigError, match="nothing published is known of 'source'"):
        published("source", benchmark)
