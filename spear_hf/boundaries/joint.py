"""Stages of networks whose streams run side by side: a z_d of several tensors (HRNet, CrossViT, CoaT, NASNet)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from spear_hf.boundaries.blocks import ROWS, has_stem_name, resolution
from spear_hf.boundaries.frontier import Frontiers, Point
from spear_hf.boundaries.place import places_of
from spear_hf.boundaries.proposal import Proposal, ends_of
from spear_hf.boundaries.trace import Call, Trace

_MAX_PARTS = 8
"""More tensors than this are the inside of a block, not the boundary of a stage."""


@dataclass(frozen=True)
class _Step:
    """One module of the row that makes up the body, and the joint cut when it has returned."""

    call: Call
    points: tuple[Point, ...]
    resolution: int
    """Of the newest tensor: the older ones are what an earlier stage keeps for later."""


def from_frontiers(trace: Trace, num_groups: int | None) -> Proposal | None:
    """A stage is a run of steps whose newest tensors have one resolution; one run of all steps is grouped."""
    row = _row(trace)
    paths = frozenset(call.path for call in row)
    frontiers = Frontiers(trace, lambda point: next(places_of(trace, point, 0, 0, paths), None) is not None)
    steps = _body(trace, [step for call in row if (step := _step(trace, frontiers, call)) is not None])
    entry = frontiers.at(steps[0].call.began) if steps else None
    if not entry or _is_image(trace, entry):
        return None
    ends = ends_of(steps, lambda step: step.resolution, num_groups)
    several = any(len(points) > 1 for points in (entry, *(step.points for step in ends)))
    return Proposal("joint" if several else "structural", entry, [step.points for step in ends], paths)


def _row(trace: Trace) -> list[Call]:
    """The modules that make up the body, in the order they run: the children of the module that holds most layers."""
    holder, size = "", sum(1 for call in trace.calls if call.module._parameters)
    while True:
        members = _members(trace, holder)
        inside = {c.path: sum(1 for i in trace.calls if i.module._parameters and _is_inside(i, c)) for c in members}
        largest = max(inside, key=lambda path: inside[path], default=None)
        if largest is None or 5 * inside[largest] < 4 * size:
            return members
        holder = largest


def _members(trace: Trace, holder: str) -> list[Call]:
    """The children of `holder` that have children of their own and run once; rows are looked into."""
    found: list[Call] = []
    for name, module in trace.modules[holder].named_children():
        path = f"{holder}.{name}" if holder else name
        calls = trace.calls_of.get(path, [])
        if type(module) in ROWS or _is_row(module):
            found += _members(trace, path)
        elif len(calls) == 1 and any(module.children()):
            found.append(calls[0])
    return sorted(found, key=lambda call: call.ended)


def _is_row(module: nn.Module) -> bool:
    """Whether a Sequential of another name (one that passes lists on) holds blocks of one class."""
    kinds = {type(child) for child in module.children()}
    return isinstance(module, nn.Sequential) and len(kinds) == 1 and all(any(c.children()) for c in module.children())


def _is_inside(call: Call, outer: Call) -> bool:
    return outer.began < call.began and call.ended < outer.ended


def _step(trace: Trace, frontiers: Frontiers, call: Call) -> _Step | None:
    """The cut after `call`, where a hook reaches each of its tensors and the newest is what `call` returned."""
    points = frontiers.at(call.ended)
    if not points or len(points) > _MAX_PARTS or points[-1].value.edge not in {value.edge for value in call.outputs}:
        return None
    return _Step(call, points, resolution(trace, points[-1].value))


def _body(trace: Trace, steps: list[_Step]) -> list[_Step]:
    """Without what stands alone before and after the body: stems, patch embeddings, attention heads."""
    kinds: list[type[nn.Module]] = [type(step.call.module) for step in steps]

    def is_outside(step: _Step) -> bool:
        takes_image = any(value.edge == trace.flow.image for value in step.call.inputs)
        return takes_image or has_stem_name(step.call.path) or kinds.count(type(step.call.module)) == 1

    while steps and is_outside(steps[0]):
        steps = steps[1:]
    while steps and is_outside(steps[-1]):
        steps = steps[:-1]
    for i, (before, after) in enumerate(pairwise(steps)):
        made = {value.edge for value in before.call.outputs}
        if not any(trace.flow.depends(value.edge, made) for value in after.call.outputs):
            return steps[:i]  # side by side: the heads of several streams
    return steps


def _is_image(trace: Trace, points: tuple[Point, ...]) -> bool:
    return any(point.value.edge == trace.flow.image for point in points)
