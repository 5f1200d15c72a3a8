"""The lean forward: the same bits, the same gradients, and less kept for them; over every backbone family."""

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from spear_hf import SpearConfig, SpearModel, get_spear_model
from spear_hf.adapt import logits_of
from spear_hf.lean import LeanForward
from tests.test_families import FAMILIES


def learn(model: SpearModel, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The logits, and the gradients of the RSPs for their squares."""
    logits = logits_of(model(x))
    return logits.detach(), torch.autograd.grad(logits.square().mean(), list(model.adapter_parameters()))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_bit_equal_and_gradients_agree(
    name: str, alpha: float, dtype: torch.dtype, tolerance: float
) -> None:
    """To 1e-10 in double precision; in single, rounding differs from processor to processor."""
    torch.manual_seed(0)
    build, side = FAMILIES[name]
    model = get_spear_model(build().eval().to(dtype), SpearConfig(alpha=alpha, boundaries="all"))
    x = torch.randn(2, 3, side, side, dtype=dtype)
    logits, gradients = learn(model, x)
    with LeanForward():
        lean_logits, lean_gradients = learn(model, x)
    assert torch.equal(lean_logits, logits)
    flat, lean_flat = (torch.cat([g.flatten() for g in several]) for several in (gradients, lean_gradients))
    assert float((lean_flat - flat).norm()) <= tolerance * float(flat.norm())


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """What a forward keeps for the gradient, parameters left out and each storage counted once."""
    kept: dict[int, int] = {}
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = logits_of(model(x))
    assert logits.requires_grad
    return sum(kept.values())


def test_a_stem_rsp_of_a_resnet_keeps_a_fraction() -> None:
    torch.manual_seed(0)
    base = timm.create_model("resnet18", num_classes=10).eval()
    model, x = get_spear_model(base, SpearConfig(alpha=0.0, boundaries=(0,))), torch.randn(4, 3, 64, 64)
    plain = saved_bytes(model, x)
    with LeanForward():
        assert saved_bytes(model, x) < 0.3 * plain


def test_the_users_modules_are_not_touched(net: nn.Module, images: Tensor) -> None:
    model = get_spear_model(net)
    before = {name: (type(m), m.forward.__func__) for name, m in net.named_modules()}
    with LeanForward():
        model(images)
    assert {name: (type(m), m.forward.__func__) for name, m in net.named_modules()} == before
