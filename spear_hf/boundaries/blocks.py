"""The trunk of a network: its blocks in the order they run, with one tensor between two blocks that carries everything.

Words used here: a unit is a module whose input and output each carry everything (both are cuts of the data flow). An
owner is the closest unit around a layer with weights that is no unit: a residual block, whose layers have the skip as a
bypass. An atom is a unit that is not opened any further: a block, or a single layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from spear_hf.boundaries.trace import Trace, Value, num_positions

CONTAINERS = (nn.Sequential, nn.ModuleList)
"""Modules that do nothing but hold their children in a row."""
_STEM_NAMES = ("stem", "embed")


@dataclass(frozen=True)
class Block:
    """One module of the trunk: everything enters it as `entry` and leaves it as `exit`.

    Args:
        path, module: the module that returns `exit`.
        entry, exit: the tensors.
        resolution: how many positions (pixels or tokens) `exit` has for one image.
        entry_path: the module that takes `entry`: `path`, or the first layer of a block of several layers.

    >>> import torch
    >>> from spear_hf.boundaries.blocks import Block
    >>> from spear_hf.boundaries.graph import edge_of
    >>> from spear_hf.boundaries.trace import Value
    >>> value = Value((), edge_of(torch.ones(1, 8, 4, 4, requires_grad=True)), torch.Size((1, 8, 4, 4)))
    >>> Block("layer1.0", torch.nn.Identity(), value, value, 16, "layer1.0").resolution
    16
    """

    path: str
    module: nn.Module
    entry: Value
    exit: Value
    resolution: int
    entry_path: str


def trunk(trace: Trace) -> list[Block]:
    """The blocks in the order they run: residual or branching modules; single layers if there are none.

    >>> import torch
    >>> from torch import nn
    >>> from spear_hf.boundaries.blocks import trunk
    >>> from spear_hf.boundaries.inputs import ProbeInputs
    >>> from spear_hf.boundaries.trace import Trace
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
    >>> [block.path for block in trunk(Trace(model, ProbeInputs((torch.ones(1, 3, 8, 8),))))]
    ['3']
    """
    owners = _owners(trace)
    classes = _block_classes(trace, owners)
    siblings = _sibling_classes(trace, classes)
    classes |= siblings
    atoms = sorted(_atoms(trace, "", owners, classes), key=lambda block: trace.flow.rank_of(block.exit.edge))
    blocks = [b for b in atoms if type(b.module) in classes or b.path in owners]
    blocks = _without_stem(trace, blocks, siblings)
    # With more convolutions before the first block than a stem has, these blocks are not the trunk; the layers are.
    if not blocks or _convolutions_before(atoms, blocks[0]) > max(6, len(blocks)):
        return _layers(atoms)
    return blocks


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _is_unit(trace: Trace, path: str) -> bool:
    return trace.entry_of(path) is not None and trace.exit_of(path) is not None


def _owners(trace: Trace) -> set[str]:
    """The paths of the owners: a block with a skip, a branching cell, a model with two heads.

    A module with weights that is used but is no unit belongs to the closest unit around it.
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
    """The classes of blocks: of owners that hold no other owner, or that occur several times.

    No module of such a class is opened, even one that is no owner itself. A MobileNet block with stride 2 has no skip,
    so all its layers are units; that it is a block follows from the other modules of its class.
    """
    kinds: list[type[nn.Module]] = [type(trace.modules[path]) for path in owners]
    kept = set()
    for path in owners:
        kind = type(trace.modules[path])
        innermost = not any(other.startswith(path + ".") for other in owners)
        if kind not in CONTAINERS and (innermost or kinds.count(kind) > 1):
            kept.add(kind)
    # A squeeze-and-excite gate multiplies two branches, so in a block without a skip it is an owner. Elsewhere it is a
    # part of blocks, and so is its class.
    nested = {type(inner) for m in trace.modules.values() if type(m) in kept for inner in m.modules() if inner is not m}
    return kept - nested


def _sibling_classes(trace: Trace, classes: set[type[nn.Module]]) -> set[type[nn.Module]]:
    """Classes without a skip in any instance whose modules stand in a row of blocks, like EfficientNet's first block.

    A module with one convolution (the 1x1 layer at the end of MobileNetV3's row) is no block.
    """

    def holds_block(module: nn.Module) -> bool:
        return any(type(inner) in classes for inner in module.modules())

    found: set[type[nn.Module]] = set()
    for row in trace.modules.values():
        children = list(row.children()) if type(row) in CONTAINERS else []
        if 2 * sum(map(holds_block, children)) > len(children):
            rest = [child for child in children if not holds_block(child)]
            candidates = [c for child in rest for c in (child.children() if type(child) in CONTAINERS else [child])]
            found |= {type(module) for module in candidates if sum(map(_is_convolution, module.modules())) > 1}
    return found - set(CONTAINERS)


def _atoms(trace: Trace, path: str, owners: set[str], classes: set[type[nn.Module]]) -> list[Block]:
    """The atoms below `path`: its blocks as they are, everything else opened down to single layers."""
    module = trace.modules[path]
    entry, out = trace.entry_of(path), trace.exit_of(path)
    is_block = type(module) in classes or (path in owners and not any(o.startswith(path + ".") for o in owners))
    children = [f"{path}.{name}" if path else name for name, _ in module.named_children()]
    children = [child for child in children if child in trace.modules]  # a shared module is listed under one path only
    if path and entry is not None and out is not None and (is_block or not children):
        # A module that returns its input (an Identity) is no atom.
        return [Block(path, module, entry, out, num_positions(trace, out), path)] if entry.edge != out.edge else []
    return [atom for child in children for atom in _atoms(trace, child, owners, classes)]


def has_stem_name(path: str) -> bool:
    """Whether the path names a part of a stem.

    >>> from spear_hf.boundaries.blocks import has_stem_name
    >>> has_stem_name("patch_embed.proj"), has_stem_name("layer1.0")
    (True, False)
    """
    return any(word in part for part in path.lower().split(".") for word in _STEM_NAMES)


def _without_stem(trace: Trace, blocks: list[Block], siblings: set[type[nn.Module]]) -> list[Block]:
    """The blocks from the first one that does not take the image, sit in a stem, or is the only one of its class.

    Being the only one counts against a block only if later classes occur several times.
    """
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
    """The blocks of a plain network: each convolution after the first, with the norm and activation that follow it.

    A block ends before the next convolution or change of shape (a pool, a flatten). In a network without convolutions
    Linears take their place.
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
        # The output before, not the convolution's own input: TensorFlow's models pad that by a function.
        before = atoms[max(start - 1, 0)]
        blocks.append(replace(atoms[end], entry=before.exit, entry_path=atoms[start].path))
    if kind is _is_linear:
        return blocks[1:-1]  # the last one is the classifier
    return [block for block in blocks[1:] if block.resolution > 1]  # a 1x1 convolution after the pool is the head


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear)
