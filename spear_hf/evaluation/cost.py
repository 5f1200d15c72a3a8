"""What one step of a method costs: seconds, and bytes of memory at its peak."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from spear_hf.learning.method import TTAMethod

ON_CUDA = "CUDA, max_memory_allocated"
ELSEWHERE = "kept for the backward pass, without weights and images"


@dataclass(frozen=True)
class Cost:
    """Of one step.

    Args:
        seconds: of the clock, work that a GPU still had in its queue included.
        memory: bytes at the peak; 0 where they were not measured.
        memory_kind: what the bytes are; "" where they were not measured.
    """

    seconds: float
    memory: int = 0
    memory_kind: str = ""


class Meter:
    """Steps of some methods, with what each of them cost.

    On a GPU memory is all that is allocated there, whatever it belongs to: run one method at a time. Elsewhere it is
    what autograd keeps at once for a backward pass, which is what methods differ in, since weights are there anyway.

    Args:
        methods: by name.
        memory: whether memory is measured, or seconds alone.
    """

    def __init__(self, methods: Mapping[str, TTAMethod], *, memory: bool) -> None:
        self.methods = methods
        self._weights = {name: storages_of(method) for name, method in methods.items()} if memory else {}

    def step(self, name: str, x: Tensor) -> tuple[Tensor, Cost]:
        """The answer of one method to a batch, from which it learns, and the cost."""
        method = self.methods[name]
        if not self._weights:
            answer, seconds = _timed(method, x)
            return answer, Cost(seconds)
        if x.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(x.device)
            answer, seconds = _timed(method, x)
            return answer, Cost(seconds, torch.cuda.max_memory_allocated(x.device), ON_CUDA)
        with SavedBytes(self._weights[name] | {_address(x)}) as saved:
            answer, seconds = _timed(method, x)
        return answer, Cost(seconds, saved.peak, ELSEWHERE)


def _timed(method: TTAMethod, x: Tensor) -> tuple[Tensor, float]:
    _wait(x.device)
    began = time.perf_counter()
    answer = method.step(x)
    _wait(x.device)
    return answer, time.perf_counter() - began


def storages_of(method: TTAMethod) -> frozenset[int]:
    """The addresses of every weight, buffer and other tensor that a method holds, or something in it does."""
    return frozenset(map(_address, _tensors_in(method, depth=4)))


def _tensors_in(part: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, nn.Module):
        yield from (*part.parameters(), *part.buffers())
    elif depth > 0 and not isinstance(part, type):
        inner = part.values() if isinstance(part, Mapping) else part if isinstance(part, (list, tuple)) else None
        for value in list(vars(part).values() if inner is None and hasattr(part, "__dict__") else inner or ()):
            yield from _tensors_in(value, depth - 1)


class SavedBytes:
    """Inside, counts what autograd keeps for backward passes: every storage once, for as long as a graph holds it.

    Args:
        uncounted: addresses of storages that are there anyway.

    Attributes:
        peak: the most bytes that were kept at once.
    """

    def __init__(self, uncounted: frozenset[int]) -> None:
        self._hooks = saved_tensors_hooks(lambda tensor: _Kept(tensor, self), lambda kept: kept.tensor)
        self.uncounted = uncounted
        self.peak = 0
        self._now = 0
        self._holders: Counter[int] = Counter()

    def __enter__(self) -> "SavedBytes":
        self._hooks.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._hooks.__exit__(*exception)

    def hold(self, address: int, size: int) -> None:
        """One more graph node keeps this storage."""
        if address not in self.uncounted:
            self._now += size if self._holders[address] == 0 else 0
            self._holders[address] += 1
            self.peak = max(self.peak, self._now)

    def release(self, address: int, size: int) -> None:
        """One graph node less keeps it."""
        if address not in self.uncounted:
            self._holders[address] -= 1
            self._now -= size if self._holders[address] == 0 else 0


class _Kept:
    """A tensor that a graph node keeps; goes with the node."""

    __slots__ = ("address", "ledger", "size", "tensor")

    def __init__(self, tensor: Tensor, ledger: SavedBytes) -> None:
        # an output comes with its graph: keeping that as well would be a cycle that only a backward pass breaks
        self.tensor, self.ledger = tensor.detach(), ledger
        storage = tensor.untyped_storage()
        self.address, self.size = storage.data_ptr(), storage.nbytes()
        ledger.hold(self.address, self.size)

    def __del__(self) -> None:
        self.ledger.release(self.address, self.size)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
