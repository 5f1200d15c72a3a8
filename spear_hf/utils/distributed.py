"""Sums over processes: what makes W processes, each with a slice of the batch, learn as one process with all of it.

Every batch-level quantity of SPeaR is a function of sums over images. Each process sums over its own slice, the sums
are added up, and from there on all processes compute the same bits: the same gate, the same loss, the same RSPs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from spear_hf.errors import InputError, LaunchError, SpearError
from spear_hf.utils.launch import refuse_fewer_processes

Reduce = Callable[[Tensor], Tensor]
"""From this process's part of a sum to the whole sum, differentiable; for one process the identity."""

UNSUPPORTED = {
    "FSDP": "it shards parameters, and there are a few hundred of them; the frozen base has no gradients to shard",
    "DEEPSPEED": "it owns the optimizer and the backward pass, which here touch a few hundred numbers",
    "MEGATRON_LM": "it splits layers over processes, and then no process sees a whole boundary",
    "XLA": "its collectives are not torch.distributed's",
}


def _unsupported(kind: str, name: str | None = None) -> str:
    return (
        f"{name or kind} is not supported: {UNSUPPORTED[kind]}; start plain processes with "
        "`accelerate launch --multi_gpu`, which share a step's sums and nothing else"
    )


def refuse_sharded(model: nn.Module) -> None:
    """Raise LaunchError for a model whose weights are in parts on several processes, by FSDP or tensor parallelism.

    >>> refuse_sharded(nn.Linear(3, 2))
    """
    for module in model.modules():
        names = {kind.__name__ for kind in type(module).__mro__}
        if "FullyShardedDataParallel" in names or "FSDPModule" in names:
            raise LaunchError(_unsupported("FSDP", "FSDP2 (fully_shard)" if "FSDPModule" in names else None))
    if any(type(parameter.data).__name__ == "DTensor" for parameter in model.parameters()):
        raise LaunchError(_unsupported("MEGATRON_LM", "a model of DTensors (tensor parallelism)"))


class _AllReduceSum(torch.autograd.Function):
    """y = sum over processes of x. Each process holds the same loss, so dx = sum over processes of dy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _summed(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _summed(dy)


def _summed(x: Tensor) -> Tensor:
    y = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y)
    return y


@dataclass(frozen=True)
class BatchShard:
    """This process's slice of a global batch.

    Args:
        sizes: how many images each process has; some may have none.
        rank: which of them this is.
        sum: a sum over the processes.
    """

    sizes: tuple[int, ...]
    rank: int
    sum: Reduce

    @property
    def local(self) -> int:
        """Images on this process."""
        return self.sizes[self.rank]

    @property
    def total(self) -> int:
        """Images in the global batch."""
        return sum(self.sizes)

    @property
    def offset(self) -> int:
        """Place of this process's first image in the global batch."""
        return sum(self.sizes[: self.rank])

    def gathered(self, rows: Tensor) -> Tensor:
        """(total, ...), the rows (local, ...) of all processes in the order of the global batch."""
        if len(self.sizes) == 1:
            return rows
        whole = rows.new_zeros(self.total, *rows.shape[1:])
        whole[self.offset : self.offset + self.local] = rows
        return self.sum(whole)

    def every(self, stride: int) -> tuple["BatchShard", slice]:
        """Every stride-th image of the global batch: how those are spread, and which of this process's they are."""
        starts = [sum(self.sizes[:rank]) for rank in range(len(self.sizes))]
        firsts = [-start % stride for start in starts]  # within a slice
        sizes = tuple(len(range(first, size, stride)) for first, size in zip(firsts, self.sizes, strict=True))
        return BatchShard(sizes, self.rank, self.sum), slice(firsts[self.rank], None, stride)


class ProcessGroup:
    """The processes that learn together.

    A gradient computed through `sum` is W times this process's part; its mean over the processes is the whole
    gradient, terms without a sum (the anchor) included. `mean` takes that.

    Args:
        accelerator: an `accelerate.Accelerator`, or None for this process alone.

    Raises:
        LaunchError: a way of sharding that cannot work, several processes and no accelerator, or an accelerator that
            has fewer processes than were asked for.
    """

    def __init__(self, accelerator: Any = None) -> None:
        if accelerator is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise LaunchError(
                f"{dist.get_world_size()} processes run, and without an accelerator each would learn alone from its "
                "own slice; pass accelerator=Accelerator()"
            )
        kind = str(getattr(getattr(accelerator, "distributed_type", ""), "value", ""))
        if kind in UNSUPPORTED:
            raise LaunchError(_unsupported(kind))
        if accelerator is not None:
            refuse_fewer_processes(accelerator.num_processes)
        self.count: int = 1 if accelerator is None else accelerator.num_processes
        self.rank: int = 0 if accelerator is None else accelerator.process_index
        self._device = None if accelerator is None else accelerator.device

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that prints and writes."""
        return self.rank == 0

    def sum(self, x: Tensor) -> Tensor:
        """The sum of x over the processes, differentiable."""
        return x if self.count == 1 else _AllReduceSum.apply(x)  # pyright: ignore[reportReturnType]

    def mean(self, x: Tensor) -> Tensor:
        """The mean of x over the processes."""
        return x if self.count == 1 else _summed(x) / self.count

    def shard(self, size: int, error: SpearError | None = None) -> BatchShard:
        """How the global batch is spread, of which this process has `size` images.

        Raises:
            SpearError: `error`, or on the other processes an InputError that says where it is: whoever had it alone
                would leave them waiting for ever.
        """
        mine = size if error is None else -1
        sizes = (mine,) if self.count == 1 else self._all(mine)
        failed = [rank for rank, size in enumerate(sizes) if size < 0]
        if error is not None:
            raise error
        if failed:
            raise InputError(
                f"process {failed} refused its slice of this batch, so none learned from it; see its error"
            )
        return BatchShard(sizes, self.rank, self.sum)

    def _all(self, number: int) -> tuple[int, ...]:
        """What each process has for `number`."""
        numbers = torch.zeros(self.count, dtype=torch.int64, device=self._device)
        numbers[self.rank] = number
        return tuple(_summed(numbers).tolist())

    def same(self, value: Any) -> Any:
        """The main process's value, on every process."""
        if self.count == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, device=self._device)
        return values[0]

    def gathered(self, values: list[Any]) -> list[Any]:
        """The values of all processes, in their order; on every process."""
        if self.count == 1:
            return values
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, values)
        return [value for part in found for value in part]
