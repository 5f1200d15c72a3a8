import copy

import pytest
import torch

from spear_hf.steering.rsp import RSP


@pytest.mark.parametrize(("shape", "axis"), [((2, 5, 3, 3), 1), ((2, 3, 3, 5), -1), ((2, 7, 5), -1)])
def test_each_channel_has_its_own_scale_and_shift(shape: tuple[int, ...], axis: int) -> None:
    rsp, z = RSP(5, axis), torch.randn(shape)
    rsp.gamma.data = torch.arange(5.0)
    rsp.beta.data = torch.arange(5.0) * 10
    expected = torch.stack([c * part + 10 * c for c, part in enumerate(z.unbind(axis))], axis)
    torch.testing.assert_close(rsp(z), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_identity_is_exact_in_every_dtype(dtype: torch.dtype) -> None:
    z = torch.randn(4, 6, 5, 5).to(dtype)
    out = RSP(6, 1)(z)
    assert out.dtype == dtype
    assert torch.equal(out, z)


def test_parameters_stay_fp32_when_the_model_is_cast() -> None:
    rsp = RSP(3, 1)
    rsp.gamma.data.fill_(1.003)
    gamma = rsp.gamma
    rsp.half().to(torch.bfloat16)
    assert rsp.gamma is gamma
    assert rsp.gamma.dtype == torch.float32
    assert float(rsp.gamma[0].detach()) == pytest.approx(1.003, abs=1e-6)


def test_memory_format_is_kept() -> None:
    z = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    assert RSP(4, 1)(z).is_contiguous(memory_format=torch.channels_last)


def test_deviation_is_the_squared_distance_from_the_identity() -> None:
    rsp = RSP(2, 1)
    rsp.gamma.data = torch.tensor([1.5, 1.0])
    rsp.beta.data = torch.tensor([0.0, 2.0])
    assert float(rsp.deviation().detach()) == pytest.approx(0.25 + 4.0)


def test_reset_keeps_the_parameter_objects() -> None:
    rsp = RSP(2, 1)
    gamma = rsp.gamma
    rsp.gamma.data.fill_(3.0)
    rsp.reset_parameters()
    assert rsp.gamma is gamma
    assert torch.equal(rsp.gamma, torch.ones(2))


def test_a_copy_has_its_own_parameters() -> None:
    rsp = RSP(2, 1)
    twin = copy.deepcopy(rsp)
    twin.gamma.data.fill_(9.0)
    assert torch.equal(rsp.gamma, torch.ones(2))
