"""What one call of a steered model carries beyond the model's values, seen by the calling thread or asyncio task alone.

A SpearModel is called by thread pools, so nothing that belongs to a call may live on the model. Three things are kept
apart:

- `Steering`, one for each model: the adapters that `set_adapter` chose. Every thread that chose nothing sees these.
- a frame: what this thread chose by a `with` (an adapter, none, a stream's values). Frames nest.
- a `ForwardCall`: one forward of the base. It counts which boundaries ran; two forwards never count for each other.

Frames and calls are in context variables: a thread or task sees its own, and a pool's threads start without any.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Protocol

from torch import Tensor

from spear_hf.steering.rsp import RSP
from spear_hf.utils.distributed import BatchShard

Pair = tuple[Tensor, Tensor]
"""gamma and beta of one RSP: (C,) each, or (B, C) with a row for each image of the batch."""

Moments = tuple[Tensor, Tensor]
"""Mean and variance that a BatchNorm normalises by: (C,) each, or (B, C) with a row for each image."""

VALUES = Lock()
"""Held while an adapter's values are written, and while a call copies them: no call sees half of an update."""


class StatisticsProvider(Protocol):
    """Decides which statistics a BatchNorm normalises by, for one call."""

    def moments(self, layer: str, x: Tensor, norm: Any, alpha: float, shard: BatchShard | None) -> Moments | None:
        """Mixed mean and variance; None where the layer keeps the source's."""
        ...


@dataclass(frozen=True, eq=False)
class SteeringContext:
    """What acts in one call.

    Args:
        pairs: boundary key -> the RSPs that act there, one after the other; a boundary that is missing is not steered.
        alpha: how much of the batch is mixed into batch-norm statistics (Eq. 10); 0 keeps the source's.
        statistics: where these statistics come from; None takes those of the batch alone.
        shard: the slice of a global batch that this process has; None where it has all of it.
        lean: whether the forward keeps for the backward pass only what it needs (`LeanForward`).

    >>> import torch
    >>> SteeringContext({"0": ((torch.ones(8), torch.zeros(8)),)}, alpha=0.5).alpha
    0.5
    """

    pairs: Mapping[str, tuple[Pair, ...]]
    alpha: float = 0.0
    statistics: StatisticsProvider | None = None
    shard: BatchShard | None = None
    lean: bool = False


SOURCE = SteeringContext({})
"""Nothing acts: the model is the source."""


@dataclass(frozen=True, eq=False)
class AdapterChoice:
    """Adapters that were chosen by name.

    Args:
        names: in the order in which they are composed.
        alpha: the one that all of them have.
        rsps: boundary key -> their RSPs.
    """

    names: tuple[str, ...] = ()
    alpha: float = 0.0
    rsps: Mapping[str, tuple[RSP, ...]] = field(default_factory=dict)

    def context(self, shard: BatchShard | None, *, copied: bool) -> SteeringContext:
        """The values of these adapters now.

        Args:
            copied: take copies, under the lock that writers hold. The copies keep the graph to the parameters. A
                compiled graph cannot take a lock, and reads the parameters themselves.
        """
        if not self.rsps:  # not by name: a compiled graph would be compiled again for each name
            return replace(SOURCE, shard=shard)
        if copied:
            with VALUES:
                pairs = {k: tuple((r.gamma.clone(), r.beta.clone()) for r in rsps) for k, rsps in self.rsps.items()}
        else:
            pairs = {key: tuple((rsp.gamma, rsp.beta) for rsp in rsps) for key, rsps in self.rsps.items()}
        return SteeringContext(pairs, self.alpha, None, shard)


@dataclass(frozen=True, eq=False)
class _Frame:
    """What a `with` of this thread chose for one model; `outer` is what was chosen around it, for any model."""

    steering: "Steering"
    outer: "_Frame | None"
    choice: AdapterChoice | None = None
    context: SteeringContext | None = None
    shard: BatchShard | None = None
    is_disabled: bool = False


class ForwardCall:
    """One forward of the base.

    Args:
        steering: of the model that is called.
        context: what acts.
        outer: the call that this one runs inside of, if any: an ensemble of steered models, say.

    Attributes:
        fired: boundary key -> how often its RSPs ran.
        fusion: the `FusedMixing` of this forward; None where statistics are mixed in a pass of their own.
    """

    __slots__ = ("context", "fired", "fusion", "outer", "steering")

    def __init__(self, steering: "Steering", context: SteeringContext, outer: "ForwardCall | None") -> None:
        self.steering, self.context, self.outer = steering, context, outer
        self.fired: dict[str, int] = {}
        self.fusion: Any = None


_FRAME: ContextVar[_Frame | None] = ContextVar("spear_hf_frame", default=None)
_CALL: ContextVar[ForwardCall | None] = ContextVar("spear_hf_call", default=None)
_LENDING = Lock()


class Steering:
    """How the hooks of one model find out what acts in the call that they run in.

    Attributes:
        default: what `set_adapter` chose for every thread.
        lent: what acts while gradient checkpointing runs a forward again in a thread of autograd, which sees neither
            the frames nor the calls of the thread that waits for the gradient.
        is_checkpointed: whether a forward ever ran under gradient checkpointing.
    """

    def __init__(self) -> None:
        self.default = AdapterChoice()
        self.lent: SteeringContext | None = None
        self.is_checkpointed = False

    # --- what this thread chose ----------------------------------------------------------------------------------

    def _frame(self) -> _Frame | None:
        frame = _FRAME.get()
        while frame is not None and frame.steering is not self:
            frame = frame.outer
        return frame

    @property
    def choice(self) -> AdapterChoice:
        """The adapters that steer this thread, disabled or not."""
        frame = self._frame()
        return self.default if frame is None or frame.choice is None else frame.choice

    @property
    def is_disabled(self) -> bool:
        """Whether this thread is inside `disable_adapter()`."""
        frame = self._frame()
        return frame is not None and frame.is_disabled

    def choose(self, choice: AdapterChoice) -> None:
        """Steer by these adapters: this thread until its `with` ends, or everyone where this thread is in none."""
        top, own = _FRAME.get(), self._frame()
        if own is None:
            self.choose_for_all(choice)
        else:
            _FRAME.set(replace(own, choice=choice, outer=own.outer if top is own else top))

    def choose_for_all(self, choice: AdapterChoice) -> None:
        """Steer by these adapters every thread that is in no `with`."""
        self.default = choice

    @contextmanager
    def within(self, **chosen: Any) -> Iterator[None]:
        """Inside, this thread has these fields of a frame; the others are those of the `with` around it."""
        own = self._frame() or _Frame(self, None)
        token = _FRAME.set(replace(own, outer=_FRAME.get(), **chosen))
        try:
            yield
        finally:
            _FRAME.reset(token)

    @contextmanager
    def lending(self, context: SteeringContext) -> Iterator[None]:
        """Inside, forwards that autograd runs again in threads of its own are steered by this context.

        Such a thread cannot tell for whom it runs, so there is one backward pass at a time; without gradient
        checkpointing nothing is run again, and no thread waits.
        """
        if not self.is_checkpointed:
            yield
            return
        with _LENDING:
            self.lent = context
            try:
                yield
            finally:
                self.lent = None

    # --- what acts -----------------------------------------------------------------------------------------------

    def context(self, *, copied: bool = False) -> SteeringContext:
        """What acts in a call that begins now."""
        frame = self._frame()
        if frame is None:
            return self.default.context(None, copied=copied) if self.lent is None else self.lent
        if frame.is_disabled:
            return replace(SOURCE, shard=frame.shard)
        if frame.context is not None:
            return frame.context
        return (frame.choice or self.default).context(frame.shard, copied=copied)

    def call(self) -> ForwardCall | None:
        """The forward of this model that runs in this thread; None under a compiler, and where it is run again."""
        call = _CALL.get()
        while call is not None and call.steering is not self:
            call = call.outer
        return call

    def begin(self) -> ForwardCall:
        """A forward of the base begins in this thread."""
        call = ForwardCall(self, self.context(copied=True), _CALL.get())
        _CALL.set(call)
        return call

    def end(self, call: ForwardCall) -> None:
        """It has ended."""
        _CALL.set(call.outer)

    def acting(self) -> SteeringContext:
        """What acts where a hook runs."""
        call = self.call()
        return self.context() if call is None else call.context
