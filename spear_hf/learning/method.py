"""TTAMethod: the promise that every method here makes."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class TTAMethod(Protocol):
    """What every test-time adaptation method here can do."""

    def step(self, x: Tensor) -> Tensor:
        """Answer the batch with logits (B, K), then learn from it; labels never come near."""
        ...

    def reset(self) -> None:
        """Forget everything learned: the same stream after it gives the same bits."""
        ...

    def unload(self) -> nn.Module:
        """The base model, bit for bit as it came in."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """What is learned; empty where nothing is."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; raises, with nothing changed, where it does not fit."""
        ...
