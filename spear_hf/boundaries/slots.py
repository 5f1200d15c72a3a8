"""Reach z_d inside what a module takes or returns: read it, replace it in a copy, or call a function on it.

`output_slot` of a Boundary says where z_d sits. Containers are copied, never written into: a module may keep what it
was given or what it returned.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from spear_hf.boundaries.boundary import Boundary
from spear_hf.errors import UnsupportedOutputError

Slot = tuple[int | str, ...]


def pick(value: Any, slot: Slot) -> Tensor:
    """The tensor at `slot` of a nested tuple, list, mapping or ModelOutput; () means the value itself.

    Raises:
        UnsupportedOutputError: there is no such entry, or the entry is not a tensor.

    >>> import torch
    >>> from spear_hf.boundaries.slots import pick
    >>> pick({"last_hidden_state": (torch.ones(2), None)}, ("last_hidden_state", 0))
    tensor([1., 1.])
    """
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
    """A copy of `value` with `tensor` at `slot`; containers on the way are copied, everything else is shared.

    >>> import torch
    >>> from spear_hf.boundaries.slots import replace
    >>> replace((torch.ones(2), "state"), (0,), torch.zeros(2))
    (tensor([0., 0.]), 'state')
    """
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
    """z_d of a where="in" boundary, among the arguments of its module.

    >>> import torch
    >>> from spear_hf.boundaries import Boundary
    >>> from spear_hf.boundaries.slots import pick_input
    >>> pick_input(Boundary(0, "stem", "blocks.0", "in"), (torch.ones(2),), {})
    tensor([1., 1.])
    """
    slot = boundary.output_slot or (0,)
    return pick(kwargs if isinstance(slot[0], str) else args, slot)


def replace_input(
    boundary: Boundary, args: tuple[Any, ...], kwargs: dict[str, Any], tensor: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a where="in" boundary's module with z_d replaced.

    >>> import torch
    >>> from spear_hf.boundaries import Boundary
    >>> from spear_hf.boundaries.slots import replace_input
    >>> replace_input(Boundary(0, "stem", "blocks.0", "in"), (torch.ones(2),), {}, torch.zeros(2))
    ((tensor([0., 0.]),), {})
    """
    slot = boundary.output_slot or (0,)
    if isinstance(slot[0], str):
        return args, {**kwargs, slot[0]: replace(kwargs[slot[0]], slot[1:], tensor)}
    return tuple(replace(args, slot, tensor)), kwargs


class _Hook:
    """Calls `function` on the tensor of one boundary.

    A plain object whose methods are the hooks: `copy.deepcopy(model)` copies a bound method together with its object.
    A closure would not be copied, so the hook of the copy would go on acting on the original, and it cannot be pickled.
    """

    def __init__(self, boundary: Boundary, function: Callable[[Tensor], Tensor | None]) -> None:
        self.boundary, self.function = boundary, function

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        z = self.function(pick(output, self.boundary.output_slot))
        return None if z is None else replace(output, self.boundary.output_slot, z)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        z = self.function(pick_input(self.boundary, args, kwargs))
        return None if z is None else replace_input(self.boundary, args, kwargs, z)


def register_at(
    model: nn.Module, boundary: Boundary, function: Callable[[Tensor], Tensor | None], *, prepend: bool = True
) -> RemovableHandle:
    """The handle of a new hook on `model` that puts `function(z_d)` in the place of z_d in every forward.

    Args:
        model: the network; the hook stays until `handle.remove()`.
        boundary: where z_d is.
        function: takes z_d and returns what follows it, of the same shape; None leaves z_d as it is. Pass a method of
            a plain object rather than a closure if the model may be copied or pickled.
        prepend: run before the hooks that the module has already (an RSP must precede hooks that record z_d).

    Raises:
        UnsupportedOutputError: in the forward, where no tensor is at the boundary's slot.

    >>> import torch
    >>> from spear_hf.boundaries import Boundary
    >>> from spear_hf.boundaries.slots import register_at
    >>> model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU())
    >>> handle = register_at(model, Boundary(0, "stem", "0"), lambda z: 2 * z)
    >>> model(torch.ones(2))
    tensor([2., 2.])
    >>> handle.remove()
    """
    module = model.get_submodule(boundary.module)
    hook = _Hook(boundary, function)
    if boundary.where == "in":
        return module.register_forward_pre_hook(hook.before, prepend=prepend, with_kwargs=True)
    return module.register_forward_hook(hook.after, prepend=prepend)
