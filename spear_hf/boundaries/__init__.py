"""Stage boundaries: what they are, and how they are found in a model."""

from spear_hf.boundaries.boundary import Boundary

__all__ = ["Boundary"]
