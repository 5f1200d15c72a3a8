"""Stages told by structure alone: runs of blocks of one resolution."""

from __future__ import annotations

from spear_hf.boundaries.blocks import Block
from spear_hf.boundaries.frontier import Point
from spear_hf.boundaries.proposal import Proposal, ends_of
from spear_hf.boundaries.trace import Trace


def from_structure(trace: Trace, blocks: list[Block], num_groups: int | None) -> Proposal | None:
    """A stage is a run of blocks of one resolution; a net of one run is cut into `num_groups`."""
    if not blocks:
        return None
    ends = ends_of(blocks, lambda block: block.resolution, num_groups)
    return Proposal(
        "structural",
        (Point(blocks[0].entry),),
        [(Point(block.exit),) for block in ends],
        paths_of(blocks),
        gap=_gap(trace, blocks),
    )


def paths_of(blocks: list[Block]) -> frozenset[str]:
    """Where the hooks of these blocks sit."""
    return frozenset(path for block in blocks for path in (block.path, block.entry_path))


def _gap(trace: Trace, blocks: list[Block]) -> str:
    """Which blocks run beside the line, for instance in a second stream; "" where none does."""
    kinds = {type(block.module) for block in blocks if any(block.module.children())}
    inside = tuple(block.path + "." for block in blocks)
    stray = [
        call.path
        for call in trace.calls
        if type(call.module) in kinds
        and not call.path.startswith(inside)
        and all(call.path != block.path for block in blocks)
        and call.began > trace.calls_of[blocks[0].path][0].began
        and any(trace.flow.is_used(value.edge) for value in call.outputs)
    ]
    last = blocks[-1]
    if stray:
        around = trace.bypass_of(last.exit.edge)
        return f"{len(stray)} blocks from {stray[0]!r} on have a bypass{around}; the line ends with {last.path!r}"
    ended = trace.calls_of[last.path][0].ended
    layers = [call for call in trace.calls if call.module._parameters and not any(call.module.children())]
    after = sum(call.began > ended for call in layers)
    return f"{after} of {len(layers)} layers come after {last.path!r}" if 2 * after > len(layers) else ""
