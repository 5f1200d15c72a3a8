"""Meter: the time and the peak memory of one step of a method."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from spear_hf.learning.method import TTAMethod

ON_CUDA = "CUDA, max_memory_allocated"
ELSEWHERE = "kept for the backward pass, without weights and images"


class Meter:
    """Runs steps of several methods and measures each.

    On a GPU, memory is everything allocated there, whatever it belongs to: run one method at a time. Elsewhere it is
    what autograd keeps for a backward pass. That is the part in which methods differ; the weights are there anyway.

    >>> import timm, torch
    >>> from spear_hf.baselines import Source
    >>> from spear_hf.evaluation.cost import Meter
    >>> meter = Meter({"source": Source(timm.create_model("test_resnet"))}, memory=True)
    >>> logits, seconds, memory = meter.step("source", torch.randn(2, 3, 32, 32))
    >>> memory, meter.memory_kind
    (0, 'kept for the backward pass, without weights and images')

    Args:
        methods: name -> method.
        memory: whether to measure memory too, not only seconds.

    Attributes:
        memory_kind: what the bytes of the last step are; "" where memory is not measured.
    """

    def __init__(self, methods: Mapping[str, TTAMethod], *, memory: bool) -> None:
        self.methods = methods
        self.memory_kind = ""
        self._weights = {name: storages_of(method) for name, method in methods.items()} if memory else {}

    def step(self, name: str, x: Any) -> tuple[Tensor, float, int]:
        """(logits, seconds, bytes at the peak) of one step of a method; 0 bytes where memory is not measured.

        The seconds include the work that is still in a GPU's queue when `step` returns.
        """
        method = self.methods[name]
        if not self._weights:
            return *_timed(method, x), 0
        device = _tensors(x)[0].device
        if device.type == "cuda":
            self.memory_kind = ON_CUDA
            torch.cuda.reset_peak_memory_stats(device)
            return *_timed(method, x), torch.cuda.max_memory_allocated(device)
        self.memory_kind = ELSEWHERE
        with SavedBytes(self._weights[name] | {_address(each) for each in _tensors(x)}) as saved:
            logits, seconds = _timed(method, x)
        return logits, seconds, saved.peak


def _timed(method: TTAMethod, x: Any) -> tuple[Tensor, float]:
    device = _tensors(x)[0].device
    _wait(device)
    began = time.perf_counter()
    logits = method.step(x)
    _wait(device)
    return logits, time.perf_counter() - began


def _tensors(x: Any) -> list[Tensor]:
    """Those of a batch: the images, and what goes with them."""
    return [each for each in x.values() if isinstance(each, Tensor)] if isinstance(x, Mapping) else [x]


def storages_of(method: Any) -> frozenset[int]:
    """The storage addresses of all tensors that a method holds, directly or in its attributes, up to four levels deep.

    >>> from spear_hf.evaluation.cost import storages_of
    >>> from torch import nn
    >>> len(storages_of(nn.BatchNorm2d(3)))  # weight, bias and three buffers
    5
    """
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
    """A context that counts the bytes autograd keeps for backward passes, each storage once while any graph holds it.

    >>> import torch
    >>> from spear_hf.evaluation.cost import SavedBytes
    >>> a, b = torch.randn(2, 100, requires_grad=True)
    >>> with SavedBytes(frozenset()) as saved:
    ...     product = a * b  # keeps both: one storage of 800 bytes
    >>> saved.peak
    800

    Args:
        uncounted: addresses of storages that are not counted.

    Attributes:
        peak: the most bytes that were kept at the same time.
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
        """Add one graph node that keeps this storage."""
        if address not in self.uncounted:
            self._now += size if self._holders[address] == 0 else 0
            self._holders[address] += 1
            self.peak = max(self.peak, self._now)

    def release(self, address: int, size: int) -> None:
        """Remove one graph node that kept this storage."""
        if address not in self.uncounted:
            self._holders[address] -= 1
            self._now -= size if self._holders[address] == 0 else 0


class _Kept:
    """What a graph node stores in place of a tensor; it is deleted together with the node."""

    __slots__ = ("address", "ledger", "size", "tensor")

    def __init__(self, tensor: Tensor, ledger: SavedBytes) -> None:
        # Detached, because an output holds its own graph: keeping that too would be a reference cycle, which only a
        # backward pass breaks, and a graph that nobody runs backward through would be counted for ever.
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
