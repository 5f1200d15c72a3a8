"""The proposal by timm's `feature_info`, whose entries are checked against the data flow and corrected if wrong."""

from __future__ import annotations

from typing import Any, NamedTuple

from spear_hf.boundaries.blocks import Block
from spear_hf.boundaries.proposal import Point, Proposal, ends_of_groups, is_same_resolution, paths_of
from spear_hf.boundaries.trace import Trace, Value, num_positions


class _Entry(NamedTuple):
    """One listed module: its path, its reduction, and its output; None instead of an output that has a bypass."""

    path: str
    reduction: int
    value: Value | None


def from_feature_info(trace: Trace, blocks: list[Block], num_groups: int | None) -> Proposal | None:
    """The proposal of the stages that timm lists; None if the model lists none.

    An entry in the stem is no stage, and an entry past the last block is moved back to that block.

    >>> import torch
    >>> from torch import nn
    >>> from spear_hf.boundaries.blocks import trunk
    >>> from spear_hf.boundaries.feature_info import from_feature_info
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> from spear_hf.boundaries.trace import Trace
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    >>> model.feature_info = [{"module": "0", "reduction": 1}, {"module": "1", "reduction": 1}]
    >>> trace = Trace(model, ProbeInputs((torch.ones(1, 3, 8, 8),)))
    >>> proposal = from_feature_info(trace, trunk(trace), None)
    >>> proposal.source, len(proposal.ends)
    ('metadata', 1)
    """
    entries = _entries(trace)
    if not entries or not blocks:
        return None
    stem = [entry for entry in entries if entry.value is not None and _is_in_stem(trace, entry, blocks[0])]
    missing = [entry for entry in entries if entry.value is None]
    stages = [entry for entry in entries if entry not in stem and entry not in missing]
    if not stages:
        return None
    notes = [_complaint(trace, entry) for entry in missing]
    ends: list[Value] = []
    for entry in stages:
        end = _end(trace, entry, blocks)
        if not _blocks_in(entry.path, blocks):
            notes.append(f"feature_info lists {entry.path!r}, which is past the last block")
        if not ends or trace.flow.rank_of(end.edge) > trace.flow.rank_of(ends[-1].edge):
            ends.append(end)
    sizes = [num_positions(trace, end) for end in ends]
    if len({e.reduction for e in stages}) == 1 or all(is_same_resolution(size, sizes[0]) for size in sizes):
        ends = ends_of_groups(ends, num_groups)
    around_first = blocks[0].path.startswith(stages[0].path + ".")
    first = (trace.entry_of(stages[0].path) if around_first else None) or blocks[0].entry
    return Proposal(
        "repaired" if notes else "metadata",
        (Point(first),),
        [(Point(end),) for end in ends],
        paths_of(blocks),
        Point(stem[0].value) if stem and stem[0].value is not None else None,
        notes,
        gap="" if missing in ([], entries[:1]) else "; ".join(notes),  # only the first may be missing: it is the stem
    )


def _entries(trace: Trace) -> list[_Entry]:
    """The entries of the outermost `feature_info`, with paths from the root of the whole model."""
    for prefix, module in trace.modules.items():
        info: Any = getattr(module, "feature_info", None)
        info = getattr(info, "info", info)
        if isinstance(info, list) and info and all(isinstance(entry, dict) and "module" in entry for entry in info):
            paths = [f"{prefix}.{entry['module']}" if prefix else str(entry["module"]) for entry in info]
            reductions = [entry.get("reduction", 0) for entry in info]
            return [_Entry(p, r, trace.exit_of(p) if p else None) for p, r in zip(paths, reductions, strict=True)]
    return []


def _complaint(trace: Trace, entry: _Entry) -> str:
    calls = trace.calls_of.get(entry.path, [])
    if len(calls) != 1 or not calls[0].outputs:
        return f"feature_info lists {entry.path!r}, which " + ("is not called once" if entry.path else "is no module")
    return f"feature_info lists {entry.path!r}, which has a bypass{trace.bypass_of(calls[0].outputs[0].edge)}"


def _is_in_stem(trace: Trace, entry: _Entry, first: Block) -> bool:
    assert entry.value is not None
    takes = trace.entry_of(entry.path)
    is_before = trace.flow.rank_of(entry.value.edge) <= trace.flow.rank_of(first.entry.edge)
    return is_before or (takes is not None and takes.edge == trace.flow.image)


def _blocks_in(path: str, blocks: list[Block]) -> list[Block]:
    """The blocks that are, or are inside, the module at `path`."""
    return [block for block in blocks if block.path == path or block.path.startswith(path + ".")]


def _end(trace: Trace, entry: _Entry, blocks: list[Block]) -> Value:
    """Where the stage of `entry` ends: the listed output, or the last block inside if only their layouts differ.

    A stage that permutes its last block's output (NHWC to NCHW) ends at the block, whose module is the safer place for
    a hook. A listed module that holds no block ends at the last block before it.
    """
    assert entry.value is not None
    inside = _blocks_in(entry.path, blocks)
    if inside:
        last = inside[-1].exit
        emitters = trace.emitted_by.get(entry.value.edge, [])
        is_permuted = bool(emitters) and emitters[0][0].path == entry.path != inside[-1].path
        return last if is_permuted and last.shape.numel() == entry.value.shape.numel() else entry.value
    rank = trace.flow.rank_of(entry.value.edge)
    before = [block.exit for block in blocks if trace.flow.rank_of(block.exit.edge) <= rank]
    return before[-1] if before else entry.value
