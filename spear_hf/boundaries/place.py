"""From a tensor to the hooks that can reach it: the block that emits it, or a pre-hook on the block that takes it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from spear_hf.boundaries.axis import channel_axis
from spear_hf.boundaries.boundary import Boundary
from spear_hf.boundaries.trace import Call, Trace, Value


def places_of(trace: Trace, value: Value, depth: int, blocks: Collection[str]) -> Iterator[Boundary]:
    """Boundaries whose hook may steer the tensor `value` for all that use it, the most robust first.

    The block that emits it comes first (`blocks` are the paths of the trunk), then the smaller modules, then those
    around them. Under gradient checkpointing timm iterates over a stage and never calls it: a hook on the container
    would be skipped in silence. Modules that hand on what they were given (an Identity in a shortcut) are not asked:
    the tensor may have left for elsewhere before it reached them.
    """
    name = "stem" if depth == 0 else f"stage{depth}"
    axis = channel_axis(trace, value.edge, value.shape)
    channels = value.shape[axis]
    emitters = [(c, seen) for c, seen in trace.emitted_by.get(value.edge, []) if c.path and _runs_once(trace, c)]
    for call, seen in sorted(emitters, key=lambda pair: pair[0].path not in blocks):
        yield Boundary(depth, name, call.path, "out", channels, axis, seen.slot)
    takers = [(call, seen) for call, seen, is_output in trace.seen_by.get(value.edge, []) if not is_output]
    for call, seen in sorted(takers, key=lambda pair: pair[0].path not in blocks):
        if call.path and _runs_once(trace, call):
            slot = () if seen.slot == (0,) else seen.slot
            yield Boundary(depth, name, call.path, "in", channels, axis, slot)


def _runs_once(trace: Trace, call: Call) -> bool:
    return len(trace.calls_of[call.path]) == 1
