"""Choose among a model's boundaries by depth, name or module path."""

from __future__ import annotations

from collections.abc import Sequence

from spear_hf.boundaries.boundary import Boundary
from spear_hf.errors import BoundaryNotFoundError

_AUTO = (0, 1)


def select_boundaries(
    boundaries: Sequence[Boundary], choice: str | Sequence[int | str] = "auto", *, model_name: str = "the model"
) -> list[Boundary]:
    """The boundaries that `choice` names, shallow to deep; all parts of a joint boundary come together.

    Args:
        boundaries: what `find_boundaries` returned.
        choice: "auto" (stem and first stage), "all", "stem", or depths, names and module paths, matched exactly.
        model_name: how an error calls the model.
    """
    if choice == "all":
        return list(boundaries)
    depths = sorted({boundary.depth for boundary in boundaries})
    if choice == "auto":
        choice = [depth for depth in _AUTO if depth in depths] or depths[:1]
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
