"""Everything that steering changes about a base, and its undo: hooks, requires_grad and training flags."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from spear_hf.errors import AlreadySteeredError, CompiledBaseError, LaunchError
from spear_hf.steering.hooks import BoundaryHook, FireCheck, SteeringContext


class Attachment:
    """The hooks on one base, which is frozen and put into evaluation mode as long as they are there.

    Args:
        base: changed in place until `undo`.
        sites: one for each boundary.
        mixing: batch-norm path -> the pre-hook that mixes its statistics.
        switch: what all hooks look at.
    """

    def __init__(
        self, base: nn.Module, sites: Sequence[BoundaryHook], mixing: Mapping[str, Any], switch: SteeringContext
    ) -> None:
        self.base = base
        self._requires_grad = {name: p.requires_grad for name, p in base.named_parameters()}
        self._training = {name: m.training for name, m in base.named_modules()}
        base.requires_grad_(False)
        base.eval()
        self._handles: list[Any] = [_register(base, site) for site in sites]
        self._handles += [base.get_submodule(name).register_forward_pre_hook(hook) for name, hook in mixing.items()]
        check = FireCheck(base, list(sites), switch)
        self._handles.append(base.register_forward_pre_hook(check.begin, prepend=True))
        self._handles.append(base.register_forward_hook(check.end))

    @property
    def is_attached(self) -> bool:
        """Whether the hooks are there."""
        return bool(self._handles)

    def undo(self) -> nn.Module:
        """The base exactly as it came in: hooks gone, requires_grad and training flags restored."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for name, parameter in self.base.named_parameters():
            parameter.requires_grad_(self._requires_grad.get(name, True))
        for name, module in self.base.named_modules():
            module.training = self._training.get(name, module.training)
        return self.base


def _register(base: nn.Module, site: BoundaryHook) -> Any:
    module = base.get_submodule(site.boundary.module)
    if site.boundary.where == "in":
        return module.register_forward_pre_hook(site.before, prepend=True, with_kwargs=True)
    return module.register_forward_hook(site.after, prepend=True)  # before any hook that records hidden states


def refuse_unsteerable(base: nn.Module) -> None:
    """Raise where hooks would be skipped, doubled or lost."""
    if isinstance(base, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise LaunchError(
            f"{type(base).__name__} is not steered itself; pass model.module: Spear keeps the processes in step itself"
        )
    if isinstance(base, torch.jit.ScriptModule):
        raise CompiledBaseError("a scripted model skips hooks; steer the nn.Module it was made from")
    if hasattr(base, "_orig_mod") or any(m._compiled_call_impl is not None for m in base.modules()):
        raise CompiledBaseError(
            "this model is already compiled, and compiled code skips hooks that come later; call "
            "get_spear_model(model) first and torch.compile the SpearModel"
        )
    if any(isinstance(getattr(h, "__self__", None), FireCheck) for h in base._forward_hooks.values()):
        raise AlreadySteeredError("this model is steered already; use its SpearModel.add_adapter, or unload() it first")
