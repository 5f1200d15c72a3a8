"""The frozen source that a guard compares with and falls back to, and how far a method has gone from it."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.adapters.arithmetic import deviations
from spear_hf.errors import ConfigError
from spear_hf.steering.model import SpearModel
from spear_hf.utils.batch import logits_of


def source_of(method: Any, source: nn.Module | None) -> Callable[[Tensor], Tensor]:
    """x -> the source's logits (B, K), without gradients.

    A method on a SpearModel needs no copy: inside `disable_adapter()` the model is the source.

    Raises:
        ConfigError: a method that changes its base in place, without a copy of it, or with one that is no copy.
    """
    model = getattr(method, "model", None)
    if source is None and isinstance(model, SpearModel):
        return Disabled(model)
    if source is None:
        raise ConfigError(
            f"{type(method).__name__} works on the base itself, so the guard has no source to compare with; "
            "pass source=copy.deepcopy(base), copied before the method was made"
        )
    learned = {id(p) for p in method.parameters()}
    if source is model or any(id(p) in learned for p in source.parameters()):
        raise ConfigError(
            "source is the very model that the method changes, so it is no frozen source; "
            "pass source=copy.deepcopy(base), copied before the method was made"
        )
    return Frozen(source)


class Disabled:
    """A SpearModel with its adapter disabled."""

    def __init__(self, model: SpearModel) -> None:
        self.model = model

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        with self.model.disable_adapter():
            return logits_of(self.model(x))


class Frozen:
    """A copy of the base in evaluation mode."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model.eval()

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        return logits_of(self.model(x))


class Distance:
    """How far the parameters of a method are from where they came from; infinite where one is not finite.

    For RSPs it is the root mean square of gamma - 1 and beta, each over its channels, from the identity; for any other
    method ||theta - theta_0|| / ||theta_0||, from the parameters at construction. The first is the second for RSPs that
    started at the identity.
    """

    def __init__(self, method: Any) -> None:
        self.method = method
        model = getattr(method, "model", None)
        self.model = model if isinstance(model, SpearModel) else None
        self._start = [] if self.model else [p.detach().clone() for p in method.parameters()]
        self._norm = math.sqrt(sum(float(p.float().square().sum()) for p in self._start))

    @torch.no_grad()
    def __call__(self) -> float:
        if self.model is not None:
            rsps = [rsp for several in self.model.rsps().values() for rsp in several]
            channels = sum(rsp.gamma.numel() for rsp in rsps)
            squares = [rsp.deviation().to(rsps[0].gamma.device) for rsp in rsps]
            distance = math.sqrt(float(torch.stack(squares).sum()) / channels)
        else:
            moved = zip(self.method.parameters(), self._start, strict=True)
            squares = [(p - start.to(p.device)).float().square().sum() for p, start in moved]
            distance = math.sqrt(sum(map(float, squares))) / max(self._norm, 1e-12)
        return distance if math.isfinite(distance) else math.inf

    def deviations(self) -> tuple[float, float]:
        """||gamma - 1|| and ||beta|| of the RSPs; zeros for a method that has none."""
        return (0.0, 0.0) if self.model is None else deviations(self.model.snapshot())
