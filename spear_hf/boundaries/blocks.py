"""The trunk of a network as a line of blocks: modules between which one tensor carries everything."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from spear_hf.boundaries.axis import channel_axis
from spear_hf.boundaries.trace import Trace, Value

ROWS = (nn.Sequential, nn.ModuleList)
"""Containers that only line their children up."""
_STEM_NAMES = ("stem", "embed")


@dataclass(frozen=True)
class Block:
    """One module of the line: everything enters it as `entry` and leaves it as `exit`."""

    path: str
    module: nn.Module
    entry: Value
    exit: Value
    resolution: int
    """How many positions (pixels or tokens) `exit` has for one image."""
    entry_path: str
    """The module that takes `entry`: `path`, or the first layer where several layers make one block."""


def trunk(trace: Trace) -> list[Block]:
    """The blocks in the order they run: residual or branching modules where there are some, else single layers."""
    owners = _owners(trace)
    classes = _block_classes(trace, owners)
    siblings = _sibling_classes(trace, classes)
    classes |= siblings
    atoms = sorted(_atoms(trace, "", owners, classes), key=lambda block: trace.flow.rank_of(block.exit.edge))
    blocks = [b for b in atoms if type(b.module) in classes or b.path in owners]
    blocks = _without_stem(trace, blocks, siblings)
    if not blocks or _convolutions_before(atoms, blocks[0]) > max(6, len(blocks)):
        return _layers(atoms)
    return blocks


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _is_unit(trace: Trace, path: str) -> bool:
    return trace.entry_of(path) is not None and trace.exit_of(path) is not None


def _owners(trace: Trace) -> set[str]:
    """The units that hold weights beside the line: a block with a skip, a branching cell, a model with two heads.

    Each module with weights that is used and is not itself a unit belongs to the closest unit around it.
    """
    owners: set[str] = set()
    for path, module in trace.modules.items():
        if not any(p is not None for p in module._parameters.values()) or _is_unit(trace, path):
            continue
        used = any(trace.flow.is_used(v.edge) for call in trace.calls_of.get(path, []) for v in call.outputs)
        while used and path:
            path = _parent(path)
            if _is_unit(trace, path):
                owners.add(path)
                break
    return owners - {""}


def _block_classes(trace: Trace, owners: set[str]) -> set[type[nn.Module]]:
    """The classes of owners that come in numbers, or hold no other owner: never opened, even where one could be.

    A MobileNet block with stride 2 has no skip and could be opened; its siblings say that it is a block.
    """
    kinds: list[type[nn.Module]] = [type(trace.modules[path]) for path in owners]
    kept = set()
    for path in owners:
        kind = type(trace.modules[path])
        innermost = not any(other.startswith(path + ".") for other in owners)
        if kind not in ROWS and (innermost or kinds.count(kind) > 1):
            kept.add(kind)
    nested = {type(inner) for m in trace.modules.values() if type(m) in kept for inner in m.modules() if inner is not m}
    return (
        kept - nested
    )  # a squeeze-and-excite gate is a part of blocks, even where a skipless block lets it look like one


def _sibling_classes(trace: Trace, classes: set[type[nn.Module]]) -> set[type[nn.Module]]:
    """Classes that stand in a row of blocks without a skip in any instance: EfficientNet's first, depthwise block.

    One convolution alone (the 1x1 tail that MobileNetV3 keeps in its row) is no block.
    """

    def holds_block(module: nn.Module) -> bool:
        return any(type(inner) in classes for inner in module.modules())

    found: set[type[nn.Module]] = set()
    for row in trace.modules.values():
        children = list(row.children()) if type(row) in ROWS else []
        if 2 * sum(map(holds_block, children)) > len(children):
            rest = [child for child in children if not holds_block(child)]
            candidates = [inner for child in rest for inner in (child.children() if type(child) in ROWS else [child])]
            found |= {type(module) for module in candidates if sum(map(_is_convolution, module.modules())) > 1}
    return found - set(ROWS)


def _atoms(trace: Trace, path: str, owners: set[str], classes: set[type[nn.Module]]) -> list[Block]:
    """The line below `path`: its blocks whole, everything else opened down to single layers."""
    module = trace.modules[path]
    entry, out = trace.entry_of(path), trace.exit_of(path)
    is_block = type(module) in classes or (path in owners and not any(o.startswith(path + ".") for o in owners))
    children = [f"{path}.{name}" if path else name for name, _ in module.named_children()]
    children = [child for child in children if child in trace.modules]  # a shared module has one path
    if path and entry is not None and out is not None and (is_block or not children):
        return [Block(path, module, entry, out, resolution(trace, out), path)] if entry.edge != out.edge else []
    return [atom for child in children for atom in _atoms(trace, child, owners, classes)]


def resolution(trace: Trace, value: Value) -> int:
    """How many positions a tensor has for one image."""
    positions = 1
    for size in value.shape[1:]:
        positions *= size
    return positions // value.shape[channel_axis(trace, value.edge, value.shape)]


def has_stem_name(path: str) -> bool:
    """Whether a module is named as a part of the stem."""
    return any(word in part for part in path.lower().split(".") for word in _STEM_NAMES)


def _without_stem(trace: Trace, blocks: list[Block], siblings: set[type[nn.Module]]) -> list[Block]:
    """Drop what comes before the body: blocks that take the image, sit in a stem, or are alone of their class."""
    kinds = [type(block.module) for block in blocks]
    for i, block in enumerate(blocks):
        alone = (
            kinds.count(kinds[i]) == 1 and kinds[i] not in siblings and any(kinds.count(kind) > 1 for kind in kinds[i:])
        )
        if block.entry.edge != trace.flow.image and not has_stem_name(block.path) and not alone:
            return blocks[i:]
    return []


def _convolutions_before(atoms: list[Block], first: Block) -> int:
    before = atoms[: atoms.index(first)]
    return sum(_is_convolution(atom.module) for atom in before)


def _is_convolution(module: nn.Module) -> bool:
    return isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))


def _layers(atoms: list[Block]) -> list[Block]:
    """A plain network's blocks: each convolution after the first, with the norm and activation that follow it.

    A block ends before the next convolution or change of shape (a pool, a flatten). Without convolutions, Linears.
    """
    kind = _is_convolution if any(_is_convolution(a.module) for a in atoms) else _is_linear
    if not any(kind(atom.module) for atom in atoms):
        return []
    starts = [i for i, atom in enumerate(atoms) if kind(atom.module)]
    blocks = []
    for start, following in zip(starts, [*starts[1:], len(atoms)], strict=True):
        end = start
        while end + 1 < following and atoms[end + 1].exit.shape == atoms[start].exit.shape:
            end += 1
        before = atoms[max(start - 1, 0)]  # not the convolution's own input: TF models pad it by a function first
        blocks.append(replace(atoms[end], entry=before.exit, entry_path=atoms[start].path))
    if kind is _is_linear:
        return blocks[1:-1]  # the last one is the classifier
    return [block for block in blocks[1:] if block.resolution > 1]  # a 1x1 convolution after the pool is the head


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear)
