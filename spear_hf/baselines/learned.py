"""Learned: the parameters that a method moves, and the source's values of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from spear_hf.errors import ConfigError


class ParameterSet:
    """Some parameters and what they were at the start; values come and go as lists in the same order.

    Args:
        parameters: without duplicates.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list({id(p): p for p in parameters}.values())
        self.start = self.snapshot()

    @property
    def count(self) -> int:
        """How many numbers are learned."""
        return sum(p.numel() for p in self.parameters)

    @property
    def device(self) -> torch.device:
        """Where the first of them is."""
        return self.parameters[0].device

    def snapshot(self) -> list[Tensor]:
        """A copy of the present values."""
        return [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def put(self, values: Sequence[Tensor]) -> None:
        """Put values in place."""
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)

    @torch.no_grad()
    def pull(self, values: Sequence[Tensor], weight: float) -> None:
        """w <- (1 - weight) w + weight value."""
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.lerp_(value, weight)

    @contextmanager
    def holding(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Inside, the parameters have these values; for forwards without a graph.

        Storage is exchanged, not written: a graph that was made before is still good for its backward pass.
        """
        own = [p.data for p in self.parameters]
        try:
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.data = value
            yield
        finally:
            for parameter, value in zip(self.parameters, own, strict=True):
                parameter.data = value

    def check(self, values: Sequence[Tensor]) -> None:
        """Raise ConfigError unless these could be put here: the same shapes, and finite."""
        mine, found = ([tuple(v.shape) for v in several] for several in (self.parameters, values))
        if mine != found:
            raise ConfigError(
                f"this state is of another configuration ({len(found)} tensors, here {len(mine)}, or of other shapes); "
                "resume with the model it was learned on"
            )
        if not all(bool(torch.isfinite(v).all()) for v in values):
            raise ConfigError("this state holds values that are not finite; resume from an earlier one")
