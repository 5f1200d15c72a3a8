"""GuardPolicy: how far a method may go before it is stopped, in one frozen dataclass; JSON in and out."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from spear_hf.errors import ConfigError
from spear_hf.utils.validation import check_count, check_range, from_mapping, json_object, stable_json


@dataclass(frozen=True)
class GuardPolicy:
    """What is tolerated, and for how long; the defaults were chosen on held-out images (benchmarks/results/guard.md).

    Numbers are checked when the object is made; a wrong one raises ConfigError and says what is allowed.

    Args:
        margin: how much more often than the source the method may be wrong, as a fraction of the answers, by what the
            two of them believe (`Evidence.regret`).
        max_entropy_rise: by how much the answers may be less sure than the source's on the same images, in [0, 1].
        patience: by how many shadow images either may be exceeded, summed up, before the source takes over.
        shadow: the fraction of the images that the source answers too, one of every round(1 / shadow), but at least one
            of a full batch; all of them while one of the two sums is not below half the patience, where both begin.
        pool: how many of these wait for one forward of the source together.
        memory: over how many shadow images the class histograms are taken, and within how many steps of its last answer
            a finding is met by a harder one.
        max_collapse: by how much the classes answered may be less varied than the source's, in [0, 1]: the difference
            of the normalised entropies of the two class histograms.
        max_drift: how far the parameters may go; for RSPs the root mean square of gamma - 1 and beta over the channels,
            for others ||theta - theta_0|| / ||theta_0||.
        domain_change: by how many standard deviations the pixel statistics of a batch jump when the domain changes.
        on_domain_change: "reset" forgets what the last domain taught, "note" only says so. Where the source answers,
            the method is tried again in both cases.
        bad_pixels: "repair" answers images that hold NaN or infinity with these pixels at 0, the processor's mean
            colour, and learns nothing from their batch; "refuse" raises InputError, as every method here does.
        snapshot_every: steps between two snapshots to roll back to.
        wait: steps for which the source answers before the method is tried again; doubled each time it fails.
        max_wait: the longest such wait.
        trial: steps for which a method that is tried again learns in the dark, while the source still answers.
    """

    margin: float = 0.02
    max_entropy_rise: float = 0.15
    patience: float = 1.0
    shadow: float = 1 / 16
    pool: int = 8
    memory: int = 64
    max_collapse: float = 0.3
    max_drift: float = 0.5
    domain_change: float = 6.0
    on_domain_change: Literal["reset", "note"] = "note"
    bad_pixels: Literal["repair", "refuse"] = "repair"
    snapshot_every: int = 16
    wait: int = 8
    max_wait: int = 1024
    trial: int = 16

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            check_range(self, name, low, high)
        for name in ("pool", "memory", "snapshot_every", "wait", "max_wait", "trial"):
            check_count(self, name)
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name}={getattr(self, name)!r} is not allowed; choose {' or '.join(allowed)}")
        if self.max_wait < self.wait:
            raise ConfigError(f"max_wait={self.max_wait} is below wait={self.wait}; make it at least as long")

    @property
    def stride(self) -> int:
        """One image in so many is a shadow image."""
        return round(1 / self.shadow)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        return asdict(self)

    def to_json(self) -> str:
        """The same policy always gives the same text: sorted keys, two spaces, a final newline."""
        return stable_json(self.to_dict())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "GuardPolicy":
        """The policy in a dictionary; an unknown key raises ConfigError and names the nearest one."""
        return from_mapping(cls, data)

    @classmethod
    def from_json(cls, text: str) -> "GuardPolicy":
        """The policy in a JSON object, as `to_json` writes it."""
        return from_mapping(cls, json_object(cls, text))


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("margin", 0.0, 1.0),
    ("patience", 0.0, math.inf),
    ("shadow", 1e-4, 1.0),
    ("max_collapse", 0.0, 1.0),
    ("max_drift", 0.0, math.inf),
    ("max_entropy_rise", 0.0, 1.0),
    ("domain_change", 0.0, math.inf),
)

_CHOICES = {"on_domain_change": ("reset", "note"), "bad_pixels": ("repair", "refuse")}
