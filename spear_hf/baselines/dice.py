"""Dice: a method's own randomness, drawn on the CPU from a seed: the same on every device, and never the global one."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spear_hf.baselines.part import Part


@dataclass
class Dice(Part):
    """A seeded generator that `reset` starts again.

    Args:
        seed: of everything it draws.
    """

    seed: int = 0
    generator: torch.Generator = field(init=False, repr=False, default_factory=torch.Generator)

    def __post_init__(self) -> None:
        self.reset()

    def uniform(self, low: float, high: float) -> float:
        """One number in [low, high)."""
        return low + (high - low) * float(torch.rand((), generator=self.generator))

    def rand(self, *shape: int) -> Tensor:
        """Numbers in [0, 1), on the CPU."""
        return torch.rand(shape, generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, on the CPU."""
        return torch.randn(shape, generator=self.generator)

    def permutation(self, count: int) -> list[int]:
        """0..count-1 in a random order."""
        return torch.randperm(count, generator=self.generator).tolist()

    def reset(self) -> None:
        """Start again from the seed."""
        self.generator.manual_seed(self.seed)

    def state_dict(self) -> dict[str, Any]:
        """Where in its sequence the generator is."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None = None) -> None:
        """Go on from there; a generator's state stays on the CPU."""
        self.generator.set_state(state["generator"].cpu())
