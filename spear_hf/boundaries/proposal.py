"""Proposals: what a source takes for the stages of a network before anything is verified; and the structural source.

The structural source reads stages from the blocks alone: a stage is a run of blocks of one resolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from spear_hf.boundaries.blocks import Block
from spear_hf.boundaries.trace import Trace, Value

DEFAULT_GROUPS = 4
"""Into how many stages a stack of equal blocks is divided; the paper tries 2, 3, 4, 6 and 12 (its Section 4.4)."""

T = TypeVar("T")


@dataclass(frozen=True)
class Point:
    """One tensor of a z_d.

    Args:
        value: the tensor.
        since: None if every use of the tensor comes after z_d. Otherwise it has earlier uses too (a cell that reads the
            two cells before it), and it belongs to z_d only as an input of the modules called after this moment.

    >>> import torch
    >>> from spear_hf.boundaries.graph import edge_of
    >>> from spear_hf.boundaries.proposal import Point
    >>> from spear_hf.boundaries.trace import Value
    >>> x = torch.ones(2, 3, requires_grad=True)
    >>> Point(Value((), edge_of(x), x.shape)).since is None
    True
    """

    value: Value
    since: int | None = None


@dataclass(frozen=True)
class Proposal:
    """What one source takes for the stages.

    Args:
        source: "metadata", "repaired", "structural" or "joint".
        entry: z_0, what enters the first body block.
        ends: z_1..z_L; one tensor each, or the several of a joint boundary.
        blocks: the paths of the trunk's blocks, where hooks are placed by preference.
        stem_feature: the stem tensor that feature_info lists, if it lists one.
        notes: what was left out or moved, for people.
        gap: why the stages are not the whole network; "" if they are.

    >>> from spear_hf.boundaries.proposal import Proposal
    >>> Proposal("structural", (), [], frozenset({"layer1.0"})).gap
    ''
    """

    source: str
    entry: tuple[Point, ...]
    ends: list[tuple[Point, ...]]
    blocks: frozenset[str]
    stem_feature: Point | None = None
    notes: list[str] = field(default_factory=list)
    gap: str = ""


def ends_of_runs(sequence: Sequence[T], resolution: Callable[[T], int], num_groups: int | None) -> list[T]:
    """The last item of each run of one resolution; of each of `num_groups` groups if one run holds 90 % of all items.

    90 %, because two class-attention blocks or a decoder after a stack of equal blocks are no stages of their own.

    >>> from spear_hf.boundaries.proposal import ends_of_runs
    >>> ends_of_runs([56, 56, 28, 28, 28, 14], lambda size: size, None)
    [56, 28, 14]
    """
    runs: list[list[T]] = []
    for item in sequence:
        if runs and is_same_resolution(resolution(item), resolution(runs[-1][-1])):
            runs[-1].append(item)
        else:
            runs.append([item])
    longest = max(runs, key=len)
    if len(longest) >= 0.9 * len(sequence):
        return ends_of_groups(longest, num_groups)
    return [run[-1] for run in runs]


def is_same_resolution(one: int, other: int) -> bool:
    """Whether two counts of positions differ by at most 10 %, so that a class token added halfway starts no new stage.

    >>> from spear_hf.boundaries.proposal import is_same_resolution
    >>> is_same_resolution(196, 197), is_same_resolution(196, 49)
    (True, False)
    """
    return abs(one - other) <= 0.1 * max(one, other)


def ends_of_groups(items: Sequence[T], num_groups: int | None) -> list[T]:
    """The last item of each of `num_groups` groups of nearly equal size (None: 4); every item if there are fewer.

    >>> from spear_hf.boundaries.proposal import ends_of_groups
    >>> ends_of_groups(range(12), 3)
    [3, 7, 11]
    """
    groups = min(num_groups or DEFAULT_GROUPS, len(items))
    return [items[(i + 1) * len(items) // groups - 1] for i in range(groups)]


def from_structure(trace: Trace, blocks: list[Block], num_groups: int | None) -> Proposal | None:
    """The proposal by structure: a stage is a run of blocks of one resolution, and one single run is grouped.

    None without blocks.

    >>> import torch
    >>> from torch import nn
    >>> from spear_hf.boundaries.blocks import trunk
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> from spear_hf.boundaries.proposal import from_structure
    >>> from spear_hf.boundaries.trace import Trace
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
    >>> trace = Trace(model, ProbeInputs((torch.ones(1, 3, 8, 8),)))
    >>> len(from_structure(trace, trunk(trace), None).ends)
    1
    """
    if not blocks:
        return None
    ends = ends_of_runs(blocks, lambda block: block.resolution, num_groups)
    return Proposal(
        "structural",
        (Point(blocks[0].entry),),
        [(Point(block.exit),) for block in ends],
        paths_of(blocks),
        gap=_gap(trace, blocks),
    )


def paths_of(blocks: list[Block]) -> frozenset[str]:
    """The paths of the modules that take or return the tensors between these blocks.

    >>> from spear_hf.boundaries.proposal import paths_of
    >>> paths_of([])
    frozenset()
    """
    return frozenset(path for block in blocks for path in (block.path, block.entry_path))


def _gap(trace: Trace, blocks: list[Block]) -> str:
    """Why these blocks are not the whole trunk: like blocks beside them, or most layers after them; "" if neither."""
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
