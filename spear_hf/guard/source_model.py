"""The frozen source that a guard compares with and falls back to, and how far a method has moved away from it."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from spear_hf.adapters.arithmetic import deviations
from spear_hf.errors import ConfigError
from spear_hf.steering.model import SpearModel
from spear_hf.utils.batch import logits_of
from spear_hf.utils.model_inputs import called


def source_of(method: Any, source: nn.Module | None = None) -> Callable[[Tensor], Tensor]:
    """A function from images to the source's logits (B, K), without gradients.

    Args:
        method: a TTAMethod. One on a SpearModel needs no copy: the model without its adapter is the source.
        source: a copy of the base from before the method was made; put into evaluation mode.

    Raises:
        ConfigError: the method changes its base in place, and `source` is missing or is no copy.

    >>> import timm, torch
    >>> from spear_hf import Spear, get_spear_model
    >>> from spear_hf.guard.source_model import source_of
    >>> source = source_of(Spear(get_spear_model(timm.create_model("test_resnet"))))
    >>> source(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 1000])
    """
    model = getattr(method, "model", None)
    if source is None and isinstance(model, SpearModel):
        return _WithoutAdapter(model)
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
    return _FrozenCopy(source)


class _WithoutAdapter:
    def __init__(self, model: SpearModel) -> None:
        self.model = model

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        with self.model.disable_adapter():
            return logits_of(called(self.model, x))


class _FrozenCopy:
    def __init__(self, model: nn.Module) -> None:
        self.model = model.eval()

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        return logits_of(called(self.model, x))


class Distance(Protocol):
    """How far what was learned is from the source.

    >>> import torch
    >>> from spear_hf.guard.source_model import Distance, ParameterDistance
    >>> distance: Distance = ParameterDistance(torch.nn.Linear(4, 4))
    """

    def __call__(self) -> float:
        """At least 0; infinite if a parameter is not finite."""
        ...

    def deviations(self) -> tuple[float | None, float | None]:
        """(||gamma - 1||, ||beta||) over all RSPs; None for a method without any."""
        ...


class ParameterDistance:
    """How far the parameters of a method are from where they started; infinite if one of them is not finite.

    For RSPs: the root mean square of gamma - 1 and beta over all channels. For other methods:
    ||theta - theta_0|| / ||theta_0||, with theta_0 the parameters at construction. The two agree for RSPs that started
    at the identity.

    >>> import torch
    >>> from spear_hf.guard.source_model import ParameterDistance
    >>> layer = torch.nn.Linear(4, 4, bias=False)
    >>> distance = ParameterDistance(layer)
    >>> _ = layer.weight.data.mul_(1.5)
    >>> round(distance(), 4)
    0.5
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

    def deviations(self) -> tuple[float | None, float | None]:
        """(||gamma - 1||, ||beta||) over all RSPs; None for a method without any."""
        return (None, None) if self.model is None else deviations(self.model.snapshot())
