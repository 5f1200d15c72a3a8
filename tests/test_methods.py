import pytest
import torch
from torch import Tensor, nn

from spear_hf.adapt import TTAMethod
from spear_hf.errors import ConfigError
from spear_hf.methods import METHODS


@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_the_contract(name: str, net: nn.Module, images: Tensor) -> None:
    before = {k: v.clone() for k, v in net.state_dict().items()}
    method = METHODS[name](net)
    assert isinstance(method, TTAMethod)
    first = [method.step(images) for _ in range(2)]
    method.reset()
    assert all(torch.equal(method.step(images), f) for f in first)
    assert method.unload() is net
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    torch.testing.assert_close(dict(net.state_dict()), before, rtol=0, atol=0)


def test_source_answers_as_the_model(net: nn.Module, images: Tensor) -> None:
    expected = net(images)
    assert torch.equal(METHODS["source"](net.train()).step(images), expected)


def test_bn_adapt_without_alpha_is_the_source(net: nn.Module, images: Tensor) -> None:
    expected = net(images)
    assert torch.equal(METHODS["bn_adapt"](net, alpha=0.0).step(images), expected)
    with pytest.raises(ConfigError, match="alpha=2"):
        METHODS["bn_adapt"](net, alpha=2)
