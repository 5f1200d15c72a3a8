"""A tensor is reached inside what a module takes or returns, and replaced in a copy."""

import copy
import pickle
from collections import namedtuple

import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from spear_hf.boundaries import Boundary
from spear_hf.boundaries.slots import pick, pick_input, register_at, replace, replace_input
from spear_hf.errors import UnsupportedOutputError

ONES, ZEROS = torch.ones(2), torch.zeros(2)
Point = namedtuple("Point", "x y")


class Twice:
    """Doubles what it is given, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, z: Tensor) -> Tensor:
        self.calls += 1
        return 2 * z


class Pair(nn.Module):
    def forward(self, x: Tensor, *, scale: Tensor) -> tuple[Tensor, Tensor]:
        return x * scale, x


@pytest.mark.parametrize(
    ("value", "slot"),
    [
        (ONES, ()),
        ((ONES, "state"), (0,)),
        (["state", [ONES]], (1, 0)),
        ({"a": {"b": ONES}}, ("a", "b")),
        (Point(ONES, 3), (0,)),
        (BaseModelOutput(last_hidden_state=ONES), ("last_hidden_state",)),
    ],
)
def test_a_replaced_tensor_is_in_a_copy_of_the_same_kind(value: object, slot: tuple[int | str, ...]) -> None:
    found = replace(value, slot, ZEROS)
    assert type(found) is type(value)
    assert pick(found, slot) is ZEROS
    assert pick(value, slot) is ONES


@pytest.mark.parametrize(
    ("value", "slot"), [((ONES,), (1,)), ({"a": ONES}, ("b",)), (ONES, ("a",)), (("state",), (0,))]
)
def test_a_slot_without_a_tensor_is_an_error(value: object, slot: tuple[int | str, ...]) -> None:
    with pytest.raises(UnsupportedOutputError, match="pass a Boundary with the right output_slot"):
        pick(value, slot)


@pytest.mark.parametrize("slot", [(), (0,), ("x",)])
def test_an_argument_is_found_by_position_or_keyword(slot: tuple[int | str, ...]) -> None:
    boundary = Boundary(0, "stem", "block", "in", output_slot=slot)
    args, kwargs = ((), {"x": ONES}) if slot == ("x",) else ((ONES,), {})
    assert pick_input(boundary, args, kwargs) is ONES
    assert pick_input(boundary, *replace_input(boundary, args, kwargs, ZEROS)) is ZEROS


@pytest.mark.parametrize(
    ("where", "slot", "expected"),
    [("in", (), (2, 2)), ("in", ("scale",), (2, 1)), ("out", (0,), (2, 1)), ("out", (1,), (1, 2))],
)
def test_a_function_acts_at_a_boundary_until_its_handle_is_removed(where, slot, expected) -> None:
    model, twice = nn.ModuleDict({"pair": Pair()}), Twice()
    handle = register_at(model, Boundary(0, "stem", "pair", where, output_slot=slot), twice)
    x = torch.ones(1)
    assert tuple(float(y) for y in model["pair"](x, scale=x)) == expected
    handle.remove()
    assert tuple(float(y) for y in model["pair"](x, scale=x)) == (1, 1)
    assert twice.calls == 1


@pytest.mark.parametrize("where", ["in", "out"])
def test_a_function_that_returns_none_leaves_the_tensor(where) -> None:
    seen: list[Tensor] = []
    model = nn.Sequential(nn.Identity())
    register_at(model, Boundary(0, "stem", "0", where), seen.append)
    assert model(ONES) is ONES
    assert seen == [ONES]


@pytest.mark.parametrize(("prepend", "expected"), [(True, 3.0), (False, 4.0)])
def test_a_prepended_function_acts_before_the_hooks_that_are_there(prepend: bool, expected: float) -> None:
    model = nn.Sequential(nn.Identity())
    model[0].register_forward_hook(lambda module, args, output: output + 1)
    register_at(model, Boundary(0, "stem", "0"), Twice(), prepend=prepend)
    assert float(model(torch.ones(()))) == expected


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copied_model_has_a_hook_of_its_own(duplicate) -> None:
    model, twice = nn.Sequential(nn.Identity()), Twice()
    register_at(model, Boundary(0, "stem", "0"), twice)
    assert torch.equal(duplicate(model)(ONES), 2 * ONES)
    assert twice.calls == 0
