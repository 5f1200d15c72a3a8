"""The lean forward: the same bits, the same gradients, and less kept for them; over every backbone family."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from spear_hf import SpearConfig, SpearModel, get_spear_model
from spear_hf.lean import LeanForward
from spear_hf.lean.flow import tokens_with_gradient
from spear_hf.utils.batch import logits_of
from tests.builders import steered
from tests.families import ALL_FAMILIES, steered_family


def learn(model: SpearModel, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The logits, and the gradients of the RSPs for their squares."""
    logits = logits_of(model(x))
    return logits.detach(), torch.autograd.grad(logits.square().mean(), list(model.adapter_parameters()))


@pytest.fixture(scope="module", params=ALL_FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[SpearModel, Tensor]:
    """A SpearModel with an adapter that mixes statistics and one that does not, and two images."""
    return steered_family(request.param)[:2]


@pytest.mark.parametrize(
    ("adapter", "dtype", "tolerance"),
    [
        ("mixing", torch.float32, 1e-4),
        ("plain", torch.float64, 1e-10),
        pytest.param("plain", torch.float32, 1e-4, marks=pytest.mark.slow),
        pytest.param("mixing", torch.float64, 1e-10, marks=pytest.mark.slow),
    ],
)
def test_logits_are_bit_equal_and_gradients_agree(
    family: tuple[SpearModel, Tensor], adapter: str, dtype: torch.dtype, tolerance: float
) -> None:
    """To 1e-10 in double precision; in single, rounding differs from processor to processor."""
    model, x = family[0].to(dtype), family[1].to(dtype)
    model.set_adapter(adapter)
    logits, gradients = learn(model, x)
    with LeanForward():
        lean_logits, lean_gradients = learn(model, x)
    assert torch.equal(lean_logits, logits)
    flat, lean_flat = (torch.cat([g.flatten() for g in several]) for several in (gradients, lean_gradients))
    assert float((lean_flat - flat).norm()) <= tolerance * float(flat.norm())


def class_token_model() -> SpearModel:
    """A vision transformer of four blocks with an RSP at its stem."""
    base = timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=64, depth=4).eval()
    return get_spear_model(base, SpearConfig(boundaries=(0,)))


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
    base = timm.create_model("resnet18", num_classes=10, stem_width=16, channels=(16, 32, 64, 128)).eval()
    model, x = get_spear_model(base, SpearConfig(alpha=0.0, boundaries=(0,))), torch.randn(4, 3, 64, 64)
    plain = saved_bytes(model, x)
    with LeanForward():
        assert saved_bytes(model, x) < 0.3 * plain


def test_a_stem_rsp_of_a_vision_transformer_keeps_three_quarters() -> None:
    torch.manual_seed(0)
    model, x = class_token_model(), torch.randn(4, 3, 64, 64)
    plain = saved_bytes(model, x)
    with LeanForward():
        assert saved_bytes(model, x) < 0.8 * plain


def test_channels_last_stays_channels_last() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1))
    layers = layers.to(memory_format=torch.channels_last).eval().requires_grad_(False)
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
    y = layers(x)
    with LeanForward():
        lean = layers(x)
    (dx,), (lean_dx,) = torch.autograd.grad(y.sum(), x), torch.autograd.grad(lean.sum(), x)
    assert torch.equal(lean, y)
    torch.testing.assert_close(lean_dx, dx)
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in (lean, lean_dx))


@pytest.mark.parametrize("function", [F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu])
@pytest.mark.parametrize("count", [1, 2, 7, 2**12, 2**12 + 1, 2**13 + 3])
def test_a_smooth_activation_keeps_20_bits_of_its_derivative(
    function: Callable[[Tensor], Tensor], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part, several, and a last one of an odd count."""
    monkeypatch.setattr("spear_hf.lean.activation._PART_ON_CPU", 2**12)
    torch.manual_seed(0)
    x = (4 * torch.randn(count)).requires_grad_()
    dy = torch.randn(count)
    y = function(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    with LeanForward():
        lean = function(x)
    assert torch.equal(lean, y)
    assert sum(t.nbytes for t in lean.grad_fn.saved_tensors) <= 2.5 * count + 1
    (lean_dx,) = torch.autograd.grad(lean, x, dy)
    assert bool(((lean_dx - dx).abs() <= 1e-6 * dy.abs() + 1e-7).all())


def test_a_smooth_activation_of_what_is_not_contiguous_is_left_alone() -> None:
    x = torch.randn(3, 5, requires_grad=True)
    with LeanForward():
        y = F.gelu(x.mT)
    assert torch.equal(y, F.gelu(x.mT))
    y.sum().backward()


def attended(qkv: Tensor, **options: Any) -> Tensor:
    q, k, v = qkv.reshape(*qkv.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v, **options)


@pytest.mark.parametrize("images", [1, 5])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_keeps_no_output(scale: float | None, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spear_hf.lean.attention.part_size", lambda q, on_cpu: images * 4 * 17 * 17)
    torch.manual_seed(0)
    qkv = torch.randn(5, 17, 96, dtype=torch.float64, requires_grad=True)
    y = attended(qkv, scale=scale)
    with LeanForward():
        lean = attended(qkv, scale=scale)
    assert torch.equal(lean, y)
    assert len(lean.grad_fn.saved_tensors) == 3
    dy = torch.randn_like(y)
    torch.testing.assert_close(torch.autograd.grad(lean, qkv, dy), torch.autograd.grad(y, qkv, dy))


@pytest.mark.parametrize("heads", [1, 4])
def test_the_gradients_of_q_k_and_v_are_written_where_they_are_wanted(heads: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 17, 32, dtype=torch.float64, requires_grad=True)
    layer = nn.Linear(32, 96, dtype=torch.float64).requires_grad_(False)

    def forward() -> Tensor:
        q, k, v = layer(x).reshape(5, 17, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v)

    y = forward()
    with LeanForward(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("spear_hf.lean.attention.part_size", lambda q, on_cpu: heads * 17 * 17)
        lean = forward()
        patch.setattr(torch, "stack", lambda *_: pytest.fail("copied together"))
        (found,) = torch.autograd.grad(lean.square().sum(), x)
    assert torch.equal(lean, y)
    torch.testing.assert_close(found, torch.autograd.grad(y.square().sum(), x)[0])


@pytest.mark.parametrize("dim", [0, 2])
def test_unbound_slices_that_are_used_otherwise_keep_their_gradients(dim: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 2, 3, 5, 4, dtype=torch.float64, requires_grad=True)

    def use(unbind: Callable[..., Any]) -> Tensor:
        q, k, v = unbind(x, dim)
        return (q * k).sum() + (q.square() * v).sum() + k.sum()

    with LeanForward():
        lean, alone = use(torch.unbind), torch.unbind(x, dim)[1].sum()
    torch.testing.assert_close(torch.autograd.grad(lean, x), torch.autograd.grad(use(torch.unbind), x))
    torch.testing.assert_close(torch.autograd.grad(alone, x), torch.autograd.grad(x.unbind(dim)[1].sum(), x))


def test_attention_between_sequences_of_different_lengths() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, dtype=torch.float64, requires_grad=True) for n in (5, 7, 7))
    y = F.scaled_dot_product_attention(q, k, v)
    with LeanForward():
        lean = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(torch.autograd.grad(lean.sum(), (q, k, v)), torch.autograd.grad(y.sum(), (q, k, v)))


@pytest.mark.parametrize("options", [{"is_causal": True}, {"attn_mask": torch.zeros(17, 17, dtype=torch.float64)}])
def test_masked_attention_is_left_alone(options: dict[str, Any]) -> None:
    qkv = torch.randn(2, 17, 96, dtype=torch.float64, requires_grad=True)
    with LeanForward():
        y = attended(qkv, **options)
    assert "DotProduct" in y.grad_fn.name()
    torch.testing.assert_close(y, attended(qkv, **options))


@pytest.mark.parametrize("shape", [(3, 9, 6), (2, 3, 9, 6)])
@pytest.mark.parametrize("tokens", [[], [0], [0, 4], list(range(9)), [8]])
def test_a_linear_layer_is_the_same_whichever_tokens_have_a_gradient(shape: tuple[int, ...], tokens: list[int]) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 5).double().requires_grad_(False)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    dy = torch.zeros(*shape[:-1], 5, dtype=torch.float64)
    dy[..., tokens, :] = torch.randn(*shape[:-2], len(tokens), 5, dtype=torch.float64)
    y = layer(x)
    with LeanForward():
        lean = layer(x)
    assert type(lean.grad_fn).__name__ == "_LinearBackward"
    assert torch.equal(lean, y)
    torch.testing.assert_close(torch.autograd.grad(lean, x, dy), torch.autograd.grad(y, x, dy))


@pytest.mark.parametrize("tokens", [[], [0], [2, 5]])
def test_attention_that_few_tokens_look_through(tokens: list[int]) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(5, 17, 96, dtype=torch.float64, requires_grad=True)
    y = attended(qkv)
    with LeanForward():
        lean = attended(qkv)
    dy = torch.zeros_like(y)
    dy[:, :, tokens] = torch.randn(5, 4, len(tokens), 8, dtype=torch.float64)
    torch.testing.assert_close(torch.autograd.grad(lean, qkv, dy), torch.autograd.grad(y, qkv, dy))


def test_a_network_that_reads_its_class_token_multiplies_one_token_above_the_last_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    found = []

    def looked(dy: Tensor) -> Tensor | None:
        found.append(tokens_with_gradient(dy))
        return found[-1]

    for place in ("affine", "attention"):
        monkeypatch.setattr(f"spear_hf.lean.{place}.tokens_with_gradient", looked)
    model = class_token_model()
    with LeanForward():
        learn(model, torch.randn(2, 3, 64, 64))
    assert [t.tolist() for t in found if t is not None] == [[0]] * 4  # MLP: two, projection, attention
    assert len(found) == 4 * 5


@pytest.mark.parametrize("kind", ["two dimensions", "learned weight", "autocast"])
def test_other_linear_layers_are_left_alone(kind: str) -> None:
    layer = nn.Linear(6, 5).requires_grad_(kind == "learned weight")
    x = torch.randn((4, 6) if kind == "two dimensions" else (2, 4, 6), requires_grad=True)
    with LeanForward(), torch.autocast("cpu", enabled=kind == "autocast"):
        y = layer(x)
    assert type(y.grad_fn).__name__ != "_LinearBackward"


def test_the_users_modules_are_not_touched(net: nn.Module, images: Tensor) -> None:
    model = steered(net)
    before = {name: (type(m), m.forward.__func__) for name, m in net.named_modules()}
    with LeanForward():
        model(images)
    assert {name: (type(m), m.forward.__func__) for name, m in net.named_modules()} == before
