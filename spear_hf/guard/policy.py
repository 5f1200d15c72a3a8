"""GuardPolicy: what a guard tolerates before it stops a method, in one frozen dataclass; to and from JSON."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from spear_hf.errors import ConfigError
from spear_hf.utils.validation import check_count, check_range, from_mapping, json_object, stable_json


@dataclass(frozen=True)
class GuardPolicy:
    """What a guard tolerates, and for how long; the defaults were chosen on held-out images.

    Figures for the defaults are in benchmarks/results/guard.md. Every field is checked when the object is made.

    Args:
        margin: how many more of the method's predictions than of the source's may be wrong, as a fraction of all, in
            [0, 1]. Without labels, both models' own probabilities say how many are (`Evidence.regret`).
        max_entropy_rise: how much higher the normalized entropy of the method's predictions may be than that of the
            source's on the same images, on average, in [0, 1].
        patience: how many shadow images' worth of excess over either bound, summed up, lets the source take over.
        shadow: the fraction of the images that the source answers too: one of every round(1 / shadow), and at least
            one of four batches. Until both sums are below half the patience, where they start, every image is
            compared, or 16 of a larger batch.
        pool: how many shadow images are collected for one forward of the source.
        memory: over how many shadow images the class histograms are averaged, and within how many steps of the last
            action a new finding gets a harder action.
        max_collapse: how much less varied the predicted classes may be than the source's, in [0, 1]: the difference of
            the normalized entropies of the two class histograms.
        max_drift: how far the parameters may go (`ParameterDistance`): for RSPs the root mean square of gamma - 1 and
            beta over the channels, for others ||theta - theta_0|| / ||theta_0||.
        domain_change: a jump of a batch's pixel statistics by more than this many standard deviations is a new domain.
        on_domain_change: "reset" resets the method, "note" only records the event. While the source answers, the
            method is reset and tried again in both cases.
        bad_pixels: "repair" answers images that hold NaN or infinity with these pixels at 0, the processor's mean
            colour, and learns nothing from their batch; "refuse" raises InputError, as every method does.
        snapshot_every: steps between two snapshots to roll back to.
        wait: for how many steps the source answers before the method is tried again; doubled after each failed trial.
        max_wait: the longest such wait.
        trial: for how many steps the method is tried; it learns, but the source's predictions are returned.

    Raises:
        ConfigError: a value is not allowed; the message says what is.

    >>> from spear_hf import GuardPolicy
    >>> GuardPolicy(margin=0.05).stride
    16
    """

    margin: float = 0.02
    max_entropy_rise: float = 0.15
    patience: float = 4.0
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
        """One of so many images is a shadow image."""
        return round(1 / self.shadow)

    def calibrated(self, *, entropy_rise: float, collapse: float) -> "GuardPolicy":
        """This policy with bounds half as far again as what was seen where adapting went well.

        >>> from spear_hf import GuardPolicy
        >>> GuardPolicy().calibrated(entropy_rise=-0.1, collapse=0.3).max_collapse
        0.45

        Args:
            entropy_rise: the highest seen, as `max_entropy_rise` counts it.
            collapse: the largest seen, as `max_collapse` counts it.

        Returns:
            A policy whose bounds are at least a third, and at most twice, of what they are here.
        """
        seen = {"max_entropy_rise": entropy_rise, "max_collapse": collapse}
        bounds = {name: getattr(self, name) for name in seen}
        new = {name: min(max(1.5 * seen[name], bound / 3), 2 * bound, 1.0) for name, bound in bounds.items()}
        return replace(self, **{name: round(bound, 4) for name, bound in new.items()})

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        return asdict(self)

    def to_json(self) -> str:
        """The same policy always gives the same text: sorted keys, two spaces, a final newline."""
        return stable_json(self.to_dict())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "GuardPolicy":
        """The policy in a dictionary; an unknown key raises ConfigError, which names the nearest field."""
        return from_mapping(cls, data)

    @classmethod
    def from_json(cls, text: str) -> "GuardPolicy":
        """The policy in a JSON object as `to_json` writes it."""
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
