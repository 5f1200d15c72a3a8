"""Find the stage boundaries of a network: ask the sources, place the hooks, and return only what a probe has proved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.boundaries.blocks import trunk
from spear_hf.boundaries.boundary import Boundary
from spear_hf.boundaries.feature_info import from_feature_info
from spear_hf.boundaries.joint import from_frontiers
from spear_hf.boundaries.place import place, place_what_holds
from spear_hf.boundaries.proposal import Proposal
from spear_hf.boundaries.refusal import no_boundaries_error
from spear_hf.boundaries.rules import rule_for
from spear_hf.boundaries.session import ProbeSession
from spear_hf.boundaries.stem import Stem
from spear_hf.boundaries.structure import from_structure
from spear_hf.boundaries.trace import Trace
from spear_hf.boundaries.verify import shape_at, verify_boundaries
from spear_hf.errors import BoundaryError


@dataclass(frozen=True)
class Findings:
    """What a search found and how.

    Args:
        boundaries: z_0..z_L, verified.
        source: "rule", "metadata" (timm's feature_info as it is), "repaired" (with entries moved or dropped),
            "structural", "joint" (several tensors to a boundary) or, for strict=False, "partial".
        shapes: the shape of each boundary's tensor for the probe's batch of two.
        notes: what was repaired or left out, for people.
    """

    boundaries: list[Boundary]
    source: str
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_boundaries(
    model: nn.Module,
    num_groups: int | None = None,
    *,
    stem: Stem = "auto",
    inputs: Tensor | Mapping[str, Any] | None = None,
    strict: bool = True,
) -> list[Boundary]:
    """z_0 (the stem) and z_1..z_L (the stages) of `model`, each verified by a probe forward; `model` is left as it was.

    Args:
        model: any classifier, on any device and of any dtype; on the meta device only the data flow is checked.
        num_groups: into how many stages a stack of equal blocks is divided (None: 4); stages of their own win over it.
        stem: "auto" is the tensor that enters the first body block; "patch_embed" what the patch embedding returns,
            before positions and class tokens; "feature_info" the stem tensor that timm lists (NFNet's C_0 = 64).
        inputs: a batch that the model accepts, where none can be derived from its configuration.
        strict: False returns the depths that verify where others have a bypass, instead of raising.

    Raises:
        NoBoundariesError: with what was tried, what bypasses, and the ways out.
    """
    return search_boundaries(model, num_groups, stem=stem, inputs=inputs, strict=strict).boundaries


@torch.inference_mode(False)
@torch.enable_grad()
def search_boundaries(
    model: nn.Module,
    num_groups: int | None = None,
    *,
    stem: Stem = "auto",
    inputs: Tensor | Mapping[str, Any] | None = None,
    strict: bool = True,
) -> Findings:
    """`find_boundaries` with the story: which source told, which shapes the probe saw, what had to be repaired."""
    rule = rule_for(model)
    if rule is not None:
        return Findings(verify_boundaries(model, rule(model, num_groups), inputs, strict=True), "rule")
    session = ProbeSession(model, inputs)
    tried: list[str] = []
    proposals: list[Proposal] = []
    for proposal in propose(session.trace, num_groups):
        proposals.append(proposal)
        if proposal.gap:
            tried.append(f"{proposal.source}: {proposal.gap}")
            continue
        try:
            return _findings(session, proposal, place(session, proposal, stem))
        except BoundaryError as error:
            tried.append(f"{proposal.source}: {error}")
    for proposal in [] if strict else proposals:
        boundaries = place_what_holds(session, proposal, stem)
        if boundaries:
            return replace(_findings(session, proposal, boundaries), source="partial", notes=tried)
    raise no_boundaries_error(model, tried, session.trace)


def propose(trace: Trace, num_groups: int | None) -> Iterator[Proposal]:
    """What each source believes, in the order they are asked; a later one is asked only if an earlier one failed."""
    blocks = trunk(trace)
    sources = (
        partial(from_feature_info, trace, blocks, num_groups),
        partial(from_structure, trace, blocks, num_groups),
        partial(from_frontiers, trace, num_groups),
    )
    for ask in sources:
        proposal = ask()
        if proposal is not None:
            yield proposal


def _findings(session: ProbeSession, proposal: Proposal, boundaries: list[Boundary]) -> Findings:
    shapes = [shape_at(session.trace, boundary) for boundary in boundaries]
    return Findings(boundaries, proposal.source, shapes, proposal.notes)
