"""Placing hooks: a tensor is reached by a hook on a module that returns it, or a pre-hook on one that takes it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice, product
from typing import Literal, get_args

from torch.nn.modules.conv import _ConvNd

from spear_hf.boundaries.boundary import Boundary
from spear_hf.boundaries.proposal import Point, Proposal
from spear_hf.boundaries.trace import Call, Trace, channel_axis
from spear_hf.boundaries.verify import ProbeSession
from spear_hf.errors import BoundaryError, NoBoundariesError

Stem = Literal["auto", "patch_embed", "feature_info"]
"""Which tensor is z_0; `find_boundaries` explains the three choices."""

_MAX_TRIES = 32
"""How many placements of one depth are tried; each takes a forward of the replica."""


def places_of(trace: Trace, point: Point, depth: int, part: int, blocks: Collection[str]) -> Iterator[Boundary]:
    """Boundaries whose hook may replace the tensor for all its uses that belong to z_d, the most robust first.

    First come the trunk's blocks (`blocks` are their paths) that return the tensor, then other modules that do, from
    the innermost outwards, then modules that take it. Containers come last because timm, under gradient checkpointing,
    iterates over a stage and never calls it: a hook on the container would silently be skipped. A module that returns
    what it was given (an Identity in a shortcut) is left out: the tensor may have other uses before it gets there.

    >>> import torch
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> from spear_hf.boundaries.place import places_of
    >>> from spear_hf.boundaries.proposal import Point
    >>> from spear_hf.boundaries.trace import Trace
    >>> trace = Trace(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU()), ProbeInputs((torch.ones(1, 3, 2, 2),)))
    >>> [(b.module, b.where) for b in places_of(trace, Point(trace.exit_of("0")), 0, 0, ())]
    [('0', 'out'), ('1', 'in')]
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
            return  # several modules take the tensor later: no one hook reaches all later uses and none of the earlier
    for call, seen in sorted(emitters, key=lambda pair: pair[0].path not in blocks):
        yield Boundary(depth, name, call.path, "out", shape[axis], axis, seen.slot, part)
    for call, seen in sorted(takers, key=lambda pair: pair[0].path not in blocks):
        if can_be_hooked(call):
            slot = () if seen.slot == (0,) else seen.slot
            yield Boundary(depth, name, call.path, "in", shape[axis], axis, slot, part)


def place(session: ProbeSession, proposal: Proposal, stem: Stem) -> list[Boundary]:
    """The proposal's boundaries, verified on the model itself.

    Raises:
        BoundaryError: some depth has no placement that holds.

    >>> import torch
    >>> from torch import nn
    >>> from spear_hf.boundaries.blocks import trunk
    >>> from spear_hf.boundaries.place import place
    >>> from spear_hf.boundaries.proposal import from_structure
    >>> from spear_hf.boundaries.verify import ProbeSession
    >>> session = ProbeSession(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)), torch.ones(2, 3, 8, 8))
    >>> [b.name for b in place(session, from_structure(session.trace, trunk(session.trace), None), "auto")]
    ['stem', 'stage1']
    """
    # The first place of each tensor mostly holds: one forward checks them all, and only a failure tries the others.
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
    """`place`, leaving out each depth that has no placement that holds; the others keep their numbers.

    >>> import torch
    >>> from torch import nn
    >>> from spear_hf.boundaries.blocks import trunk
    >>> from spear_hf.boundaries.place import place_what_holds
    >>> from spear_hf.boundaries.proposal import from_structure
    >>> from spear_hf.boundaries.verify import ProbeSession
    >>> session = ProbeSession(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)), torch.ones(2, 3, 8, 8))
    >>> [b.name for b in place_what_holds(session, from_structure(session.trace, trunk(session.trace), None), "auto")]
    ['stem', 'stage1']
    """
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
    """The places to try, for each tensor of each depth."""
    cuts = [_stem_points(session.trace, proposal, stem), *proposal.ends]
    return [
        [list(places_of(session.trace, point, depth, part, proposal.blocks)) for part, point in enumerate(points)]
        for depth, points in enumerate(cuts)
    ]


def _first_that_hold(session: ProbeSession, parts: Sequence[Sequence[Boundary]]) -> Sequence[Boundary]:
    """One place for each tensor of a depth, such that hooks there together reach all that flows to the logits."""
    problem: BoundaryError = NoBoundariesError("one of its tensors is emitted or taken by no module that runs once")
    for number, choice in enumerate(islice(product(*parts), _MAX_TRIES)):
        try:
            session.check(choice)
        except BoundaryError as error:
            problem = error if number == 0 else problem
        else:
            return choice
    raise problem


def _stem_points(trace: Trace, proposal: Proposal, stem: Stem) -> tuple[Point, ...]:
    """The tensor that is z_0 under `stem` (several for a joint stem); `find_boundaries` explains the three choices."""
    if stem == "auto":
        return proposal.entry
    point = proposal.stem_feature if stem == "feature_info" else _patch_embedding(trace, proposal)
    if point is None:
        what = "stem entry in feature_info" if stem == "feature_info" else "patch embedding that carries everything"
        raise NoBoundariesError(f"stem={stem!r}, but the model has no {what}; stem is one of {get_args(Stem)}")
    return (point,)


def _patch_embedding(trace: Trace, proposal: Proposal) -> Point | None:
    """The output of the module called patch_embed around the first convolution, else of that convolution.

    Only a module inside the stem counts, whose output is computed no later than the proposal's z_0.
    """
    first = next((call.path for call in trace.calls if isinstance(call.module, _ConvNd)), None)
    if first is None:
        return None
    parts = first.split(".")
    around = [".".join(parts[: i + 1]) for i in range(len(parts))]
    named = [path for path in around if "patch_embed" in path.rpartition(".")[2].lower()]
    exits = [trace.exit_of(path) for path in [*named, first]]
    limit = max(trace.flow.rank_of(point.value.edge) for point in proposal.entry)
    return next((Point(v) for v in exits if v is not None and trace.flow.rank_of(v.edge) <= limit), None)
