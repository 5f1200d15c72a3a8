"""The protocols of test-time adaptation: what each segment of a stream shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from spear_hf.data.correlated import correlated_order
from spear_hf.data.domains import Domain, parse_domain
from spear_hf.data.schedule import Draw, Plan, Pool, Segment, order_rng
from spear_hf.errors import DataError

PROTOCOLS = ("single", "continual", "gradual", "mixed", "correlated")


@dataclass(frozen=True)
class DomainByDomain:
    """The whole pool under one domain after the other, in the same order under each (single, continual, gradual).

    Args:
        pool: the images.
        visits: the domains in order; one may come several times.
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
class Mixed:
    """Every image under every domain, all shuffled into each other: a batch shows many domains.

    Args:
        pool: the images.
        domains: as many copies of the pool.
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
class Correlated:
    """Domain by domain, with the classes of neighbouring images correlated; another order in each domain.

    Args:
        pool: the images.
        domains: one after the other.
        labels: (N,) class of each sample id.
        delta: concentration of the Dirichlet distribution: small is strongly correlated.
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


@dataclass(frozen=True)
class Journey:
    """A schedule of one's own: stretches of domains, over which the pool runs on, reshuffled at each pass.

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
        images, places = np.divmod(np.arange(before, before + length), self.pool.limit)
        ids = np.concatenate(
            [_order(self.pool, number)[places[images == number]] for number in np.unique(images).tolist()]
        )
        return Draw(ids, np.full(length, self.domains.index(domain)))


def make_plan(
    protocol: str, pool: Pool, domains: Sequence[Domain], labels: np.ndarray | None = None, delta: float = 0.1
) -> Plan:
    """The plan of a named protocol.

    Raises:
        DataError: an unknown protocol, or one that asks for what this source does not have.
    """
    if protocol not in PROTOCOLS:
        raise DataError(f"protocol={protocol!r} is unknown; pass one of {', '.join(PROTOCOLS)}")
    if protocol in ("mixed", "correlated") and pool.window is not None:
        raise DataError(
            f"protocol={protocol!r} reads images in any order, and a streaming source cannot; pass single, continual "
            "or gradual, or load the dataset without streaming=True"
        )
    if protocol == "mixed":
        return Mixed(pool, tuple(domains))
    if protocol == "correlated":
        if labels is None:
            raise DataError(
                "protocol='correlated' orders images by class, and this source has no labels; name label_column="
            )
        if not delta > 0:
            raise DataError(f"delta={delta} is not a positive number; 0.1 is strongly correlated, 10 hardly")
        return Correlated(pool, tuple(domains), labels, delta)
    return DomainByDomain(pool, climb(domains) if protocol == "gradual" else tuple(domains))


def climb(domains: Sequence[Domain]) -> tuple[Domain, ...]:
    """Each domain reached by whole severities and left again: 1, 2, 3, 4, 5, 4, 3, 2, 1 for one at 5.

    Raises:
        DataError: a domain without one severity that is a whole number.
    """
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


def make_journey(pool: Pool, schedule: Sequence[tuple[str, int]], severity: float) -> Journey:
    """The plan of a user's own schedule: [("fog/2", 640), ("fog/2+snow/1", 640), ...].

    Raises:
        DataError: an empty schedule, or a stretch without images.
    """
    stretches = tuple((parse_domain(text, severity), int(length)) for text, length in schedule)
    short = next((f"({str(domain)!r}, {length})" for domain, length in stretches if length < 1), None)
    if not stretches or short:
        came = f"schedule holds {short}" if short else "schedule is empty"
        raise DataError(f"{came}; each entry is a domain and a number of images: ('fog/2+snow/1', 640)")
    return Journey(pool, stretches)


@lru_cache(maxsize=4)
def _order(pool: Pool, cycle: int) -> np.ndarray:
    """`pool.order(cycle)`, shared by the domains of a cycle; read-only."""
    order = pool.order(cycle)
    order.flags.writeable = False
    return order
