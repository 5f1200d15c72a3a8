"""The chain check: with real hooks in place and every z_d cut off, does z_d depend on z_{d-1} and on nothing else?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from spear_hf.boundaries.boundary import Boundary
from spear_hf.boundaries.graph import edge_of, topological
from spear_hf.boundaries.probe import ProbeInputs, forward, held_still
from spear_hf.boundaries.slots import register_at
from spear_hf.errors import BoundaryNotFiredError, NoBoundariesError


@dataclass
class Tap:
    """What one boundary carried in a forward that was cut there.

    Args:
        boundary: where the cut is.
        entered: z_d as the stage before computed it, one tensor for each time the module ran.
        leaves: the tensors without history that the stage after was given in its place.
    """

    boundary: Boundary
    entered: list[Tensor] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)

    def cut(self, z: Tensor) -> Tensor:
        """A copy of z whose graph starts at a new leaf."""
        leaf = z.detach().clone().requires_grad_()
        self.entered.append(z)
        self.leaves.append(leaf)
        return leaf.clone()  # not the leaf itself: the next layer may work in place, which a leaf does not allow


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
    with held_still(model), ExitStack() as stack:
        for tap in reversed(taps):  # each hook is prepended, so the shallowest boundary of a module runs first
            stack.callback(register_at(model, tap.boundary, tap.cut).remove)
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
