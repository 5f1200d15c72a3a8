"""What a source believes about a network's stages before anything is verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from spear_hf.boundaries.frontier import Point

DEFAULT_GROUPS = 4
"""Into how many stages a stack of equal blocks is divided; the paper tries 2, 3, 4, 6 and 12 (its Section 4.4)."""

T = TypeVar("T")


@dataclass(frozen=True)
class Proposal:
    """Stages that a source believes in.

    Args:
        source: "metadata", "repaired", "structural" or "joint".
        entry: z_0, what enters the first body block.
        ends: z_1..z_L; one tensor each, or the several of a joint boundary.
        blocks: the paths of the trunk's blocks, where hooks sit best.
        stem_feature: the stem tensor that feature_info lists, where it lists one.
        notes: what was left out or moved, for people.
        gap: why the stages do not make up the whole network; "" where they do.
    """

    source: str
    entry: tuple[Point, ...]
    ends: list[tuple[Point, ...]]
    blocks: frozenset[str]
    stem_feature: Point | None = None
    notes: list[str] = field(default_factory=list)
    gap: str = ""


def ends_of(sequence: Sequence[T], resolution: Callable[[T], int], num_groups: int | None) -> list[T]:
    """The last of each run of one resolution; where one run holds nearly all, the ends of its `num_groups` groups.

    Nearly all: two class-attention blocks, or a decoder, after a stack of equal blocks make no stages of their own.
    """
    runs: list[list[T]] = []
    for item in sequence:
        if runs and same_resolution(resolution(item), resolution(runs[-1][-1])):
            runs[-1].append(item)
        else:
            runs.append([item])
    longest = max(runs, key=len)
    if len(longest) >= 0.9 * len(sequence):
        return grouped(longest, num_groups)
    return [run[-1] for run in runs]


def same_resolution(one: int, other: int) -> bool:
    """Whether two counts of positions belong to one stage; class tokens that join halfway make no new one."""
    return abs(one - other) <= 0.1 * max(one, other)


def grouped(ends: Sequence[T], num_groups: int | None) -> list[T]:
    """The last of each of `num_groups` groups of equal blocks (the default is 4)."""
    groups = min(num_groups or DEFAULT_GROUPS, len(ends))
    return [ends[(i + 1) * len(ends) // groups - 1] for i in range(groups)]
