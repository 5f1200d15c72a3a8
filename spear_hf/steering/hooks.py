"""Everything that steering changes about a base, and its undo: hooks, requires_grad and training flags.

Hooks are bound methods of plain objects, never closures. A closure survives deepcopy but goes on steering the original
model, without an error, and it cannot be pickled.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.boundaries.boundary import Boundary
from spear_hf.boundaries.slots import register_at
from spear_hf.errors import AlreadySteeredError, BoundaryNotFiredError, CompiledBaseError, InputError, LaunchError
from spear_hf.lean.flow import is_checkpointed
from spear_hf.steering.context import ForwardCall, Pair, Steering
from spear_hf.steering.mixing import AlphaMixing, FusedMixing, batch_norms
from spear_hf.steering.rsp import check_channels, steer
from spear_hf.utils.distributed import refuse_sharded


class BoundaryHook:
    """Applies at one boundary what the context of the call says (Eq. 4).

    Args:
        boundary: where.
        steering: of the model.

    >>> import torch
    >>> from spear_hf import Boundary
    >>> hook = BoundaryHook(Boundary(0, "stem", "conv1", channels=8), Steering())
    >>> hook.steered(torch.zeros(2, 8, 4, 4)) is None  # no adapter acts
    True
    """

    def __init__(self, boundary: Boundary, steering: Steering) -> None:
        self.boundary = boundary
        self.steering = steering

    def steered(self, z: Tensor) -> Tensor | None:
        """z_d scaled and shifted by every RSP that acts here, one after the other; None where none acts."""
        pairs = self._pairs()
        if not pairs:
            return None
        axis = self.boundary.channel_axis
        for gamma, beta in pairs:
            if gamma.device != z.device:  # a base that lives on several devices, or is off-loaded
                gamma, beta = gamma.to(z.device), beta.to(z.device)
            if gamma.dim() == 2 and len(gamma) != len(z):
                raise InputError(
                    f"adapter_names has {len(gamma)} entries, and a boundary sees a batch of {len(z)}; give one name "
                    "for each image of the batch"
                )
            check_channels(z, gamma.shape[-1], axis)
            z = steer(z, gamma, beta, axis)
        return z

    def _pairs(self) -> tuple[Pair, ...]:
        call = None if torch.compiler.is_compiling() else self.steering.call()
        if call is None:  # under a compiler, or run again by gradient checkpointing: nothing is counted
            return self.steering.context().pairs.get(self.boundary.key, ())
        pairs = call.context.pairs.get(self.boundary.key, ())
        if pairs:
            self.steering.is_checkpointed = self.steering.is_checkpointed or is_checkpointed()
            call.fired[self.boundary.key] = call.fired.get(self.boundary.key, 0) + 1
        return pairs


class ForwardHooks:
    """Opens a `ForwardCall` before each forward of the base, and closes it afterwards.

    At the end every RSP that acts must have run exactly once. An RSP that never runs leaves the logits of the base bit
    for bit: the worst failure, because nothing shows it.
    """

    def __init__(
        self, base: nn.Module, boundaries: Sequence[Boundary], steering: Steering, *, has_batch_norms: bool
    ) -> None:
        self.modules = list(base.modules())
        self.has_batch_norms = has_batch_norms
        self.boundaries = list(boundaries)
        self.steering = steering

    def begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Dropout, stochastic depth and batch-norm updates stay off, whatever `train()` was called on the base."""
        for part in self.modules:
            if part.training:
                part.training = False
        if torch.compiler.is_compiling():
            return
        call = self.steering.begin()
        # a mode costs every torch function a call in Python, in which no other thread runs
        if call.context.lean or (call.context.alpha > 0 and self.has_batch_norms):
            call.fusion = FusedMixing(lean=call.context.lean)
            call.fusion.__enter__()

    def end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Raise BoundaryNotFiredError unless each active boundary ran once.

        Called after an exception, too (always_call), where torch hands over no output: then only the call is closed.
        """
        if torch.compiler.is_compiling():
            return
        call = self.steering.call()
        if call is None:  # `begin` itself has failed
            return
        if call.fusion is not None:
            call.fusion.__exit__(None, None, None)
        self.steering.end(call)
        if output is not None:
            self._check_fired(call)

    def _check_fired(self, call: ForwardCall) -> None:
        for boundary in self.boundaries:
            count = call.fired.get(boundary.key, 0)
            if count != 1 and call.context.pairs.get(boundary.key):
                raise BoundaryNotFiredError(
                    f"the RSP at depth {boundary.depth} ({boundary.module!r}) ran {count} times in one "
                    "forward, it must run once; its module may be called several times, skipped by gradient "
                    "checkpointing, or compiled before it was steered: pass boundaries=[Boundary(...)] "
                    "with a block that runs once"
                )


def register_hooks(base: nn.Module, boundaries: Sequence[Boundary], steering: Steering) -> list[Any]:
    """The handles of all hooks through which a context acts on `base`: at boundaries, batch norms and the forward.

    >>> import timm
    >>> base = timm.create_model("test_vit")
    >>> len(register_hooks(base, [Boundary(0, "stem", "patch_embed", channels=64)], Steering()))
    3
    """
    norms = list(batch_norms(base))
    forward = ForwardHooks(base, boundaries, steering, has_batch_norms=bool(norms))
    handles: list[Any] = [register_at(base, b, BoundaryHook(b, steering).steered) for b in boundaries]
    handles += [norm.register_forward_pre_hook(AlphaMixing(steering, name)) for name, norm in norms]
    handles.append(base.register_forward_pre_hook(forward.begin, prepend=True))
    handles.append(base.register_forward_hook(forward.end, always_call=True))
    return handles


class Attachment:
    """The hooks on one base, which is frozen and in evaluation mode as long as they are there.

    Args:
        base: changed in place until `undo`.
        boundaries: every boundary that may carry an RSP.
        steering: what all hooks look at.

    Attributes:
        is_attached: whether the hooks are there.
    """

    def __init__(self, base: nn.Module, boundaries: Sequence[Boundary], steering: Steering) -> None:
        self.base = base
        self._requires_grad = {name: p.requires_grad for name, p in base.named_parameters()}
        self._training = {name: m.training for name, m in base.named_modules()}
        base.requires_grad_(False)
        base.eval()
        self._handles = register_hooks(base, boundaries, steering)
        self.is_attached = True  # a plain flag: a compiler cannot trace a list of handles

    def undo(self) -> nn.Module:
        """The base exactly as it came in: hooks gone, requires_grad and training flags restored."""
        for handle in self._handles:
            handle.remove()
        self._handles, self.is_attached = [], False
        for name, parameter in self.base.named_parameters():
            parameter.requires_grad_(self._requires_grad.get(name, True))
        for name, module in self.base.named_modules():
            module.training = self._training.get(name, module.training)
        return self.base


def refuse_unsteerable(base: nn.Module) -> None:
    """Raise where hooks would be skipped, doubled or lost.

    Raises:
        LaunchError: a wrapper for several devices, or weights in parts on several processes.
        CompiledBaseError: a compiled or scripted model.
        AlreadySteeredError: a model that is steered already.

    >>> import timm
    >>> refuse_unsteerable(timm.create_model("test_resnet"))
    """
    if isinstance(base, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise LaunchError(
            f"{type(base).__name__} is not steered itself; pass model.module: Spear keeps the processes in step itself"
        )
    refuse_sharded(base)
    if isinstance(base, torch.jit.ScriptModule):
        raise CompiledBaseError("a scripted model skips hooks; steer the nn.Module it was made from")
    if hasattr(base, "_orig_mod") or any(m._compiled_call_impl is not None for m in base.modules()):
        raise CompiledBaseError(
            "this model is already compiled, and compiled code skips hooks that come later; call "
            "get_spear_model(model) first and torch.compile the SpearModel"
        )
    if any(isinstance(getattr(h, "__self__", None), ForwardHooks) for h in base._forward_hooks.values()):
        raise AlreadySteeredError("this model is steered already; use its SpearModel.add_adapter, or unload() it first")
