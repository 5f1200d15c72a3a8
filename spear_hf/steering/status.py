"""What a SpearModel holds, in figures, and a check that its active adapter really acts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spear_hf.adapters.arithmetic import deviations
from spear_hf.boundaries.inputs import candidate_inputs
from spear_hf.boundaries.probe_forward import device_of, dtype_of
from spear_hf.errors import BoundaryNotFiredError
from spear_hf.steering.context import SteeringContext
from spear_hf.steering.model import SpearModel
from spear_hf.utils.batch import logits_of


@dataclass(frozen=True)
class AdapterStatus:
    """One adapter.

    Args:
        name: as in `set_adapter`.
        is_active: whether it steers.
        depths: the boundaries that carry an RSP.
        num_parameters: gamma and beta of all of them.
        gamma_deviation, beta_deviation: ||gamma - 1|| and ||beta||; both 0 at the identity, NaN after a divergence.
        alpha: how much of the batch is mixed into the batch-norm statistics.
    """

    name: str
    is_active: bool
    depths: tuple[int, ...]
    num_parameters: int
    gamma_deviation: float
    beta_deviation: float
    alpha: float


@dataclass(frozen=True)
class ModelStatus:
    """A base and the adapters on it.

    Args:
        base_class: of the base.
        base_parameters: how many it has, all frozen.
        boundaries: boundary key (its depth, and its part where there are several) -> module path.
        adapters: in the order in which they came.
        is_disabled: whether a `disable_adapter()` context is open.
        mixes_statistics: whether batch-norm statistics are being mixed now.
    """

    base_class: str
    base_parameters: int
    boundaries: dict[str, str]
    adapters: tuple[AdapterStatus, ...]
    is_disabled: bool
    mixes_statistics: bool


def model_status(model: SpearModel) -> ModelStatus:
    """The status of a model as it is now."""
    adapters = []
    for name, config in model.peft_config.items():
        state, depths = model.snapshot(name), tuple(model.rsps(name))
        numbers = sum(value.numel() for value in state.values())
        active = name in model.active_adapters
        adapters.append(AdapterStatus(name, active, depths, numbers, *deviations(state), config.alpha))
    acting = any(a.is_active and a.alpha > 0 for a in adapters) and not model.is_disabled
    return ModelStatus(
        type(model.base_model).__name__,
        sum(p.numel() for p in model.base_model.parameters()),
        {b.key: b.module for b in model.boundaries},
        tuple(adapters),
        model.is_disabled,
        acting and model.has_batch_norms,
    )


@torch.no_grad()
def verify(model: SpearModel, inputs: Tensor | Mapping[str, Any] | None = None) -> float:
    """Nudge every RSP that acts, one after the other, and see that the logits follow.

    Args:
        inputs: a batch that the model accepts; None makes one up from its configuration.

    Returns:
        The largest change of a logit that the active adapters make now; 0.0 at the identity.

    Raises:
        BoundaryNotFiredError: an RSP that runs zero or several times, or that no logit depends on.
    """
    if inputs is None:
        made = next(candidate_inputs(model.base_model))
        made = made.on(device_of(model.base_model), dtype_of(model.base_model))
        args, kwargs = made.args, made.kwargs
    else:
        args, kwargs = ((inputs,), {}) if isinstance(inputs, Tensor) else ((), dict(inputs))
    steered = logits_of(model(*args, **kwargs))
    for name in model.active_adapters:
        for depth in model.rsps(name):
            with model.steering(_nudged(model, name, depth)):
                nudged = logits_of(model(*args, **kwargs))
            if torch.equal(nudged, steered):
                raise BoundaryNotFiredError(
                    f"moving the RSP of adapter {name!r} at depth {depth} changes no logit; the boundary is bypassed: "
                    "pass boundaries=[Boundary(...)] with a block that every image goes through"
                )
    with model.disable_adapter():
        source = logits_of(model(*args, **kwargs))
    return float((steered - source).abs().max())


def _nudged(model: SpearModel, name: str, depth: int) -> SteeringContext:
    """What steers this thread now, but with one adapter's RSPs at one depth moved; other threads see nothing of it."""
    context = model.current_context()
    earlier = model.active_adapters[: model.active_adapters.index(name)]
    pairs = dict(context.pairs)
    for boundary in model.boundaries:
        if boundary.depth == depth and boundary.key in pairs and model.adapters.rsp(name, boundary.key) is not None:
            several = list(pairs[boundary.key])
            place = len(model.adapters.composed(earlier, boundary.key))
            gamma, beta = several[place]
            several[place] = gamma * 1.5, beta + 0.5
            pairs[boundary.key] = tuple(several)
    return replace(context, pairs=pairs)
