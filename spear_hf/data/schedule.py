"""Which images are shown, in which order, under which corruption: batch g of a stream is a pure function of g.

No image is read here. A Plan says what each segment of a stream shows; a Schedule cuts the segments into batches.
"""

from bisect import bisect_right
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np

from spear_hf.data.domains import Domain
from spear_hf.errors import DataError

ORDER_VERSION = "v1"  # any change to an order needs a new version


def order_rng(seed: int, *purpose: str | int) -> np.random.Generator:
    """The random generator of one order: a function of its arguments only.

    >>> from spear_hf.data.schedule import order_rng
    >>> order_rng(0, "order").permutation(5).tolist()
    [2, 4, 3, 0, 1]
    """
    text = f"spear-order/{ORDER_VERSION}|{seed}|" + "|".join(map(str, purpose))
    key = np.frombuffer(blake2b(text.encode(), digest_size=16).digest(), np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


@dataclass(frozen=True)
class Pool:
    """The images that every domain of a stream shows: `limit` of the `size` images of a source, in a seeded order.

    >>> from spear_hf.data.schedule import Pool
    >>> Pool(size=5, limit=3, seed=0, shuffle=False).order().tolist()
    [0, 1, 2]

    Args:
        size: number of images in the source.
        limit: number of images that are shown: a random sample, or the first ones if `shuffle` is False.
        seed: of the sample and of the order.
        shuffle: True for a random order, False for the order of the source.
        window: number of consecutive images that the source can hold at once. The first `limit` images are then shown,
            and shuffled inside each window. None if the source can be read in any order.
    """

    size: int
    limit: int
    seed: int
    shuffle: bool = True
    window: int | None = None

    def order(self, cycle: int = 0) -> np.ndarray:
        """(limit,) int64 sample ids; every cycle shows the same images in another order."""
        if not self.shuffle:
            return np.arange(self.limit)
        if self.window is not None:
            rng = order_rng(self.seed, "window", self.window, cycle)
            windows = np.split(np.arange(self.limit), range(self.window, self.limit, self.window))
            return np.concatenate([rng.permutation(window) for window in windows])
        first = order_rng(self.seed, "order").permutation(self.size)[: self.limit]
        return first if cycle == 0 else order_rng(self.seed, "order", cycle).permutation(first)


class Segment(NamedTuple):
    """A part of a stream; a batch never spans two segments. The protocol "single" resets a method before each.

    >>> from spear_hf.data.schedule import Segment
    >>> Segment("fog/5", 640).length
    640
    """

    domain: str
    length: int  # images


class Draw(NamedTuple):
    """What a segment shows, image by image.

    >>> import numpy as np
    >>> from spear_hf.data.schedule import Draw
    >>> len(Draw(ids=np.arange(3), domains=np.zeros(3, np.int64)).ids)
    3
    """

    ids: np.ndarray  # (n,) int64, sample ids of the source
    domains: np.ndarray  # (n,) int64, indices into the domains of the plan


class Plan(Protocol):
    """A protocol of test-time adaptation: the segments of one cycle and what each shows, as a pure function.

    >>> from spear_hf.data.protocols import make_plan
    >>> from spear_hf.data.schedule import Pool
    >>> make_plan("single", Pool(5, 3, seed=0, shuffle=False), []).segments
    ()
    """

    @property
    def domains(self) -> tuple[Domain, ...]: ...

    @property
    def segments(self) -> tuple[Segment, ...]: ...

    def draw(self, cycle: int, segment: int) -> Draw: ...


class BatchPlan(NamedTuple):
    """Batch `number` of a stream, before any image is read.

    >>> import numpy as np
    >>> from spear_hf.data.schedule import BatchPlan
    >>> plan = BatchPlan(0, 0, "fog/5", True, ids=np.arange(5), domains=np.zeros(5, np.int64))
    >>> [plan.part(rank, 2).ids.tolist() for rank in range(2)]
    [[0, 1], [2, 3, 4]]
    """

    number: int
    position: int  # of its first image, counted from the start of the stream
    domain: str
    is_domain_start: bool
    ids: np.ndarray
    domains: np.ndarray

    def part(self, rank: int, world: int) -> "BatchPlan":
        """The consecutive images of process `rank` of `world`; sizes differ by at most one, and may be 0."""
        start, stop = len(self.ids) * rank // world, len(self.ids) * (rank + 1) // world
        cut = {"ids": self.ids[start:stop], "domains": self.domains[start:stop], "position": self.position + start}
        return self._replace(**cut)


class Schedule:
    """A plan that is cut into batches; the last batch of a segment holds what is left.

    >>> from spear_hf.data.domains import Domain
    >>> from spear_hf.data.protocols import make_plan
    >>> from spear_hf.data.schedule import Pool, Schedule
    >>> schedule = Schedule(make_plan("single", Pool(5, 5, seed=0), [Domain((("fog", 5.0),))]), batch_size=2)
    >>> [len(schedule.batch(number).ids) for number in range(3)]
    [2, 2, 1]

    Args:
        plan: what each segment shows.
        batch_size: images in a batch, over all processes.
        cycles: number of passes over the plan; None is endless.

    Raises:
        DataError: a batch size or a number of cycles below 1.
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
        self._last: tuple[tuple[int, int], Draw] | None = None  # the last draw is kept: many batches are cut from it

    @property
    def num_batches(self) -> int | None:
        """Number of batches; None for an endless stream."""
        return None if self.cycles is None else self.cycles * self._first_batch[-1]

    @property
    def images_per_cycle(self) -> int:
        """Number of images in one cycle, over all domains."""
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
        """A hash of every (sample id, domain) of a cycle: equal for the same images in the same order."""
        digest = blake2b(repr([str(domain) for domain in self.domains]).encode(), digest_size=8)
        for segment in range(len(self.segments)):
            for array in self.plan.draw(0, segment):
                digest.update(np.ascontiguousarray(array, "<i8").tobytes())
        return digest.hexdigest()
