import copy
import json
import math
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import nn

from spear_hf.backbones.behaviour import Behaviour
from spear_hf.backbones.fingerprint import HEAD_PROBES, PROBES, Fingerprint, fingerprint
from tests.builders import TinyNet


class Wrapper(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.timm_model = model


def test_a_fingerprint_ignores_timms_wrapper_prefix(net: nn.Module) -> None:
    assert fingerprint(Wrapper(net)) == fingerprint(net)


def test_a_fingerprint_does_not_depend_on_the_memory_format(net: nn.Module) -> None:
    before = fingerprint(net)
    assert fingerprint(net.to(memory_format=torch.channels_last)) == before  # pyright: ignore[reportCallIssue]
    assert len(before.probe) == PROBES + 2 * HEAD_PROBES


def test_a_model_without_real_weights_has_no_probe() -> None:
    with torch.device("meta"):
        assert fingerprint(nn.Linear(3, 2)).probe == ()


def test_weights_below_float16s_smallest_are_the_same_base_in_float16() -> None:
    tiny, rounded = Fingerprint(2, "ab", (2.7e-8, 1.02e-6)), Fingerprint(2, "ab", (0.0, 1.07e-6))
    assert tiny.difference(rounded) is None
    assert tiny.difference(Fingerprint(2, "ab", (2.7e-8, 1.2e-6))) is not None


def test_half_precision_rounds_logits_by_their_size() -> None:
    behaviour = Behaviour((3, 8, 8), (25.1, 24.9))
    assert behaviour.difference((25.0, 25.0), "half") is None
    assert behaviour.difference((25.0, 25.0), "single") is not None
    assert behaviour.difference((25.1, 23.9), "half") is not None


def renamed(net: nn.Module) -> nn.Module:
    """The same layers in another order of names, as another version of a library would have them."""
    return nn.ModuleDict({f"block_{9 - i}": module for i, module in enumerate(net.children())})


def test_other_names_of_the_same_weights_are_the_same_base(net: nn.Module) -> None:
    saved = fingerprint(net)
    assert saved.difference(fingerprint(renamed(net))) is not None
    assert saved.difference_from(renamed(net)) is None
    assert saved.difference_from(renamed(net).to(torch.bfloat16)) is None


def test_other_weights_under_other_names_are_another_base(net: nn.Module) -> None:
    saved = fingerprint(net)
    torch.manual_seed(7)
    assert "other weights" in (saved.difference_from(renamed(TinyNet())) or "")
    with torch.no_grad():
        net.fc.weight.mul_(1.1)  # pyright: ignore[reportAttributeAccessIssue]
    assert "other weights" in (saved.difference_from(renamed(net)) or "")


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-30, 1e299, 0.02])
def test_no_value_is_in_every_network(value: float) -> None:
    torch.manual_seed(0)
    net = TinyNet()
    mine = fingerprint(net)
    for structure in (mine.structure, "another"):
        forged = Fingerprint(mine.num_parameters, structure, (value,) * len(mine.probe))
        assert forged.difference_from(net) is not None


@pytest.mark.parametrize("probe", [["inf"], [float("inf")], [float("nan")], [True], ["0.1"], [10**400], "0.1", None])
def test_a_probe_that_is_no_list_of_finite_numbers_is_refused(probe: object) -> None:
    with pytest.raises(ValueError, match="fingerprint"):
        Fingerprint.from_dict({"num_parameters": 2, "structure": "ab", "probe": probe})


def test_a_behaviour_is_told_in_the_file_and_read_back(net: nn.Module) -> None:
    saved = fingerprint(net, behaviour=True)
    assert saved.behaviour is not None
    assert Fingerprint.from_dict(json.loads(json.dumps(saved.to_dict()))) == saved
    assert saved.behaviour_difference(net) is None
    assert saved.behaviour_difference(copy.deepcopy(net).bfloat16()) is None


class Pool(nn.Module):
    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z.mean((2, 3))


def gelu(net: nn.Module) -> None:
    net.act = nn.GELU()  # pyright: ignore


def epsilon(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 0.1


def stride(net: nn.Module) -> None:
    next(m for m in net.modules() if isinstance(m, nn.Conv2d)).stride = (2, 2)


@pytest.mark.parametrize("change", [gelu, epsilon, stride])
def test_equal_weights_that_behave_otherwise_are_another_base(change: Callable[[nn.Module], None]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        OrderedDict(conv=nn.Conv2d(3, 8, 3), bn=nn.BatchNorm2d(8), act=nn.ReLU(), pool=Pool(), fc=nn.Linear(8, 4))
    )
    saved = fingerprint(net.eval(), behaviour=True)
    change(net)
    assert "another behaviour with these weights (logit" in (saved.behaviour_difference(net) or "")


def test_a_base_that_takes_more_than_an_image_has_no_behaviour() -> None:
    assert fingerprint(nn.Bilinear(3, 3, 4), behaviour=True).behaviour is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logits", ["inf"] * 4),
        ("logits", [math.nan, 1.0]),
        ("logits", [10**400, 1]),
        ("logits", []),
        ("image", [3, 0, 8]),
        ("image", "abc"),
        ("precision", "none"),
        ("precision", math.inf),
    ],
)
def test_no_value_switches_the_behaviour_off(net: nn.Module, name: str, value: object) -> None:
    data = fingerprint(net, behaviour=True).to_dict()
    data["behaviour"][name] = value
    with pytest.raises(ValueError, match="behaviour"):
        Fingerprint.from_dict(data)


def test_no_file_chooses_how_large_an_image_the_base_is_given(net: nn.Module) -> None:
    data = fingerprint(net, behaviour=True).to_dict()
    data["behaviour"]["image"] = [3, 10**5, 10**5]
    assert "does not take an image" in (Fingerprint.from_dict(data).behaviour_difference(net) or "")
