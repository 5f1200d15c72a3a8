"""Alpha-mixing of source and batch statistics (Eq. 10), without writing a buffer or replacing a module.

A BatchNorm in evaluation mode normalises by its running statistics. Its input is moved, just before it, so that the
result is what the mixed statistics would have given: x' = (x - mu_a) sqrt((var_s + eps) / (var_a + eps)) + mu_s. Every
subclass keeps what it does beyond normalising (timm's BatchNormAct2d its activation), and every buffer stays as it is.
Where `FusedMixing` is on, the common classes normalise by the mixed statistics at once: the same in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from spear_hf.lean.flow import is_checkpointed
from spear_hf.lean.mode import call_lean
from spear_hf.steering.context import Moments, Steering, SteeringContext
from spear_hf.steering.moments import batch_statistics


def batch_norms(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers that carry running statistics: BatchNorm of any dimension and its subclasses, and frozen ones.

    They are recognised by what they hold and not by class, so that torchvision's and timm's FrozenBatchNorm2d count.

    >>> from torch import nn
    >>> [name for name, _ in batch_norms(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GroupNorm(2, 8)))]
    ['1']
    """
    for name, module in model.named_modules():
        mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
        if isinstance(module, torch.jit.ScriptModule):  # it takes no hook; `scripted_batch_norms` lists these
            continue
        carries = isinstance(mean, Tensor) and isinstance(variance, Tensor) and hasattr(module, "eps")
        if carries and not isinstance(module, nn.modules.instancenorm._InstanceNorm):
            yield name, module


def scripted_batch_norms(model: nn.Module) -> list[str]:
    """The BatchNorm layers in scripted parts of a model, whose statistics cannot be mixed.

    >>> from torch import nn
    >>> scripted_batch_norms(nn.Sequential(nn.BatchNorm2d(8)))
    []
    """
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.jit.ScriptModule) and isinstance(getattr(module, "running_mean", None), Tensor)
    ]


class AlphaMixing:
    """The forward pre-hook of one BatchNorm layer.

    Args:
        steering: says, at every call, how much of the batch is mixed in, and where its statistics come from.
        layer: the path of the layer in the base.
    """

    def __init__(self, steering: Steering, layer: str = "") -> None:
        self.steering = steering
        self.layer = layer

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        call = None if torch.compiler.is_compiling() else self.steering.call()
        context = self.steering.context() if call is None else call.context
        if context.alpha == 0.0 or not args:
            return None
        x: Tensor = args[0]
        norm: Any = module  # a BatchNorm or what looks like one
        if call is None:
            moments = self._moments(x, norm, context)
        else:
            with torch._C.DisableTorchFunction():  # statistics are dozens of small calls, which no mode needs to see
                moments = self._moments(x, norm, context)
        if moments is None:
            return None
        if call is not None and call.fusion is not None and is_fusable(module, x, moments):
            call.fusion.prepare(norm, *moments)
            return None
        return (moved(x, norm, *moments), *args[1:])

    def _moments(self, x: Tensor, norm: Any, context: SteeringContext) -> Moments | None:
        if context.statistics is None:
            return batch_moments(x, norm, context.alpha, context.shard)
        return context.statistics.moments(self.layer, x, norm, context.alpha, context.shard)


def batch_moments(x: Tensor, norm: Any, alpha: float, shard: Any = None) -> Moments | None:
    """The mixed mean and variance, (C,) each, of this batch alone; None where a channel holds a single value."""
    if shard is None and torch.compiler.is_compiling() and math.prod(x.shape[2:]) == 1:
        return _mixed_in_graph(x, norm, alpha)
    statistics = batch_statistics(x, shard, norm.running_mean)
    return None if statistics is None else mixed_statistics(norm, *statistics, alpha)


@torch.no_grad()
def _mixed_in_graph(x: Tensor, norm: Any, alpha: float) -> Moments:
    """Of one value for each image: whether a channel holds a single one shows when the graph runs, not before."""
    wide = x if x.dtype == torch.float64 else x.float()
    variance, mean = torch.var_mean(wide, [d for d in range(x.dim()) if d != 1], correction=0)
    are_several = torch.ones_like(wide[:, 0]).sum() > 1
    return mixed_statistics(norm, mean, variance, torch.where(are_several, alpha, 0.0))


@torch.no_grad()
def mixed_statistics(norm: Any, mean: Tensor, variance: Tensor, alpha: float | Tensor) -> Moments:
    """(1 - alpha) source + alpha batch, mean and variance (Eq. 10), in the shape of `mean`: (C,) or (S, C).

    They are constants of the graph: letting gradients through the statistics costs memory and gains nothing.

    >>> import torch
    >>> norm = torch.nn.BatchNorm2d(2)  # mean 0, variance 1
    >>> mixed_statistics(norm, torch.full((2,), 4.0), torch.full((2,), 3.0), alpha=0.5)
    (tensor([2., 2.]), tensor([2., 2.]))
    """
    source_mean, source_variance = norm.running_mean.to(mean.dtype), norm.running_var.to(mean.dtype)
    return torch.lerp(source_mean, mean, alpha), torch.lerp(source_variance, variance, alpha)


def moved(x: Tensor, norm: Any, mean: Tensor, variance: Tensor) -> Tensor:
    """x', which `norm` turns into what x normalised by these statistics would be; (C,) or (B, C) each."""
    scale = torch.sqrt((norm.running_var + norm.eps) / (variance + norm.eps))
    shift = norm.running_mean - mean * scale
    shape = [len(mean) if mean.dim() == 2 else 1, -1] + [1] * (x.dim() - 2)
    wide = x if x.dtype == torch.float64 else x.float()
    return torch.addcmul(shift.view(shape), wide, scale.view(shape)).to(x.dtype)


class FusedMixing(TorchFunctionMode):
    """Inside, the next `F.batch_norm` of a prepared layer is called with the statistics that were prepared for it.

    Args:
        lean: do what `LeanForward` does, too. Each mode costs every torch function a call in Python, so that one mode
            for both is worth having: it is a fifth of a step of a small network.
    """

    def __init__(self, *, lean: bool = False) -> None:
        super().__init__()
        self.lean = lean
        self._prepared: dict[int, Moments] = {}  # by the identity of the layer's running mean

    def prepare(self, norm: Any, mean: Tensor, variance: Tensor) -> None:
        """Have `norm` normalise by these, once; for a layer that `is_fusable`."""
        dtype = norm.running_mean.dtype
        self._prepared[id(norm.running_mean)] = mean.to(dtype), variance.to(dtype)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm and len(args) > 1 and (mixed := self._prepared.pop(id(args[1]), None)) is not None:
            if mixed[0].dim() == 2:
                return self._normalized_by_rows(*mixed, *args, **kwargs)
            args = (args[0], *mixed, *args[3:])
        return call_lean(func, args, kwargs) if self.lean else func(*args, **kwargs)

    def _normalized_by_rows(
        self,
        mean: Tensor,
        variance: Tensor,
        input: Tensor,
        running_mean: Any,
        running_var: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """`F.batch_norm` of every image by its own row of statistics, (B, C) each, in one pass.

        The batch is folded into the channels: (B, C, ...) is one image of B C channels, each with its own statistics. A
        scale and a shift applied to each row apart would take three passes over the input.
        """
        weight, bias = (None if each is None else each.repeat(len(input)) for each in (weight, bias))
        folded = input.reshape(1, -1, *input.shape[2:])
        args = (folded, mean.flatten(), variance.flatten(), weight, bias, training, momentum, eps)
        output = call_lean(F.batch_norm, args, {}) if self.lean else F.batch_norm(*args)
        return output.view(input.shape)


def is_fusable(norm: nn.Module, x: Tensor, moments: Moments) -> bool:
    """Whether this layer's forward is known to hand its running mean to `F.batch_norm`, once and by position.

    Rows of statistics are folded into the channels, which takes an input that is contiguous.
    """
    known = type(norm).forward is nn.modules.batchnorm._BatchNorm.forward or type(norm).__name__ == "BatchNormAct2d"
    by_rows = moments[0].dim() == 2
    return known and not norm.training and not is_checkpointed() and not (by_rows and not x.is_contiguous())
