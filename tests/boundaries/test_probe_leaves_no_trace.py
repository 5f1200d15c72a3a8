"""Looking for boundaries changes nothing in the model that is looked at."""

import contextlib
import copy

import pytest
import timm
import torch
from torch import nn

from spear_hf.boundaries import Boundary, find_boundaries, verify, verify_boundaries
from spear_hf.boundaries.probe_forward import held_still


class Caching(nn.Module):
    """Keeps what a forward computed, counts its calls and writes a buffer in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))
        self.cache: dict[str, torch.Tensor] = {}
        self.last: torch.Tensor | None = None

    def forward(self, x):
        self.steps += 1
        self.cache["x"] = self.last = x
        return x


@pytest.fixture(autouse=True, params=[0, verify._SMALL], ids=["replica", "itself"])
def traced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is traced: a replica of the model, as of a large one, or the model itself."""
    monkeypatch.setattr(verify, "_SMALL", request.param)


@pytest.fixture
def model():
    return nn.Sequential(timm.create_model("test_resnet"), Caching()).train()


def test_state_flags_and_caches_are_as_before(model):
    next(model.parameters()).requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    flags = [(p.requires_grad, p.grad) for p in model.parameters()], [m.training for m in model.modules()]
    find_boundaries(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert flags == ([(p.requires_grad, p.grad) for p in model.parameters()], [m.training for m in model.modules()])
    assert (model[1].cache, model[1].last) == ({}, None)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_random_state_is_as_before(model):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    find_boundaries(model)
    assert torch.equal(torch.rand(1), expected)


def test_probe_works_under_no_grad_and_inference_mode():
    model = timm.create_model("test_resnet")
    expected = find_boundaries(model)
    with torch.no_grad():
        assert find_boundaries(model) == expected
    with torch.inference_mode():
        assert find_boundaries(model) == expected


def test_flags_come_back_after_an_error(model):
    with contextlib.suppress(ZeroDivisionError), held_still(model):
        assert not model.training
        raise ZeroDivisionError
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_verifying_leaves_no_trace_either(model):
    verify_boundaries(model, [Boundary(0, "stem", "0.layer1.0")])
    assert model[1].last is None
    assert int(model[1].steps) == 0
