"""Which images, in which order, under which corruption: batch g of a stream as a pure function of g.

Nothing here touches an image. A plan says what each segment of a stream draws; a Schedule cuts segments into batches.
"""

from bisect import bisect_right
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np

from spear_hf.data.domains import Domain
from spear_hf.errors import DataError

ORDER_VERSION = "v1"  # a change to any order is a new version


def order_rng(seed: int, *purpose: str | int) -> np.random.Generator:
    """The generator of one ordering: a function of its arguments, never of global state."""
    text = f"spear-order/{ORDER_VERSION}|{seed}|" + "|".join(map(str, purpose))
    key = np.frombuffer(blake2b(text.encode(), digest_size=16).digest(), np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


@dataclass(frozen=True)
class Pool:
    """The images that every domain of a stream shows: `limit` of the `size` images of a source, in a seeded order.

    Args:
        size: number of images in the source.
        limit: how many of them are shown: a seeded sample, or the first ones where `shuffle` is off.
        seed: of the sample and of the order.
        shuffle: whether the order is a permutation; otherwise it is the source's own.
        window: how many consecutive images the source can hold at once: the first `limit` are shown, and each window
            is shuffled in itself. None where it reads in any order.
    """

    size: int
    limit: int
    seed: int
    shuffle: bool = True
    window: int | None = None

    def order(self, cycle: int = 0) -> np.ndarray:
        """(limit,) int64 sample ids; every cycle shows the same images, from the second on in another order."""
        if not self.shuffle:
            return np.arange(self.limit)
        if self.window is not None:
            rng = order_rng(self.seed, "window", self.window, cycle)
            windows = np.split(np.arange(self.limit), range(self.window, self.limit, self.window))
            return np.concatenate([rng.permutation(window) for window in windows])
        first = order_rng(self.seed, "order").permutation(self.size)[: self.limit]
        return first if cycle == 0 else order_rng(self.seed, "order", cycle).permutation(first)


class Segment(NamedTuple):
    """A stretch of a stream that batches do not straddle; a method under the protocol "single" is reset before it."""

    domain: str
    length: int  # images


class Draw(NamedTuple):
    """What a segment shows, image by image."""

    ids: np.ndarray  # (n,) int64, sample ids of the source
    domains: np.ndarray  # (n,) int64, indices into the plan's domains


class Plan(Protocol):
    """A protocol: the segments of one cycle, and what each of them draws, as a pure function of numbers."""

    @property
    def domains(self) -> tuple[Domain, ...]: ...

    @property
    def segments(self) -> tuple[Segment, ...]: ...

    def draw(self, cycle: int, segment: int) -> Draw: ...


class BatchPlan(NamedTuple):
    """Batch `number` of a stream, before any image is read."""

    number: int
    position: int  # of its first image, counted from the start of the stream
    domain: str
    is_domain_start: bool
    ids: np.ndarray
    domains: np.ndarray

    def part(self, rank: int, world: int) -> "BatchPlan":
        """The share of process `rank` of `world`: consecutive, of sizes that differ by one at most, perhaps empty."""
        start, stop = len(self.ids) * rank // world, len(self.ids) * (rank + 1) // world
        cut = {"ids": self.ids[start:stop], "domains": self.domains[start:stop], "position": self.position + start}
        return self._replace(**cut)


class Schedule:
    """A plan cut into batches; the last batch of a segment holds what is left.

    Args:
        plan: what each segment draws.
        batch_size: images in a batch, over all processes.
        cycles: how often the plan is gone through; None is endless.
    """

    def __init__(self, plan: Plan, batch_size: int, cycles: int | None = 1) -> None:
        if batch_size < 1:
            raise DataError(f"batch_size={batch_size} is not a positive number; pass 1 or more")
        if cycles is not None and cycles < 1:
            raise DataError(f"cycles={cycles} is not a positive number; pass 1 or more, or None for an endless stream")
        self.plan = plan
        self.domains = plan.domains
        self.segments = plan.segments
        self.batch_size = batch_size
        self.cycles = cycles
        lengths = [segment.length for segment in self.segments]
        self._first_batch = [0, *accumulate(-(-length // batch_size) for length in lengths)]
        self._first_image = [0, *accumulate(lengths)]
        self._last: tuple[tuple[int, int], Draw] | None = None  # a draw is cut into many batches: keep one

    @property
    def num_batches(self) -> int | None:
        """Batches in all; None for an endless stream."""
        return None if self.cycles is None else self.cycles * self._first_batch[-1]

    @property
    def images_per_cycle(self) -> int:
        """Images in one cycle, over all domains."""
        return self._first_image[-1]

    def batch(self, number: int) -> BatchPlan:
        """Batch `number`, counted from 0."""
        cycle, inside = divmod(number, self._first_batch[-1])
        segment = bisect_right(self._first_batch, inside) - 1
        start = (inside - self._first_batch[segment]) * self.batch_size
        draw = self._draw(cycle, segment)
        cut = slice(start, start + self.batch_size)
        position = cycle * self.images_per_cycle + self._first_image[segment] + start
        return BatchPlan(number, position, self.segments[segment].domain, start == 0, draw.ids[cut], draw.domains[cut])

    def _draw(self, cycle: int, segment: int) -> Draw:
        if self._last is None or self._last[0] != (cycle, segment):
            self._last = (cycle, segment), self.plan.draw(cycle, segment)
        return self._last[1]

    def order_hash(self) -> str:
        """A hash of every (sample id, domain) of a cycle: equal means the same images in the same order."""
        digest = blake2b(repr([str(domain) for domain in self.domains]).encode(), digest_size=8)
        for segment in range(len(self.segments)):
            for array in self.plan.draw(0, segment):
                digest.update(np.ascontiguousarray(array, "<i8").tobytes())
        return digest.hexdigest()
