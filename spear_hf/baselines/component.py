"""Component: a piece of a method that keeps hyper-parameters and state apart, so that it can be reset and resumed."""

from dataclasses import Field, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor


@dataclass
class Component:
    """A dataclass whose init fields are hyper-parameters (or further components) and whose other fields are state.

    A state field is None, a number, a tensor or a list of these; `reset` sets it to its default.

    >>> from dataclasses import dataclass, field
    >>> from spear_hf.baselines.component import Component
    >>> @dataclass
    ... class Counter(Component):
    ...     start: int = 3
    ...     count: int = field(init=False, default=0)
    >>> Counter().settings(), Counter().state_dict()
    ({'kind': 'Counter', 'start': 3}, {'count': 0})
    """

    def settings(self) -> dict[str, Any]:
        """The hyper-parameters, JSON-ready; those of inner components under their names."""
        return {"kind": type(self).__name__} | {
            f.name: value.settings() if isinstance(value := getattr(self, f.name), Component) else _plain(value)
            for f in fields(self)
            if f.init
        }

    def reset(self) -> None:
        """Set every state field back to its default."""
        for component in self._components().values():
            component.reset()
        for f in self._state():
            setattr(self, f.name, f.default_factory() if callable(f.default_factory) else f.default)

    def state_dict(self) -> dict[str, Any]:
        """A copy of the state."""
        inner = {name: component.state_dict() for name, component in self._components().items()}
        return inner | {f.name: _copied(getattr(self, f.name), None) for f in self._state()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None = None) -> None:
        """Continue from a `state_dict` of the same settings; its tensors are copied to `device`."""
        for name, component in self._components().items():
            component.load_state_dict(state[name], device)
        for f in self._state():
            setattr(self, f.name, _copied(state[f.name], device))

    def _components(self) -> dict[str, "Component"]:
        return {f.name: value for f in fields(self) if f.init and isinstance(value := getattr(self, f.name), Component)}

    def _state(self) -> list[Field[Any]]:
        return [f for f in fields(self) if not f.init]


def _copied(value: Any, device: torch.device | None) -> Any:
    if isinstance(value, list):
        return [_copied(v, device) for v in value]
    return value.detach().to(device, copy=True) if isinstance(value, Tensor) else value


def _plain(value: Any) -> Any:
    """A tuple as a list: JSON gives lists back, and settings from a file are compared with these."""
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


@dataclass
class Dice(Component):
    """A random generator with its own seed; the global generator is never used, and `reset` starts it again.

    Numbers are drawn on the CPU, so that they are the same on every device.

    Args:
        seed: of all draws.

    >>> from spear_hf.baselines.component import Dice
    >>> Dice(seed=0).permutation(4) == Dice(seed=0).permutation(4)
    True
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
        """The generator's position in its sequence."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None = None) -> None:
        """Continue from a `state_dict`; the state of a CPU generator stays on the CPU."""
        self.generator.set_state(state["generator"].cpu())
