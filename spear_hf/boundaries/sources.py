"""Where the stages end, by two independent witnesses: timm's feature_info, checked and repaired, and the structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spear_hf.boundaries.blocks import Block, resolution, trunk
from spear_hf.boundaries.trace import Trace, Value

DEFAULT_GROUPS = 4
"""Into how many stages a stack of equal blocks is divided; the paper tries 2, 3, 4, 6 and 12 (its Section 4.4)."""


@dataclass(frozen=True)
class Proposal:
    """Stages that a source believes in; nothing here is verified yet.

    Args:
        source: "metadata", "repaired" or "structural".
        entry: z_0, the tensor that enters the first body block.
        ends: z_1..z_L.
        blocks: the paths of the trunk's blocks, where hooks sit best.
        stem_feature: the stem tensor that feature_info lists, where it lists one.
        notes: what was left out or moved, for people.
    """

    source: str
    entry: Value
    ends: list[Value]
    blocks: frozenset[str]
    stem_feature: Value | None = None
    notes: list[str] = field(default_factory=list)


def propose(trace: Trace, num_groups: int | None) -> list[Proposal]:
    """The proposals in the order they are to be tried."""
    blocks = trunk(trace)
    proposals = [from_feature_info(trace, blocks, num_groups), from_structure(blocks, num_groups)]
    return [proposal for proposal in proposals if proposal is not None]


def grouped(ends: Sequence[Value], num_groups: int | None) -> list[Value]:
    """The last of each of `num_groups` groups of equal blocks (the default is 4)."""
    groups = min(num_groups or DEFAULT_GROUPS, len(ends))
    return [ends[(i + 1) * len(ends) // groups - 1] for i in range(groups)]


def from_structure(blocks: list[Block], num_groups: int | None) -> Proposal | None:
    """A stage is a run of blocks of one resolution; a net of one run is cut into `num_groups`."""
    if not blocks:
        return None
    following = [block.resolution for block in blocks[1:]] + [0]
    ends = [block.exit for block, after in zip(blocks, following, strict=True) if block.resolution != after]
    if len(ends) == 1:
        ends = grouped([block.exit for block in blocks], num_groups)
    return Proposal("structural", blocks[0].entry, ends, _paths(blocks))


def from_feature_info(trace: Trace, blocks: list[Block], num_groups: int | None) -> Proposal | None:
    """The stages that timm lists; entries in the stem are set aside, entries past the last block moved back to it."""
    entries = _entries(trace)
    if not entries or not blocks:
        return None
    notes: list[str] = []
    found = [(path, trace.exit_of(path)) for path in entries]
    missing = [path for path, value in found if value is None]
    listed = [(path, value) for path, value in found if value is not None]
    stem = [pair for pair in listed if _is_before(trace, pair[1], blocks[0]) or _takes_image(trace, pair[0])]
    stages = [pair for pair in listed if pair not in stem]
    if missing and not all(path == entries[0] for path in missing):
        return None
    if not stages:
        return None
    notes += [f"feature_info lists {path!r}, which is no module or has a bypass" for path in missing]
    ends: list[Value] = []
    for path, value in stages:
        end = value if _holds_block(path, blocks) else _last_block_before(trace, value, blocks)
        if end.edge != value.edge:
            notes.append(f"feature_info lists {path!r}, past the last block")
        if not ends or trace.flow.rank_of(end.edge) > trace.flow.rank_of(ends[-1].edge):
            ends.append(end)
    if len({resolution(trace, end) for end in ends}) == 1 and len(ends) > 1:
        ends = grouped(ends, num_groups)
    around_first = blocks[0].path.startswith(stages[0][0] + ".")
    entry = trace.entry_of(stages[0][0]) if around_first else None
    source = "repaired" if notes else "metadata"
    return Proposal(source, entry or blocks[0].entry, ends, _paths(blocks), stem[0][1] if stem else None, notes)


def _paths(blocks: list[Block]) -> frozenset[str]:
    return frozenset(path for block in blocks for path in (block.path, block.entry_path))


def _entries(trace: Trace) -> list[str]:
    """The module paths that the outermost `feature_info` lists, as `named_modules()` of the whole model spells them."""
    for prefix, module in trace.modules.items():
        info: Any = getattr(module, "feature_info", None)
        info = getattr(info, "info", info)
        if isinstance(info, list) and info and all(isinstance(entry, dict) and "module" in entry for entry in info):
            return [f"{prefix}.{entry['module']}" if prefix else str(entry["module"]) for entry in info]
    return []


def _is_before(trace: Trace, value: Value, block: Block) -> bool:
    return trace.flow.rank_of(value.edge) <= trace.flow.rank_of(block.entry.edge)


def _takes_image(trace: Trace, path: str) -> bool:
    entry = trace.entry_of(path)
    return entry is not None and entry.edge == trace.flow.image


def _holds_block(path: str, blocks: list[Block]) -> bool:
    """Whether the module at `path` is one of `blocks`, or has one inside."""
    return any(block.path == path or block.path.startswith(path + ".") for block in blocks)


def _last_block_before(trace: Trace, value: Value, blocks: list[Block]) -> Value:
    before = [b.exit for b in blocks if trace.flow.rank_of(b.exit.edge) <= trace.flow.rank_of(value.edge)]
    return before[-1] if before else value
