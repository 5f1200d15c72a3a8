"""The protocols of test-time adaptation: what each segment of a stream shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from spear_hf.data.domains import Domain, parse_domain
from spear_hf.data.schedule import Draw, Plan, Pool, Segment, order_rng
from spear_hf.errors import DataError

PROTOCOLS = ("single", "continual", "gradual", "mixed", "correlated")


def make_plan(
    protocol: str, pool: Pool, domains: Sequence[Domain], labels: np.ndarray | None = None, delta: float = 0.1
) -> Plan:
    """The plan of a named protocol.

    >>> from spear_hf.data.domains import Domain
    >>> from spear_hf.data.protocols import make_plan
    >>> from spear_hf.data.schedule import Pool
    >>> plan = make_plan("gradual", Pool(100, 100, seed=0), [Domain((("fog", 2.0),))])
    >>> [segment.domain for segment in plan.segments]
    ['fog/1', 'fog/2', 'fog/1']

    Args:
        protocol: one of PROTOCOLS.
        pool: the images.
        domains: in order.
        labels: (N,) class of each sample id; only "correlated" needs them.
        delta: concentration of "correlated"; see `correlated_order`.

    Raises:
        DataError: an unknown protocol, or one that this source does not allow.
    """
    if protocol not in PROTOCOLS:
        raise DataError(f"protocol={protocol!r} is unknown; pass one of {', '.join(PROTOCOLS)}")
    if protocol in ("mixed", "correlated") and pool.window is not None:
        raise DataError(
            f"protocol={protocol!r} reads images in any order, and a streaming source cannot; pass single, continual "
            "or gradual, or load the dataset without streaming=True"
        )
    if protocol == "mixed":
        return MixedDomains(pool, tuple(domains))
    if protocol == "correlated":
        if labels is None:
            raise DataError(
                "protocol='correlated' orders images by class, and this source has no labels; pass label_column="
            )
        if not delta > 0:
            raise DataError(f"delta={delta} is not a positive number; 0.1 is strong correlation, 10 is weak")
        return CorrelatedClasses(pool, tuple(domains), labels, delta)
    return DomainByDomain(pool, _rise_and_fall(domains) if protocol == "gradual" else tuple(domains))


def make_custom_plan(pool: Pool, schedule: Sequence[tuple[str, int]], severity: float) -> "CustomDomains":
    """The plan of a user's own schedule.

    >>> from spear_hf.data.protocols import make_custom_plan
    >>> from spear_hf.data.schedule import Pool
    >>> plan = make_custom_plan(Pool(100, 100, seed=0), [("fog/2", 640), ("fog/2+snow/1", 320)], severity=5)
    >>> plan.segments[1]
    Segment(domain='fog/2+snow/1', length=320)

    Args:
        pool: the images.
        schedule: (domain, number of images), in order.
        severity: of the corruptions without a severity.

    Raises:
        DataError: an empty schedule, or an entry without images.
    """
    stretches = tuple((parse_domain(text, severity), int(length)) for text, length in schedule)
    short = next((f"({str(domain)!r}, {length})" for domain, length in stretches if length < 1), None)
    if not stretches or short:
        came = f"schedule holds {short}" if short else "schedule is empty"
        raise DataError(f"{came}; each entry is a domain and a number of images: ('fog/2+snow/1', 640)")
    return CustomDomains(pool, stretches)


@dataclass(frozen=True)
class DomainByDomain:
    """All images of the pool under one domain after another, each time in the same order (single, continual, gradual).

    >>> from spear_hf.data.domains import CLEAN
    >>> from spear_hf.data.protocols import DomainByDomain
    >>> from spear_hf.data.schedule import Pool
    >>> DomainByDomain(Pool(5, 3, seed=0, shuffle=False), (CLEAN,)).draw(cycle=0, segment=0).ids.tolist()
    [0, 1, 2]

    Args:
        pool: the images.
        visits: the domains in order; a domain may be repeated.
    """

    pool: Pool
    visits: tuple[Domain, ...]

    @property
    def domains(self) -> tuple[Domain, ...]:
        return tuple(dict.fromkeys(self.visits))

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(Segment(str(domain), self.pool.limit) for domain in self.visits)

    def draw(self, cycle: int, segment: int) -> Draw:
        ids = _order(self.pool, cycle)
        return Draw(ids, np.full(len(ids), self.domains.index(self.visits[segment])))


@dataclass(frozen=True)
class MixedDomains:
    """Every image under every domain, all shuffled together: a batch shows many domains.

    >>> from spear_hf.data.domains import parse_domain
    >>> from spear_hf.data.protocols import MixedDomains
    >>> from spear_hf.data.schedule import Pool
    >>> MixedDomains(Pool(5, 3, seed=0), (parse_domain("fog", 5), parse_domain("snow", 5))).segments
    (Segment(domain='mixed', length=6),)

    Args:
        pool: the images.
        domains: all domains of the stream.
    """

    pool: Pool
    domains: tuple[Domain, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        return (Segment("mixed", self.pool.limit * len(self.domains)),)

    def draw(self, cycle: int, segment: int) -> Draw:
        pairs = order_rng(self.pool.seed, "mixed", len(self.domains), cycle).permutation(self.segments[0].length)
        domains, places = np.divmod(pairs, self.pool.limit)
        return Draw(_order(self.pool, 0)[places], domains)


@dataclass(frozen=True)
class CorrelatedClasses:
    """Domain by domain, with images of a class near each other; the order differs between domains.

    >>> import numpy as np
    >>> from spear_hf.data.domains import CLEAN
    >>> from spear_hf.data.protocols import CorrelatedClasses
    >>> from spear_hf.data.schedule import Pool
    >>> plan = CorrelatedClasses(Pool(6, 6, seed=0), (CLEAN,), labels=np.array([0, 1, 0, 1, 0, 1]), delta=0.1)
    >>> sorted(plan.draw(cycle=0, segment=0).ids.tolist())
    [0, 1, 2, 3, 4, 5]

    Args:
        pool: the images.
        domains: in order.
        labels: (N,) class of each sample id.
        delta: concentration of the Dirichlet distribution; see `correlated_order`.
    """

    pool: Pool
    domains: tuple[Domain, ...]
    labels: np.ndarray
    delta: float

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(Segment(str(domain), self.pool.limit) for domain in self.domains)

    def draw(self, cycle: int, segment: int) -> Draw:
        rng = order_rng(self.pool.seed, "correlated", f"{self.delta:g}", cycle, segment)
        ids = _order(self.pool, 0)
        ids = ids[correlated_order(self.labels[ids], self.delta, rng)]
        return Draw(ids, np.full(len(ids), segment))


def correlated_order(labels: np.ndarray, delta: float, rng: np.random.Generator) -> np.ndarray:
    """(n,) int64, a permutation of the positions in `labels`: near images are of few classes, as in a camera's video.

    There are as many time slots as classes. The images of a class are distributed over the slots in shares drawn from
    Dirichlet(delta, ..., delta). Inside a slot, one class follows another in a random order.

    >>> import numpy as np
    >>> from spear_hf.data.protocols import correlated_order
    >>> labels = np.array([0, 1, 0, 1, 0, 1])
    >>> labels[correlated_order(labels, 0.01, np.random.default_rng(0))].tolist()
    [0, 0, 0, 1, 1, 1]

    Args:
        labels: (n,) class of each image.
        delta: 0.1 gives long runs of a class; with 10, each slot holds nearly equal shares of all classes.
        rng: of the shares and of the order of classes.
    """
    classes = np.unique(labels)
    slots: list[list[np.ndarray]] = [[] for _ in classes]
    for label in classes:
        members = np.flatnonzero(labels == label)
        shares = rng.dirichlet(np.full(len(slots), delta))
        cuts = np.round(np.cumsum(shares[:-1]) * len(members)).astype(np.int64)
        for slot, part in zip(slots, np.split(members, cuts), strict=True):
            slot.append(part)
    return np.concatenate([slot[k] for slot in slots for k in rng.permutation(len(slot))])


@dataclass(frozen=True)
class CustomDomains:
    """A user's own schedule of domains; each continues in the pool where the last one stopped.

    The pool is shuffled again after each pass.

    >>> from spear_hf.data.domains import CLEAN
    >>> from spear_hf.data.protocols import CustomDomains
    >>> from spear_hf.data.schedule import Pool
    >>> CustomDomains(Pool(3, 3, seed=0, shuffle=False), ((CLEAN, 2), (CLEAN, 4))).draw(cycle=0, segment=1).ids.tolist()
    [2, 0, 1, 2]

    Args:
        pool: the images.
        stretches: (domain, number of images), in order.
    """

    pool: Pool
    stretches: tuple[tuple[Domain, int], ...]

    @property
    def domains(self) -> tuple[Domain, ...]:
        return tuple(dict.fromkeys(domain for domain, _ in self.stretches))

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(Segment(str(domain), length) for domain, length in self.stretches)

    def draw(self, cycle: int, segment: int) -> Draw:
        domain, length = self.stretches[segment]
        before = sum(n for _, n in self.stretches[:segment]) + cycle * sum(n for _, n in self.stretches)
        passes, places = np.divmod(np.arange(before, before + length), self.pool.limit)
        ids = np.concatenate(
            [_order(self.pool, number)[places[passes == number]] for number in np.unique(passes).tolist()]
        )
        return Draw(ids, np.full(length, self.domains.index(domain)))


def _rise_and_fall(domains: Sequence[Domain]) -> tuple[Domain, ...]:
    """Each domain through all whole severities and back: 1, 2, 3, 4, 5, 4, 3, 2, 1 for one at severity 5."""
    visits: list[Domain] = []
    for domain in domains:
        if len(domain.steps) != 1 or not domain.steps[0][1].is_integer():
            raise DataError(
                f"protocol='gradual' climbs whole severities of one corruption; {domain} has none: leave it out"
            )
        ((name, top),) = domain.steps
        levels = [*range(1, int(top)), *range(int(top), 0, -1)]
        visits += [Domain(((name, float(level)),)) for level in levels]
    return tuple(visits)


@lru_cache(maxsize=4)
def _order(pool: Pool, cycle: int) -> np.ndarray:
    """`pool.order(cycle)`, read-only, because all domains of a cycle share it."""
    order = pool.order(cycle)
    order.flags.writeable = False
    return order
