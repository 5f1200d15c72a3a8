"""The chain check: with real hooks in place and every z_d cut off, does z_d depend on z_{d-1} and on nothing else?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.boundaries.boundary import Boundary
from spear_hf.boundaries.graph import edge_of, topological
from spear_hf.boundaries.probe import ProbeInputs, forward, held_still
from spear_hf.boundaries.slots import pick, pick_input, replace, replace_input
from spear_hf.errors import BoundaryNotFiredError, NoBoundariesError


@dataclass
class Tap:
    """The hook of one boundary: hands on a fresh leaf instead of z_d, and remembers both."""

    boundary: Boundary
    entered: list[Tensor] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)

    def attach(self, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        """Register on `module` the way an RSP is registered: first in line."""
        if self.boundary.where == "in":
            return module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True)
        return module.register_forward_hook(self._after, prepend=True)

    def _swap(self, z: Tensor) -> Tensor:
        leaf = z.detach().clone().requires_grad_()
        self.entered.append(z)
        self.leaves.append(leaf)
        return leaf.clone()  # not the leaf itself: the next layer may work in place

    def _after(self, module: nn.Module, args: Any, output: Any) -> Any:
        return replace(output, self.boundary.output_slot, self._swap(pick(output, self.boundary.output_slot)))

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return replace_input(self.boundary, args, kwargs, self._swap(pick_input(self.boundary, args, kwargs)))


@dataclass(frozen=True)
class Cascade:
    """One forward that was cut at every boundary.

    Args:
        taps: one per boundary, by depth and part.
        logits: what the model answered.
        image: the leaf that the forward started from.
    """

    taps: list[Tap]
    logits: Tensor
    image: Tensor

    def depths(self) -> list[list[Tap]]:
        """The taps of each depth, shallow to deep."""
        depths = sorted({tap.boundary.depth for tap in self.taps})
        return [[tap for tap in self.taps if tap.boundary.depth == depth] for depth in depths]


def run_cascade(model: nn.Module, boundaries: Sequence[Boundary], inputs: ProbeInputs) -> Cascade:
    """Forward once with a tap at every boundary; raises BoundaryNotFiredError unless each fired exactly once."""
    ordered = sorted(boundaries, key=lambda boundary: (boundary.depth, boundary.part))
    taps = [Tap(boundary) for boundary in ordered]
    modules = dict(model.named_modules())
    with held_still(model), ExitStack() as stack:
        for tap in reversed(taps):  # hooks are prepended: the shallowest of one module comes to run first
            stack.callback(tap.attach(modules[tap.boundary.module]).remove)
        logits, image = forward(model, inputs)
    for tap in taps:
        if len(tap.leaves) != 1:
            raise BoundaryNotFiredError(
                f"boundary {tap.boundary.name!r} ({tap.boundary.module}) fired {len(tap.leaves)} times in one forward, "
                f"an RSP must act exactly once; choose a module that runs once"
            )
    return Cascade(taps, logits, image)


def check_chain(cascade: Cascade) -> None:
    """Raise NoBoundariesError unless f = h o g_L o ... o g_1 o s for the hooks of `cascade` (Eq. 2).

    What enters depth d must reach every leaf of depth d - 1 and no other, the logits every leaf of the last depth.
    """
    names = {id(cascade.image): "the image"}
    for tap in cascade.taps:
        names[id(tap.leaves[0])] = f"{tap.boundary.name} ({tap.boundary.module})"
    previous = [cascade.image]
    for group in [*cascade.depths(), None]:
        entered = [cascade.logits] if group is None else [tap.entered[0] for tap in group]
        what = "the logits" if group is None else f"{group[0].boundary.name} ({group[0].boundary.module})"
        reached = _leaves(entered)
        for leaf in previous:
            if id(leaf) not in reached:
                raise NoBoundariesError(f"{what} does not depend on {names[id(leaf)]}")
        extra = reached - {id(leaf) for leaf in previous}
        if extra:
            wanted = " and ".join(names[id(leaf)] for leaf in previous)
            bypass = ", ".join(sorted(names.get(leaf, "another tensor") for leaf in extra))
            raise NoBoundariesError(f"{what} depends on {bypass} by a way around {wanted}")
        if group is not None:
            previous = [tap.leaves[0] for tap in group]


def _leaves(tensors: Sequence[Tensor]) -> set[int]:
    """The ids of the leaves that `tensors` were computed from."""
    nodes = topological([edge_of(tensor) for tensor in tensors if tensor.requires_grad])
    return {id(node.variable) for node in nodes if hasattr(node, "variable")}  # pyright: ignore


def check_reach(cascade: Cascade) -> None:
    """Raise NoBoundariesError unless every boundary reaches the logits, directly or through deeper ones."""
    reached = _leaves([cascade.logits])
    for group in reversed(cascade.depths()):
        for tap in group:
            if id(tap.leaves[0]) not in reached:
                raise NoBoundariesError(f"the logits do not depend on {tap.boundary.name!r} ({tap.boundary.module})")
        reached |= _leaves([tap.entered[0] for tap in group])


def check_movement(cascade: Cascade) -> None:
    """Raise NoBoundariesError where shifting z_d moves nothing: its gradient is zero though deeper ones are not.

    One backward for all depths, its cotangent brought back to order 1 at each: in an untrained net gradients shrink
    until fp32 holds zero. Logits that no boundary moves (a head that starts at zero) say nothing, and pass.
    """
    if cascade.logits.is_meta:
        return
    weights = torch.linspace(-1.0, 1.0, cascade.logits.numel(), device=cascade.logits.device).cos()
    outputs: list[Tensor] = [(cascade.logits.float().reshape(-1) * weights).sum()]
    cotangents: list[Tensor | None] = [None]
    for group in reversed(cascade.depths()):
        leaves = [tap.leaves[0] for tap in group]
        grads = torch.autograd.grad(outputs, leaves, cotangents, retain_graph=True, allow_unused=True)
        moved = [grad is not None and bool(grad.count_nonzero()) for grad in grads]
        if not any(moved) and len(outputs) == 1:
            return
        if not all(moved):
            tap = group[moved.index(False)]
            raise NoBoundariesError(
                f"boundary {tap.boundary.name!r} ({tap.boundary.module}) does not move the logits: their gradient "
                f"there is zero; choose a module that the answer depends on"
            )
        for tap, grad in zip(group, grads, strict=True):
            if tap.entered[0].requires_grad:
                outputs.append(tap.entered[0])
                cotangents.append(grad / grad.abs().max())
