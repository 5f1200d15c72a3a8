"""The parameters that a method learns, with the source's values, and the averaged teacher of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from spear_hf.baselines.component import Component
from spear_hf.errors import ConfigError


class ParameterSet:
    """Some parameters and their values at the start; values are lists of tensors in the order of the parameters.

    Args:
        parameters: what is learned; duplicates count once.

    Attributes:
        start: the values of the source, which `reset` goes back to.

    >>> import torch
    >>> from spear_hf.baselines.parameter_set import ParameterSet
    >>> learned = ParameterSet([torch.nn.Parameter(torch.zeros(3))])
    >>> learned.pull([torch.ones(3)], 0.25)
    >>> learned.snapshot(), learned.count
    ([tensor([0.2500, 0.2500, 0.2500])], 3)
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
        """The device of the first of them."""
        return self.parameters[0].device

    def snapshot(self) -> list[Tensor]:
        """A copy of the current values."""
        return [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def put(self, values: Sequence[Tensor]) -> None:
        """Write these values into the parameters."""
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)

    @torch.no_grad()
    def pull(self, values: Sequence[Tensor], weight: float) -> None:
        """w <- (1 - weight) w + weight value."""
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.lerp_(value, weight)

    @contextmanager
    def holding(self, values: Sequence[Tensor]) -> Iterator[None]:
        """A context in which the parameters have these values; for forwards without a graph.

        `p.data` is exchanged and nothing is written into it: a write would invalidate a graph that was built before
        and whose backward pass is still to come.
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
        """Raise ConfigError unless these values fit: the same shapes, and finite."""
        mine, found = ([tuple(v.shape) for v in several] for several in (self.parameters, values))
        if mine != found:
            raise ConfigError(
                f"this state is of another configuration ({len(found)} tensors, here {len(mine)}, or of other shapes); "
                "resume with the model it was learned on"
            )
        if not all(bool(torch.isfinite(v).all()) for v in values):
            raise ConfigError("this state holds values that are not finite; resume from an earlier one")


@dataclass
class MeanTeacher(Component):
    """A moving average of the learned parameters: t <- momentum t + (1 - momentum) w after each step.

    The teacher starts as the source.

    Args:
        momentum: in [0, 1].

    >>> import torch
    >>> from spear_hf.baselines.parameter_set import MeanTeacher, ParameterSet
    >>> learned, teacher = ParameterSet([torch.nn.Parameter(torch.zeros(2))]), MeanTeacher(0.9)
    >>> learned.put([torch.ones(2)])
    >>> teacher.maintain(learned)
    >>> teacher.values
    [tensor([0.1000, 0.1000])]
    """

    momentum: float = 0.999
    values: list[Tensor] | None = field(init=False, default=None)

    @contextmanager
    def speaking(self, learned: ParameterSet) -> Iterator[None]:
        """A context in which the model has the teacher's parameters; no graph is built."""
        with torch.no_grad(), learned.holding(self.values or learned.start):
            yield

    def maintain(self, learned: ParameterSet) -> None:
        """Move the teacher towards the learned parameters."""
        pairs = zip(self.values or learned.start, learned.parameters, strict=True)
        self.values = [t.lerp(w.detach(), 1 - self.momentum) for t, w in pairs]
