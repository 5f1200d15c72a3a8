"""What carries everything across a moment of the forward: the several tensors of a joint boundary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.autograd.graph import Node

from spear_hf.boundaries.graph import Edge, inputs_of
from spear_hf.boundaries.trace import Trace, Value


@dataclass(frozen=True)
class Point:
    """One tensor of a z_d.

    Args:
        value: the tensor.
        since: None where all its uses belong to what follows z_d. Otherwise it was used before, too (a cell that reads
            the two cells before it), and z_d holds it only as what enters the modules called after this moment.
    """

    value: Value
    since: int | None = None


class Frontiers:
    """The joint cuts of a trace.

    Every tensor gets a time, no later than those of all that is computed from it: when a module first saw it, or, made
    by functions alone, just before its first use. The tensors with a time up to a moment and a use after it are a joint
    cut: a path from image to logits crosses the moment exactly once.
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
        """The joint cut at `moment`, oldest tensor first; None where no hook reaches one of them."""
        crossing = [edge for edge in self._users if self._time[edge[0]] <= moment and self._later_users(edge, moment)]
        crossing.sort(key=lambda edge: self._order.get(edge, -1))
        points = [self._hookable(edge, moment) for edge in crossing]
        return tuple(point for point in points if point is not None) if None not in points else None

    def _later_users(self, edge: Edge, moment: int) -> list[Node]:
        return [user for user in self._users.get(edge, []) if self._time[user] > moment]

    def _hookable(self, edge: Edge, moment: int) -> Point | None:
        """`edge` as a part of the cut at `moment`, or the first tensor computed from it alone that a hook reaches."""
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
        nodes = list(self._trace.flow.rank)
        time = dict.fromkeys(nodes, self._end)
        for (node, _), moment in self._trace.first_seen.items():
            if node in time:
                time[node] = min(moment, time[node])
        for node in reversed(nodes):
            for parent, _ in inputs_of(node):
                time[parent] = min(time[parent], time[node])
        return time
