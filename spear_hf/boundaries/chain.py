"""Checks with real hooks, in a forward cut at every z_d: what does each z_d depend on, and does it move the logits?

At each boundary a hook passes on a new leaf in place of z_d. The graph of z_d then ends at the leaves of the boundaries
before it, so that its leaves tell what z_d depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from spear_hf.boundaries.boundary import Boundary
from spear_hf.boundaries.graph import edge_of, topological
from spear_hf.boundaries.inputs import ProbeInputs
from spear_hf.boundaries.probe_forward import forward, held_still
from spear_hf.boundaries.slots import register_at
from spear_hf.errors import BoundaryNotFiredError, NoBoundariesError


@dataclass
class BoundaryCut:
    """What one boundary carried in a forward that was cut there.

    Args:
        boundary: where the cut is.
        entered: z_d as the stage before computed it, one tensor for each time that the module ran.
        leaves: the leaves that the stage after was given in place of these.

    >>> import torch
    >>> from spear_hf.boundaries import Boundary
    >>> from spear_hf.boundaries.chain import BoundaryCut
    >>> cut = BoundaryCut(Boundary(0, "stem", "maxpool"))
    >>> _ = cut.pass_on(torch.ones(2))
    >>> cut.leaves
    [tensor([1., 1.], requires_grad=True)]
    """

    boundary: Boundary
    entered: list[Tensor] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)

    def pass_on(self, z: Tensor) -> Tensor:
        """A copy of z whose graph starts at a new leaf."""
        leaf = z.detach().clone().requires_grad_()
        self.entered.append(z)
        self.leaves.append(leaf)
        return leaf.clone()  # not the leaf itself: the next layer may work in place, which a leaf does not allow


@dataclass(frozen=True)
class CutForward:
    """One forward that was cut at every boundary.

    Args:
        cuts: one for each boundary, by depth and part.
        logits: what the model answered.
        image: the leaf that the forward started from.

    >>> import torch
    >>> from spear_hf.boundaries.chain import CutForward
    >>> CutForward([], torch.ones(1, 2), torch.ones(1, 3)).depths()
    []
    """

    cuts: list[BoundaryCut]
    logits: Tensor
    image: Tensor

    def depths(self) -> list[list[BoundaryCut]]:
        """The cuts of each depth, shallow to deep."""
        depths = sorted({cut.boundary.depth for cut in self.cuts})
        return [[cut for cut in self.cuts if cut.boundary.depth == depth] for depth in depths]


def cut_forward(model: nn.Module, boundaries: Sequence[Boundary], inputs: ProbeInputs) -> CutForward:
    """One forward of `model`, cut at every boundary; the model is left as it was.

    Raises:
        BoundaryNotFiredError: the module of a boundary did not run exactly once.

    >>> import torch
    >>> from spear_hf.boundaries import Boundary
    >>> from spear_hf.boundaries.chain import cut_forward
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    >>> forward = cut_forward(model, [Boundary(0, "stem", "0")], ProbeInputs((torch.ones(1, 3, 2, 2),)))
    >>> forward.cuts[0].entered[0].shape
    torch.Size([1, 12])
    """
    ordered = sorted(boundaries, key=lambda boundary: (boundary.depth, boundary.part))
    cuts = [BoundaryCut(boundary) for boundary in ordered]
    with held_still(model), ExitStack() as stack:
        for cut in reversed(cuts):  # each hook is prepended, so the shallowest boundary of a module runs first
            stack.callback(register_at(model, cut.boundary, cut.pass_on).remove)
        logits, image = forward(model, inputs)
    for cut in cuts:
        if len(cut.leaves) != 1:
            raise BoundaryNotFiredError(
                f"boundary {cut.boundary.name!r} ({cut.boundary.module}) fired {len(cut.leaves)} times in one forward, "
                f"an RSP must act exactly once; choose a module that runs once"
            )
    return CutForward(cuts, logits, image)


def check_chain(result: CutForward) -> None:
    """Raise NoBoundariesError unless the boundaries form a chain f = h o g_L o ... o g_1 o s (Eq. 2).

    In a chain the tensors that enter depth d depend on every leaf of depth d - 1 and on no other leaf, and so do the
    logits on the last depth.

    >>> import torch
    >>> from spear_hf.boundaries import Boundary
    >>> from spear_hf.boundaries.chain import check_chain, cut_forward
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    >>> check_chain(cut_forward(model, [Boundary(0, "stem", "0")], ProbeInputs((torch.ones(1, 3, 2, 2),))))
    """
    names = {id(result.image): "the image"}
    for cut in result.cuts:
        names[id(cut.leaves[0])] = f"{cut.boundary.name} ({cut.boundary.module})"
    previous = [result.image]
    for group in [*result.depths(), None]:
        entered = [result.logits] if group is None else [cut.entered[0] for cut in group]
        what = "the logits" if group is None else f"{group[0].boundary.name} ({group[0].boundary.module})"
        reached = _leaves(entered)
        for leaf in previous:
            if id(leaf) not in reached:
                raise NoBoundariesError(f"{what} does not depend on {names[id(leaf)]}")
        extra = reached - {id(leaf) for leaf in previous}
        if extra:
            wanted = " and ".join(names[id(leaf)] for leaf in previous)
            bypass = ", ".join(sorted({names.get(leaf, "another tensor") for leaf in extra}))
            raise NoBoundariesError(f"{what} depends on {bypass} by a way around {wanted}")
        if group is not None:
            previous = [cut.leaves[0] for cut in group]


def _leaves(tensors: Sequence[Tensor]) -> set[int]:
    """The ids of the leaves that `tensors` depend on."""
    nodes = topological([edge_of(tensor) for tensor in tensors if tensor.requires_grad])
    return {id(node.variable) for node in nodes if hasattr(node, "variable")}  # pyright: ignore


def check_reach(result: CutForward) -> None:
    """Raise NoBoundariesError unless the logits depend on every boundary, directly or through deeper ones.

    >>> import torch
    >>> from spear_hf.boundaries import Boundary
    >>> from spear_hf.boundaries.chain import check_reach, cut_forward
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    >>> check_reach(cut_forward(model, [Boundary(0, "stem", "0")], ProbeInputs((torch.ones(1, 3, 2, 2),))))
    """
    reached = _leaves([result.logits])
    for group in reversed(result.depths()):
        for cut in group:
            if id(cut.leaves[0]) not in reached:
                hint = ""
                if len(group) > 1:
                    hint = (
                        f" beside the {len(group) - 1} other boundaries of depth {cut.boundary.depth}; boundaries of "
                        "one depth lie side by side: give those that follow each other depths of their own"
                    )
                raise NoBoundariesError(
                    f"the logits do not depend on {cut.boundary.name!r} ({cut.boundary.module}){hint}"
                )
        reached |= _leaves([cut.entered[0] for cut in group])


def check_movement(result: CutForward) -> None:
    """Raise NoBoundariesError if the gradient of the logits is zero at a boundary though it is not at deeper ones.

    A graph may lead through a boundary that has no effect: through weights of zero, say. The gradient shows that. One
    backward goes through all depths; at each depth the gradient is divided by its largest value, because in an
    untrained network gradients shrink from layer to layer until fp32 rounds them to zero. Logits that no boundary moves
    (a head initialised to zero) decide nothing and pass, and so does a forward on the meta device.

    >>> import torch
    >>> from spear_hf.boundaries import Boundary
    >>> from spear_hf.boundaries.chain import check_movement, cut_forward
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    >>> check_movement(cut_forward(model, [Boundary(0, "stem", "0")], ProbeInputs((torch.ones(1, 3, 2, 2),))))
    """
    if result.logits.is_meta:
        return
    # Unequal weights, because a plain sum has gradient zero for outputs that add up to a constant (a softmax).
    weights = torch.linspace(-1.0, 1.0, result.logits.numel(), device=result.logits.device).cos()
    outputs: list[Tensor] = [(result.logits.float().reshape(-1) * weights).sum()]
    gradients: list[Tensor | None] = [None]
    for group in reversed(result.depths()):
        leaves = [cut.leaves[0] for cut in group]
        found = torch.autograd.grad(outputs, leaves, gradients, retain_graph=True, allow_unused=True)
        moved = [gradient is not None and bool(gradient.count_nonzero()) for gradient in found]
        if not any(moved) and len(outputs) == 1:
            return
        if not all(moved):
            cut = group[moved.index(False)]
            raise NoBoundariesError(
                f"boundary {cut.boundary.name!r} ({cut.boundary.module}) does not move the logits: their gradient "
                f"there is zero; choose a module that the answer depends on"
            )
        for cut, gradient in zip(group, found, strict=True):
            if cut.entered[0].requires_grad:
                outputs.append(cut.entered[0])
                gradients.append(gradient / gradient.abs().max())
