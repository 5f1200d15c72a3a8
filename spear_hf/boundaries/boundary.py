"""A stage boundary: the tensor z_d between two stages (Eq. 2), where its hook sits, and how boundaries are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from spear_hf.errors import BoundaryNotFoundError

_AUTO_DEPTHS = (0, 1)


@dataclass(frozen=True)
class Boundary:
    """One tensor z_d of Eq. 2 and the place of the hook that reaches it.

    Args:
        depth: 0 for the stem, 1..L for the stages.
        name: what a person calls it: "stem", "stage1", ...
        module: full path of the module whose output (or input) is z_d, as `named_modules()` spells it.
        where: "out" for the module's output, "in" for its input (a tensor that no module returns, like x + pos_embed).
        channels: C_d; 0 lets the probe of `verify_boundaries` fill in channels and axis.
        channel_axis: the axis of z_d that holds the channels: 1 for NCHW, -1 for NHWC and B x N x C.
        output_slot: where z_d sits in what the module returns or takes: () for a bare tensor, (0,) for the first
            entry of a tuple, ("last_hidden_state",) for a ModelOutput field; for where="in" the first element is the
            position of the argument, or its keyword.
        part: 0, or a running number when several tensors together form one boundary (HRNet's parallel resolutions).

    >>> from spear_hf.boundaries import Boundary
    >>> stem = Boundary(0, "stem", "maxpool", channels=64)
    >>> stem.key, stem.num_parameters, Boundary.from_dict(stem.to_dict()) == stem
    ('0', 128, True)
    """

    depth: int
    name: str
    module: str
    where: Literal["out", "in"] = "out"
    channels: int = 0
    channel_axis: int = 1
    output_slot: tuple[int | str, ...] = ()
    part: int = 0

    @property
    def key(self) -> str:
        """The name of this boundary's RSP inside an adapter: its depth, and its part unless that is 0."""
        return str(self.depth) if self.part == 0 else f"{self.depth}_{self.part}"

    @property
    def num_parameters(self) -> int:
        """2 C_d, this boundary's part of Eq. 5."""
        return 2 * self.channels

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; `from_dict` reads it back to an equal Boundary."""
        return asdict(self) | {"output_slot": list(self.output_slot)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Boundary:
        """The Boundary that `to_dict` wrote; raises TypeError on unknown keys."""
        return cls(**{**data, "output_slot": tuple(data.get("output_slot", ()))})


def select_boundaries(
    boundaries: Sequence[Boundary], choice: str | Sequence[int | str] = "auto", *, model_name: str = "the model"
) -> list[Boundary]:
    """The boundaries that `choice` names, shallow to deep; all parts of a depth are chosen together.

    Args:
        boundaries: what `find_boundaries` returned.
        choice: "auto" (stem and first stage), "all", "stem", or depths, names and module paths, matched exactly.
        model_name: how an error calls the model.

    Raises:
        BoundaryNotFoundError: `choice` names a depth, name or path that is not among `boundaries`.

    >>> from spear_hf.boundaries import Boundary, select_boundaries
    >>> found = [Boundary(0, "stem", "maxpool"), Boundary(1, "stage1", "layer1"), Boundary(2, "stage2", "layer2")]
    >>> [b.name for b in select_boundaries(found, (0, "layer2"))]
    ['stem', 'stage2']
    """
    if choice == "all":
        return list(boundaries)
    depths = sorted({boundary.depth for boundary in boundaries})
    if choice == "auto":
        choice = [depth for depth in _AUTO_DEPTHS if depth in depths] or depths[:1]
    wanted: list[int | str] = [choice] if isinstance(choice, str) else list(choice)
    chosen = {depth for item in wanted for depth in _depths_of(item, boundaries, wanted, model_name)}
    return [boundary for boundary in boundaries if boundary.depth in chosen]


def _depths_of(item: int | str, boundaries: Sequence[Boundary], wanted: list[int | str], model_name: str) -> set[int]:
    matches = {b.depth for b in boundaries if item == b.depth or item in (b.name, b.module)}
    if matches:
        return matches
    depths = [b.depth for b in boundaries]
    shown = f"boundaries=({', '.join(map(repr, wanted))}{',' if len(wanted) == 1 else ''})"
    if isinstance(item, int):
        raise BoundaryNotFoundError(f"{shown} names depth {item}, but {model_name} has {min(depths)}..{max(depths)}")
    known = ", ".join(f"{b.name} ({b.module})" for b in boundaries)
    raise BoundaryNotFoundError(f"{shown} names {item!r}, but {model_name} has {known}")
