"""The proposal for networks with parallel streams, where a z_d is several tensors (HRNet, CrossViT, CoaT, NASNet)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from torch import nn
from torch.autograd.graph import Node

from spear_hf.boundaries.blocks import CONTAINERS, has_stem_name
from spear_hf.boundaries.graph import Edge, inputs_of
from spear_hf.boundaries.place import places_of
from spear_hf.boundaries.proposal import Point, Proposal, ends_of_runs
from spear_hf.boundaries.trace import Call, Trace, num_positions

_MAX_PARTS = 8
"""A cut of more tensors than this is taken for the inside of a block."""


class JointCuts:
    """The joint cuts of a trace: sets of tensors that carry everything together.

    Every node gets a time: when a module first saw its tensor, and no later than the time of anything computed from it.
    Along a path from the image to the logits times then never decrease, so each path crosses a given moment exactly
    once: with one tensor that has a time up to the moment and a use after it. All such tensors are the joint cut at the
    moment.

    Args:
        trace: the record of a forward.
        can_be_hooked: whether some hook reaches a point.

    >>> import torch
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> from spear_hf.boundaries.joint import JointCuts
    >>> from spear_hf.boundaries.trace import Trace
    >>> trace = Trace(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU()), ProbeInputs((torch.ones(1, 3, 2, 2),)))
    >>> [point.value.shape for point in JointCuts(trace, lambda point: True).at(trace.calls[0].ended)]
    [torch.Size([1, 12])]
    """

    def __init__(self, trace: Trace, can_be_hooked: Callable[[Point], bool]) -> None:
        self._trace, self._can_be_hooked = trace, can_be_hooked
        self._order = {edge: i for i, edge in enumerate(trace.first_seen)}
        self._end = max(call.ended for call in trace.calls) + 1
        self._time = self._times()
        self._users: dict[Edge, list[Node]] = {}
        for node in trace.flow.rank:
            for edge in inputs_of(node):
                self._users.setdefault(edge, []).append(node)

    def at(self, moment: int) -> tuple[Point, ...] | None:
        """The joint cut at `moment`, oldest tensor first; None if no hook reaches one of them."""
        crossing = [edge for edge in self._users if self._time[edge[0]] <= moment and self._later_users(edge, moment)]
        crossing.sort(key=lambda edge: self._order.get(edge, -1))
        points = [self._hookable(edge, moment) for edge in crossing]
        return tuple(point for point in points if point is not None) if None not in points else None

    def _later_users(self, edge: Edge, moment: int) -> list[Node]:
        return [user for user in self._users.get(edge, []) if self._time[user] > moment]

    def _hookable(self, edge: Edge, moment: int) -> Point | None:
        """`edge` as a point of the cut at `moment`, or the first tensor computed from it alone that a hook reaches.

        A tensor with one later use may be exchanged for the result of that use if the result depends on nothing else:
        the result carries the same and may be seen by a module where the tensor itself (inside a function) is not.
        """
        users = self._later_users(edge, moment)
        while True:
            if edge in self._trace.seen_by:
                used_before = len(users) < len(self._users.get(edge, []))
                point = Point(self._trace.seen_by[edge][0][1], moment if used_before else None)
                if self._can_be_hooked(point):
                    return point
            if len(users) != 1 or len(list(inputs_of(users[0]))) != 1:
                return None
            edge = (users[0], 0)
            users = self._users.get(edge, [])

    def _times(self) -> dict[Node, int]:
        """node -> when a module first saw one of its tensors, lowered to the times of all that is computed from it."""
        nodes = list(self._trace.flow.rank)
        time = dict.fromkeys(nodes, self._end)
        for (node, _), moment in self._trace.first_seen.items():
            if node in time:
                time[node] = min(moment, time[node])
        for node in reversed(nodes):
            for parent, _ in inputs_of(node):
                time[parent] = min(time[parent], time[node])
        return time


@dataclass(frozen=True)
class _Step:
    """One module of the body, and the joint cut at the moment it has returned.

    `resolution` is that of the cut's newest tensor; the older ones come from earlier stages.
    """

    call: Call
    points: tuple[Point, ...]
    resolution: int


def from_joint_cuts(trace: Trace, num_groups: int | None) -> Proposal | None:
    """The proposal by joint cuts: a stage is a run of body modules whose newest tensors have one resolution.

    A single run is grouped. None if the body has no cut that hooks reach.

    >>> import torch
    >>> from torch import nn
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> from spear_hf.boundaries.joint import from_joint_cuts
    >>> from spear_hf.boundaries.trace import Trace
    >>> blocks = [nn.Sequential(nn.Conv2d(3, 3, 1)) for _ in range(2)]
    >>> from_joint_cuts(Trace(nn.Sequential(*blocks), ProbeInputs((torch.ones(1, 3, 2, 2),))), None) is None
    True
    """
    row = _row(trace)
    paths = frozenset(call.path for call in row)
    cuts = JointCuts(trace, lambda point: next(places_of(trace, point, 0, 0, paths), None) is not None)
    steps = _body(trace, [step for call in row if (step := _step(trace, cuts, call)) is not None])
    entry = cuts.at(steps[0].call.began) if steps else None
    if not entry or _is_image(trace, entry):
        return None
    ends = ends_of_runs(steps, lambda step: step.resolution, num_groups)
    several = any(len(points) > 1 for points in (entry, *(step.points for step in ends)))
    return Proposal("joint" if several else "structural", entry, [step.points for step in ends], paths)


def _row(trace: Trace) -> list[Call]:
    """The modules of the body, in the order they run.

    These are the members of the innermost module that holds at least 80 % of the layers.
    """
    holder, size = "", sum(1 for call in trace.calls if call.module._parameters)
    while True:
        members = _members(trace, holder)
        inside = {c.path: sum(1 for i in trace.calls if i.module._parameters and _is_inside(i, c)) for c in members}
        largest = max(inside, key=lambda path: inside[path], default=None)
        if largest is None or 5 * inside[largest] < 4 * size:
            return members
        holder = largest


def _members(trace: Trace, holder: str) -> list[Call]:
    """The children of `holder` that have children of their own and run once; a container counts as its children."""
    found: list[Call] = []
    for name, module in trace.modules[holder].named_children():
        path = f"{holder}.{name}" if holder else name
        calls = trace.calls_of.get(path, [])
        if type(module) in CONTAINERS or _is_container(module):
            found += _members(trace, path)
        elif len(calls) == 1 and any(module.children()):
            found.append(calls[0])
    return sorted(found, key=lambda call: call.ended)


def _is_container(module: nn.Module) -> bool:
    """Whether a subclass of Sequential (HRNet's passes on lists of tensors) holds blocks of one class."""
    kinds = {type(child) for child in module.children()}
    return isinstance(module, nn.Sequential) and len(kinds) == 1 and all(any(c.children()) for c in module.children())


def _is_inside(call: Call, outer: Call) -> bool:
    return outer.began < call.began and call.ended < outer.ended


def _step(trace: Trace, cuts: JointCuts, call: Call) -> _Step | None:
    """`call` and the cut after it; None unless hooks reach the cut and its newest tensor is an output of `call`."""
    points = cuts.at(call.ended)
    if not points or len(points) > _MAX_PARTS or points[-1].value.edge not in {value.edge for value in call.outputs}:
        return None
    return _Step(call, points, num_positions(trace, points[-1].value))


def _body(trace: Trace, steps: list[_Step]) -> list[_Step]:
    """The steps without those at either end that take the image or are the only one of their class (stems, heads)."""
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
            return steps[:i]  # two steps side by side: the heads of two streams
    return steps


def _is_image(trace: Trace, points: tuple[Point, ...]) -> bool:
    return any(point.value.edge == trace.flow.image for point in points)
