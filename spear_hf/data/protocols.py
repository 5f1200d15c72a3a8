"""The protocols of test-time adaptation: what each segment of a stream shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from spear_hf.data.domains import Domain
from spear_hf.data.schedule import Draw, Plan, Pool, Segment
from spear_hf.errors import DataError

PROTOCOLS = ("single", "continual")


def make_plan(protocol: str, pool: Pool, domains: Sequence[Domain]) -> Plan:
    """The plan of a named protocol.

    Raises:
        DataError: an unknown protocol.
    """
    if protocol in ("single", "continual"):
        return DomainByDomain(pool, tuple(domains))
    raise DataError(f"protocol={protocol!r} is unknown; pass one of {', '.join(PROTOCOLS)}")


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
        ids = _cached_order(self.pool, cycle)
        return Draw(ids, np.full(len(ids), self.domains.index(self.visits[segment])))


@lru_cache(maxsize=4)
def _cached_order(pool: Pool, cycle: int) -> np.ndarray:
    """`pool.order(cycle)`, kept while a segment is cut into batches; read-only."""
    order = pool.order(cycle)
    order.flags.writeable = False
    return order
