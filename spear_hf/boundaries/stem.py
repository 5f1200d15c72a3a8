"""Which tensor is z_0: three readings of "the stem"."""

from __future__ import annotations

from typing import Literal, get_args

from torch.nn.modules.conv import _ConvNd

from spear_hf.boundaries.frontier import Point
from spear_hf.boundaries.proposal import Proposal
from spear_hf.boundaries.trace import Trace
from spear_hf.errors import NoBoundariesError

Stem = Literal["auto", "patch_embed", "feature_info"]


def stem_points(trace: Trace, proposal: Proposal, stem: Stem) -> tuple[Point, ...]:
    """The tensor (tensors, of a joint stem) that is z_0 under `stem`; see `find_boundaries` for the readings."""
    if stem == "auto":
        return proposal.entry
    point = proposal.stem_feature if stem == "feature_info" else _patch_embedding(trace, proposal)
    if point is None:
        what = "stem entry in feature_info" if stem == "feature_info" else "patch embedding that carries everything"
        raise NoBoundariesError(f"stem={stem!r}, but the model has no {what}; stem is one of {get_args(Stem)}")
    return (point,)


def _patch_embedding(trace: Trace, proposal: Proposal) -> Point | None:
    """What the largest module around the first convolution and inside the stem returns, one named for patches first."""
    first = next((call.path for call in trace.calls if isinstance(call.module, _ConvNd)), None)
    if first is None:
        return None
    parts = first.split(".")
    around = [".".join(parts[: i + 1]) for i in range(len(parts))]
    named = [path for path in around if "patch_embed" in path.rpartition(".")[2].lower()]
    exits = [trace.exit_of(path) for path in [*named, first]]
    limit = max(trace.flow.rank_of(point.value.edge) for point in proposal.entry)
    return next((Point(v) for v in exits if v is not None and trace.flow.rank_of(v.edge) <= limit), None)
