"""Normalisation layers: which of them a method learns, and which statistics they normalise by.

Hooks set statistics for one forward and leave every buffer as it is, so that `unload` has nothing to repair. No layer
is replaced, so one that does more than normalise (timm's BatchNormAct2d) still does.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from spear_hf.baselines.component import Component
from spear_hf.boundaries import find_boundaries
from spear_hf.errors import ConfigError, NoBoundariesError
from spear_hf.steering.mixing import batch_norms

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)

Skip = str | Sequence[str] | None
"""None, "last_stage", "published", or module paths."""

PUBLISHED = ("layer4", "blocks.9", "blocks.10", "blocks.11", "norm.")


def kept_norms(model: nn.Module, kinds: tuple[type[nn.Module], ...] = NORMS, skip: Skip = None) -> list[Any]:
    """The normalisation layers of `model` that are not skipped, in the model's order.

    SAR leaves the last stage alone: its layers are too near the answer to move safely.

    Args:
        model: any classifier.
        kinds: the classes that count as normalisation layers.
        skip: None keeps all. "last_stage" leaves out what comes after the last but one stage boundary: layer4 of a
            ResNet, the last 3 of 12 blocks of a ViT, and the norm of the head. "published" compares names as SAR and
            DeYO do; in torchvision's ResNets and timm's ViT-B that is the same, in other networks something else or
            nothing. A sequence of module paths leaves out these modules and all inside them.

    Raises:
        ConfigError: no stages were found, an unknown word, or a path that the model does not have.

    >>> import timm
    >>> from spear_hf.baselines.norms import kept_norms
    >>> net = timm.create_model("test_resnet")
    >>> len(kept_norms(net)), len(kept_norms(net, skip="last_stage"))
    (15, 12)
    """
    norms = {name: m for name, m in model.named_modules() if isinstance(m, kinds)}
    if skip is None:
        return list(norms.values())
    if skip == "published":
        return [m for name, m in norms.items() if name != "norm" and not any(part in name for part in PUBLISHED)]
    skipped = _last_stage(model) if skip == "last_stage" else _inside(model, skip)
    return [m for name, m in norms.items() if name not in skipped]


def has_only_layer_norms(model: nn.Module) -> bool:
    """Whether the normalisation layers of `model` are layer norms, as in transformers; False if there are none.

    >>> import torch
    >>> from spear_hf.baselines.norms import has_only_layer_norms
    >>> [has_only_layer_norms(norm) for norm in (torch.nn.LayerNorm(4), torch.nn.GroupNorm(2, 4), torch.nn.Identity())]
    [True, False, False]
    """
    norms = kept_norms(model)
    return bool(norms) and all(isinstance(norm, nn.LayerNorm) for norm in norms)


def _last_stage(model: nn.Module) -> set[str]:
    """The paths of all modules that come after the last but one boundary."""
    try:
        boundaries = find_boundaries(model)
    except NoBoundariesError as error:
        raise ConfigError(
            f"no stages were found in {type(model).__name__}, so none of them is the last; "
            "pass skip=None, or the paths of the modules to skip"
        ) from error
    depths = sorted({b.depth for b in boundaries})
    if len(depths) < 2:
        return set()
    last_kept = [b.module for b in boundaries if b.depth == depths[-2]][-1]
    names = [name for name, _ in model.named_modules()]
    after = names[names.index(last_kept) + 1 :]
    return {name for name in after if not name.startswith(f"{last_kept}.")}


def _inside(model: nn.Module, skip: str | Sequence[str]) -> set[str]:
    names = {name for name, _ in model.named_modules()}
    if isinstance(skip, str) or not set(skip) <= names:
        raise ConfigError(
            f'skip={skip!r} is not allowed; give None, "last_stage", "published", or a list of module paths as '
            "named_modules() spells them"
        )
    return {name for name in names for path in skip if name == path or name.startswith(f"{path}.")}


# --- statistics of the batch -----------------------------------------------------------------------------------------


def use_batch_statistics(model: nn.Module) -> list[RemovableHandle]:
    """The handles of hooks that make every BatchNorm of `model` normalise by its batch, with gradients through it.

    A layer whose channels hold one value each takes the source's statistics: one value has no variance. Frozen batch
    norms (torchvision's and timm's, whose forward knows no batch statistics) stay as they are.

    >>> import torch
    >>> from spear_hf.baselines.norms import use_batch_statistics
    >>> norm = torch.nn.BatchNorm1d(1).eval()
    >>> handles = use_batch_statistics(norm)
    >>> norm(torch.tensor([[4.0], [6.0]])).flatten().detach()
    tensor([-1.0000,  1.0000])
    """
    norms = [m for _, m in batch_norms(model) if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return [handle for norm in norms for handle in _register(norm, _BatchStatistics())]


class _OtherStatistics:
    """Replaces the running statistics of one layer for one forward; its methods are the hooks."""

    def __init__(self) -> None:
        self.source: tuple[Any, Any] | None = None

    def before(self, module: Any, args: tuple[Any, ...]) -> Any:
        raise NotImplementedError

    def replace(self, module: Any, mean: Tensor | None, variance: Tensor | None) -> None:
        self.source = module.running_mean, module.running_var
        module.running_mean, module.running_var = mean, variance

    def after(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        if self.source is not None:
            module.running_mean, module.running_var = self.source
            self.source = None


def _register(norm: nn.Module, hook: _OtherStatistics) -> list[RemovableHandle]:
    # always_call: a forward that raises must put the statistics back too.
    after = norm.register_forward_hook(hook.after, prepend=True, always_call=True)
    return [norm.register_forward_pre_hook(hook.before), after]


class _BatchStatistics(_OtherStatistics):
    def before(self, module: Any, args: tuple[Any, ...]) -> None:
        x: Tensor = args[0]
        if x.numel() > x.shape[1] and self.source is None:
            self.replace(module, None, None)  # without running statistics, torch takes the batch's


# --- statistics of the stream ----------------------------------------------------------------------------------------


@dataclass
class RobustStatistics(Component):
    """Mean mu and variance s2 of every batch norm, one set for the teacher and one for the student (RoTTA).

    Both sets begin as the source's. While learning, (mu, s2) <- (1 - a) (mu, s2) + a (mean, biased variance of the
    batch); the batch is normalised by the new values, with gradients through its own part of them. Otherwise the
    values stay.

    Args:
        momentum: a.

    >>> import torch
    >>> from spear_hf.baselines.norms import RobustStatistics
    >>> norm, robust = torch.nn.BatchNorm1d(1).eval(), RobustStatistics(momentum=0.5)
    >>> handles = robust.attach(norm)
    >>> with robust.acting("student", learning=True):
    ...     y = norm(torch.tensor([[4.0], [6.0]]))
    >>> robust.student
    [tensor([2.5000]), tensor([1.])]
    """

    momentum: float = 0.05
    teacher: list[Tensor] | None = field(init=False, default=None)
    student: list[Tensor] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.norms: list[Any] = []
        self.who: Literal["teacher", "student"] = "teacher"
        self.learning = False

    def attach(self, model: nn.Module) -> list[RemovableHandle]:
        """The handles of new hooks on the batch norms of `model`."""
        self.norms = [m for _, m in batch_norms(model) if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        return [handle for i, norm in enumerate(self.norms) for handle in _register(norm, _StreamStatistics(self, i))]

    @contextmanager
    def acting(self, who: Literal["teacher", "student"], *, learning: bool = False) -> Iterator[None]:
        """A context in which forwards are normalised by the statistics of `who`, which move if `learning`."""
        before = self.who, self.learning
        self.who, self.learning = who, learning
        try:
            yield
        finally:
            self.who, self.learning = before

    def moments(self) -> list[Tensor]:
        """mu_0, s2_0, mu_1, s2_1, ... of the acting model; the list itself, not a copy."""
        kept: list[Tensor] | None = getattr(self, self.who)
        if kept is None:
            kept = [b.clone() for n in self.norms for b in (n.running_mean, n.running_var)]
            setattr(self, self.who, kept)
        return kept


class _StreamStatistics(_OtherStatistics):
    def __init__(self, robust: RobustStatistics, index: int) -> None:
        super().__init__()
        self.robust, self.index = robust, index

    def before(self, module: Any, args: tuple[Any, ...]) -> Any:
        x: Tensor = args[0]
        moments, i = self.robust.moments(), 2 * self.index
        if not self.robust.learning or x.numel() <= x.shape[1]:
            self.replace(module, moments[i], moments[i + 1])
            return None
        variance, mean = torch.var_mean(x, [d for d in range(x.dim()) if d != 1], correction=0)
        mean = torch.lerp(moments[i], mean, self.robust.momentum)
        variance = torch.lerp(moments[i + 1], variance, self.robust.momentum)
        moments[i], moments[i + 1] = mean.detach(), variance.detach()
        # The layer itself goes on to normalise by the source's statistics, so the input is transformed such that the
        # output is (x - mean) / sqrt(variance + eps). Only so do gradients flow through mean and variance.
        scale = torch.sqrt((module.running_var + module.eps) / (variance + module.eps))
        shape = [1, -1] + [1] * (x.dim() - 2)
        return ((x - mean.view(shape)) * scale.view(shape) + module.running_mean.view(shape), *args[1:])


# --- flags -----------------------------------------------------------------------------------------------------------


class ModelFlags:
    """The training flag of every module, and requires_grad and grad of every parameter, to be restored later.

    >>> import torch
    >>> from spear_hf.baselines.norms import ModelFlags
    >>> net = torch.nn.Linear(2, 2)
    >>> flags = ModelFlags(net)
    >>> _ = net.eval().requires_grad_(False)
    >>> flags.restore()
    >>> net.training, net.weight.requires_grad
    (True, True)
    """

    def __init__(self, model: nn.Module) -> None:
        self._training = [(m, m.training) for m in model.modules()]
        self._parameters = [(p, p.requires_grad, p.grad) for p in model.parameters()]

    def restore(self) -> None:
        """Set all of them as they were."""
        for module, training in self._training:
            module.training = training
        for parameter, requires_grad, gradient in self._parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = gradient
