"""How RSPs act on a base that they are no part of: forward hooks, one switch for all of them, and the fire check.

Hooks are bound methods of plain objects, never closures: a closure survives deepcopy but goes on steering the original,
without a word, and it cannot be pickled.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.boundaries.boundary import Boundary
from spear_hf.boundaries.slots import pick, pick_input, replace, replace_input
from spear_hf.errors import BoundaryNotFiredError
from spear_hf.steering.fusion import FusedMixing
from spear_hf.steering.rows import RowRSPs
from spear_hf.steering.rsp import RSP
from spear_hf.utils.distributed import BatchShard


class SteeringContext:
    """Which adapters act, and whether anything acts at all; shared by every hook of one SpearModel."""

    def __init__(self) -> None:
        self.active: tuple[str, ...] = ()
        self.alpha = 0.0
        self.off = 0  # how many disable_adapter() contexts are open
        self.rows: tuple[str | None, ...] | None = None  # one adapter for each image, where a batch is mixed
        self.shard: BatchShard | None = None  # the global batch, where several processes have a slice of it each
        self.fusion: FusedMixing | None = None  # on inside SpearModel.forward
        self.fired: Counter[str] = Counter()

    @contextmanager
    def sharding(self, shard: BatchShard | None) -> Iterator[None]:
        """Inside, batch statistics are those of the global batch."""
        before, self.shard = self.shard, shard
        try:
            yield
        finally:
            self.shard = before

    def mixing_alpha(self) -> float:
        """alpha of Eq. 10 as the batch-norm hooks are to use it now."""
        return 0.0 if self.off or not self.active else self.alpha

    def acting(self) -> tuple[str, ...]:
        """The adapters that steer now, in the order in which they are composed."""
        return () if self.off else self.active

    @contextmanager
    def steering(self, active: tuple[str, ...], alpha: float, rows: tuple[str | None, ...]) -> Iterator[None]:
        """Inside, these adapters act, each on its own rows of the batch."""
        before = self.active, self.alpha, self.rows
        self.active, self.alpha, self.rows = active, alpha, rows
        try:
            yield
        finally:
            self.active, self.alpha, self.rows = before


class BoundaryHook:
    """One boundary and the RSPs that every adapter has there."""

    def __init__(self, boundary: Boundary, adapters: nn.ModuleDict, switch: SteeringContext) -> None:
        self.boundary = boundary
        self.adapters = adapters
        self.switch = switch

    def rsps(self) -> list[RSP | RowRSPs]:
        """The RSPs that act here now; empty where no active adapter steers this boundary."""
        found: list[tuple[str | None, RSP]] = []
        for name in self.switch.acting():
            adapter = self.adapters[name]
            assert isinstance(adapter, nn.ModuleDict)
            if self.boundary.key in adapter:
                rsp = adapter[self.boundary.key]
                assert isinstance(rsp, RSP)
                found.append((name, rsp))
        if found and self.switch.rows is not None:
            return [RowRSPs([dict(found).get(name) for name in self.switch.rows])]
        return [rsp for _, rsp in found]

    def steer(self, rsps: list[RSP | RowRSPs], z: Tensor) -> Tensor:
        """RSP_d(z_d), of every active adapter in turn (Eq. 4)."""
        for rsp in rsps:
            if rsp.gamma.device != z.device:  # a base that lives on several devices, or is off-loaded
                rsp.to(z.device)
            z = rsp(z)
        if not torch.compiler.is_compiling():
            self.switch.fired[self.boundary.key] += 1
        return z

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Forward hook for where="out"."""
        rsps = self.rsps()
        if not rsps:
            return None
        slot = self.boundary.output_slot
        return replace(output, slot, self.steer(rsps, pick(output, slot)))

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Forward pre-hook for where="in"."""
        rsps = self.rsps()
        if not rsps:
            return None
        z = self.steer(rsps, pick_input(self.boundary, args, kwargs))
        return replace_input(self.boundary, args, kwargs, z)


class FireCheck:
    """Wraps one forward of the base: evaluation mode before it, and afterwards every active RSP has run exactly once.

    An RSP that never runs leaves the logits of the base bit for bit: the worst failure, because nothing shows it.
    """

    def __init__(self, base: nn.Module, sites: list[BoundaryHook], switch: SteeringContext) -> None:
        self.modules = list(base.modules())
        self.sites = sites
        self.switch = switch

    def begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Dropout, stochastic depth and batch-norm updates stay off, whatever `train()` was called on the base."""
        if torch.compiler.is_compiling():
            return
        for part in self.modules:
            if part.training:
                part.training = False
        self.switch.fired.clear()

    def end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Raise BoundaryNotFiredError unless each active boundary ran once."""
        if torch.compiler.is_compiling():
            return
        for site in self.sites:
            count = self.switch.fired[site.boundary.key]
            if count != 1 and site.rsps():
                raise BoundaryNotFiredError(
                    f"the RSP at depth {site.boundary.depth} ({site.boundary.module!r}) ran {count} times in one "
                    "forward, it must run once; its module may be called several times, skipped by gradient "
                    "checkpointing, or compiled before it was steered: pass boundaries=[Boundary(...)] "
                    "with a block that runs once"
                )
