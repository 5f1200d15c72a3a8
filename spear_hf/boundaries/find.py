"""Find the stage boundaries of a network: ask the sources, place the hooks, and return only what a probe has proved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.boundaries.boundary import Boundary
from spear_hf.boundaries.place import places_of
from spear_hf.boundaries.rules import rule_for
from spear_hf.boundaries.session import ProbeSession
from spear_hf.boundaries.sources import Proposal, propose
from spear_hf.boundaries.stem import Stem, stem_value
from spear_hf.boundaries.verify import verify_boundaries
from spear_hf.errors import BoundaryError, NoBoundariesError


@torch.inference_mode(False)
@torch.enable_grad()
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
    rule = rule_for(model)
    if rule is not None:
        return verify_boundaries(model, rule(model, num_groups), inputs, strict=True)
    session = ProbeSession(model, inputs)
    tried: list[str] = []
    for proposal in propose(session.trace, num_groups):
        try:
            return placed_and_verified(session, proposal, stem)
        except BoundaryError as error:
            tried.append(f"{proposal.source}: {error}")
    raise no_boundaries_error(model, tried)


def placed_and_verified(session: ProbeSession, proposal: Proposal, stem: Stem) -> list[Boundary]:
    """The proposal's tensors as boundaries whose hooks the model itself has answered for."""
    values = [stem_value(session.trace, proposal, stem), *proposal.ends]
    choices = [list(places_of(session.trace, value, d, proposal.blocks)) for d, value in enumerate(values)]
    for depth, places in enumerate(choices):
        if not places:
            raise NoBoundariesError(f"no module that runs once emits or takes z_{depth}")
    boundaries = [places[0] for places in choices]
    try:
        session.verify(boundaries)
    except BoundaryError:
        boundaries = [_first_that_holds(session, places) for places in choices]
        session.verify(boundaries)
    return boundaries


def _first_that_holds(session: ProbeSession, places: list[Boundary]) -> Boundary:
    """The first place whose hook, alone, catches all that flows from image to logits."""
    problem: BoundaryError | None = None
    for boundary in places:
        try:
            session.check([boundary])
        except BoundaryError as error:
            problem = problem or error
        else:
            return boundary
    assert problem is not None
    raise problem


def no_boundaries_error(model: nn.Module, tried: list[str]) -> NoBoundariesError:
    """What was tried, and the two ways out."""
    name = type(model).__name__
    reasons = "\n  ".join(tried) or "no timm feature_info, no boundary rule and no repeated chain of blocks"
    return NoBoundariesError(
        f"no verified stage boundaries in {name}; pass boundaries=[Boundary(depth, name, module), ...] or register a "
        f"rule with @boundary_rule({name}). Tried:\n  {reasons}"
    )
