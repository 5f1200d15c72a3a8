"""Stage boundaries: what they are, and how they are found in a model and verified."""

from spear_hf.boundaries.boundary import Boundary
from spear_hf.boundaries.find import Findings, find_boundaries, search_boundaries
from spear_hf.boundaries.rules import boundary_rule
from spear_hf.boundaries.select import select_boundaries
from spear_hf.boundaries.verify import verify_boundaries

__all__ = [
    "Boundary",
    "Findings",
    "boundary_rule",
    "find_boundaries",
    "search_boundaries",
    "select_boundaries",
    "verify_boundaries",
]
