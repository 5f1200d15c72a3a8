"""Stage boundaries, the tensors z_0..z_L of Eq. 2: how they are found in a model, and verified.

A search runs in this order; each step is a file.
`inputs`, `probe_forward`, `trace`: one forward of a replica without weights records every module's inputs and outputs.
`graph`: path counts in the autograd graph of that forward tell which tensors carry everything.
`blocks`, `proposal`, `feature_info`, `joint`: three sources propose tensors as z_0..z_L.
`place`: a hook is found that reaches each of them.
`chain`, `verify`: a forward with these hooks shows that z_d depends on z_{d-1} alone, and moves the logits.
"""

from spear_hf.boundaries.boundary import Boundary, select_boundaries
from spear_hf.boundaries.find import Findings, boundary_rule, find_boundaries, search_boundaries
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
