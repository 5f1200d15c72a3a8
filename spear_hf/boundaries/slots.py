"""Reach a tensor inside what a module takes or returns, and put another in its place without touching the original."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from spear_hf.boundaries.boundary import Boundary
from spear_hf.errors import UnsupportedOutputError

Slot = tuple[int | str, ...]


def pick(value: Any, slot: Slot) -> Tensor:
    """The tensor at `slot` of a nested tuple, list, mapping or ModelOutput; () means the value itself."""
    for step in slot:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError) as error:
            raise UnsupportedOutputError(
                f"no entry {step!r} in {type(value).__name__} (slot {slot}); pass a Boundary with the right output_slot"
            ) from error
    if not isinstance(value, Tensor):
        raise UnsupportedOutputError(
            f"slot {slot} holds a {type(value).__name__}, an RSP needs a tensor; "
            f"pass a Boundary with the right output_slot"
        )
    return value


def replace(value: Any, slot: Slot, tensor: Tensor) -> Any:
    """A copy of `value` with `tensor` at `slot`; containers on the way are rebuilt, everything else is shared."""
    if not slot:
        return tensor
    step, rest = slot[0], slot[1:]
    inner = replace(value[step], rest, tensor)
    if isinstance(value, Mapping):  # dict and transformers' ModelOutput
        return type(value)(**{**value, step: inner})
    assert isinstance(step, int)
    items = [inner if i == step % len(value) else item for i, item in enumerate(value)]
    if hasattr(value, "_fields"):  # NamedTuple
        return type(value)(*items)
    return type(value)(items)


def pick_input(boundary: Boundary, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """z_d of a where="in" boundary, among the arguments of its module."""
    slot = boundary.output_slot or (0,)
    return pick(kwargs if isinstance(slot[0], str) else args, slot)


def replace_input(
    boundary: Boundary, args: tuple[Any, ...], kwargs: dict[str, Any], tensor: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a where="in" boundary's module with z_d replaced."""
    slot = boundary.output_slot or (0,)
    if isinstance(slot[0], str):
        return args, {**kwargs, slot[0]: replace(kwargs[slot[0]], slot[1:], tensor)}
    return tuple(replace(args, slot, tensor)), kwargs
