"""Part: a piece of a method that knows hyper-parameters from state, and can forget, save and resume the latter."""

from dataclasses import Field, dataclass, fields
from typing import Any

import torch
from torch import Tensor


@dataclass
class Part:
    """A dataclass whose init fields are hyper-parameters (or further parts) and whose other fields are state.

    State is None, a number, a tensor or a list of these; its default is what `reset` goes back to.
    """

    def settings(self) -> dict[str, Any]:
        """The hyper-parameters, JSON-ready; those of inner parts under their names."""
        return {"kind": type(self).__name__} | {
            f.name: value.settings() if isinstance(value := getattr(self, f.name), Part) else _plain(value)
            for f in fields(self)
            if f.init
        }

    def reset(self) -> None:
        """Forget: every state field back to its default."""
        for part in self._parts().values():
            part.reset()
        for f in self._state():
            setattr(self, f.name, f.default_factory() if callable(f.default_factory) else f.default)

    def state_dict(self) -> dict[str, Any]:
        """A copy of the state."""
        inner = {name: part.state_dict() for name, part in self._parts().items()}
        return inner | {f.name: _copied(getattr(self, f.name), None) for f in self._state()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None = None) -> None:
        """Go on from a `state_dict` of the same settings; its tensors go to `device`."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name], device)
        for f in self._state():
            setattr(self, f.name, _copied(state[f.name], device))

    def _parts(self) -> dict[str, "Part"]:
        return {f.name: value for f in fields(self) if f.init and isinstance(value := getattr(self, f.name), Part)}

    def _state(self) -> list[Field[Any]]:
        return [f for f in fields(self) if not f.init]


def _copied(value: Any, device: torch.device | None) -> Any:
    if isinstance(value, list):
        return [_copied(v, device) for v in value]
    return value.detach().to(device, copy=True) if isinstance(value, Tensor) else value


def _plain(value: Any) -> Any:
    """Tuples come back from a file as lists, so they are compared as lists."""
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value
