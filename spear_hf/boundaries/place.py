"""From a tensor to the hooks that can reach it: the block that emits it, or a pre-hook on the block that takes it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice, product

from spear_hf.boundaries.axis import channel_axis
from spear_hf.boundaries.boundary import Boundary
from spear_hf.boundaries.frontier import Point
from spear_hf.boundaries.proposal import Proposal
from spear_hf.boundaries.session import ProbeSession
from spear_hf.boundaries.stem import Stem, stem_points
from spear_hf.boundaries.trace import Call, Trace
from spear_hf.errors import BoundaryError, NoBoundariesError

_MAX_TRIES = 32
"""How many placements of one depth are tried, each with a forward of the replica."""


def places_of(trace: Trace, point: Point, depth: int, part: int, blocks: Collection[str]) -> Iterator[Boundary]:
    """Boundaries whose hook may steer the tensor for all its uses that belong to z_d, the most robust first.

    The block that emits it comes first (`blocks` are the paths of the trunk), then the smaller modules, then those
    around them. Under gradient checkpointing timm iterates over a stage and never calls it: a hook on the container
    would be skipped in silence. Modules that hand on what they were given (an Identity in a shortcut) are not asked:
    the tensor may have left for elsewhere before it reached them.
    """
    name = "stem" if depth == 0 else f"stage{depth}"
    edge, shape = point.value.edge, point.value.shape
    axis = channel_axis(trace, edge, shape)

    def can_be_hooked(call: Call) -> bool:
        return bool(call.path) and len(trace.calls_of[call.path]) == 1

    emitters = [(c, seen) for c, seen in trace.emitted_by.get(edge, []) if can_be_hooked(c) and point.since is None]
    takers = [(c, seen) for c, seen, is_output in trace.seen_by.get(edge, []) if not is_output]
    if point.since is not None:
        takers = [pair for pair in takers if pair[0].began >= point.since]
        outermost = max(takers, key=lambda pair: pair[0].ended, default=None)
        if outermost is None or any(call.began < outermost[0].began for call, _ in takers):
            return  # several modules need the tensor later: no one hook reaches all these uses and spares the earlier
    for call, seen in sorted(emitters, key=lambda pair: pair[0].path not in blocks):
        yield Boundary(depth, name, call.path, "out", shape[axis], axis, seen.slot, part)
    for call, seen in sorted(takers, key=lambda pair: pair[0].path not in blocks):
        if can_be_hooked(call):
            slot = () if seen.slot == (0,) else seen.slot
            yield Boundary(depth, name, call.path, "in", shape[axis], axis, slot, part)


def place(session: ProbeSession, proposal: Proposal, stem: Stem) -> list[Boundary]:
    """The proposal's tensors as boundaries whose hooks the model itself has answered for."""
    depths = _depths(session, proposal, stem)
    boundaries = [places[0] for parts in depths for places in parts if places]
    try:
        if len(boundaries) < sum(map(len, depths)):
            raise NoBoundariesError("some z_d is emitted or taken by no module that runs once")
        session.verify(boundaries)
    except BoundaryError:
        boundaries = [boundary for parts in depths for boundary in _first_that_hold(session, parts)]
        session.verify(boundaries)
    return boundaries


def place_what_holds(session: ProbeSession, proposal: Proposal, stem: Stem) -> list[Boundary]:
    """`place` for the depths that have a cut; the others are left out, and the depths keep their numbers."""
    boundaries: list[Boundary] = []
    for parts in _depths(session, proposal, stem):
        try:
            found = [*boundaries, *_first_that_hold(session, parts)]
            session.verify(found)
            boundaries = found
        except BoundaryError:
            continue
    return boundaries


def _depths(session: ProbeSession, proposal: Proposal, stem: Stem) -> list[list[list[Boundary]]]:
    """For each depth, for each of its tensors, the places to try."""
    cuts = [stem_points(session.trace, proposal, stem), *proposal.ends]
    return [
        [list(places_of(session.trace, point, depth, part, proposal.blocks)) for part, point in enumerate(points)]
        for depth, points in enumerate(cuts)
    ]


def _first_that_hold(session: ProbeSession, parts: Sequence[Sequence[Boundary]]) -> Sequence[Boundary]:
    """One place for each part, such that their hooks together catch all that flows from image to logits."""
    problem: BoundaryError = NoBoundariesError("one of its tensors is emitted or taken by no module that runs once")
    for number, choice in enumerate(islice(product(*parts), _MAX_TRIES)):
        try:
            session.check(choice)
        except BoundaryError as error:
            problem = error if number == 0 else problem
        else:
            return choice
    raise problem
