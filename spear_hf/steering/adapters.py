"""The adapters of one model: name -> boundary key -> RSP."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from spear_hf.boundaries import Boundary
from spear_hf.errors import AdapterLoadError, AdapterNotFoundError
from spear_hf.steering.rsp import RSP


class Adapters(nn.ModuleDict):
    """Named adapters, each a ModuleDict of RSPs; their states can be copied out and put back in place."""

    def add(self, name: str, boundaries: Iterable[Boundary], device: torch.device) -> None:
        """A new adapter at the identity."""
        self[name] = nn.ModuleDict({b.key: RSP(b.channels, b.channel_axis).to(device) for b in boundaries})

    def of(self, name: str) -> nn.ModuleDict:
        """The adapter of this name; AdapterNotFoundError where there is none."""
        if name not in self:
            raise AdapterNotFoundError(f"no adapter {name!r} here; there are {sorted(self)}; add_adapter makes one")
        adapter = self[name]
        assert isinstance(adapter, nn.ModuleDict)
        return adapter

    def rsps(self, name: str, boundaries: Iterable[Boundary]) -> dict[int, list[RSP]]:
        """depth -> the RSPs of one adapter; several where a boundary is several tensors."""
        adapter = self.of(name)
        by_depth: dict[int, list[RSP]] = {}
        for boundary in boundaries:
            if boundary.key in adapter:
                rsp = adapter[boundary.key]
                assert isinstance(rsp, RSP)
                by_depth.setdefault(boundary.depth, []).append(rsp)
        return by_depth

    def snapshot(self, name: str) -> dict[str, Tensor]:
        """A copy of one adapter's state: "<boundary key>.gamma" and "<boundary key>.beta" -> (C,)."""
        return {key: value.detach().clone() for key, value in self.of(name).state_dict().items()}

    @torch.no_grad()
    def restore(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Put a state back, in place; AdapterLoadError, with nothing changed, for other keys or shapes."""
        own = self.of(name).state_dict()
        wanted, given = ({key: tuple(value.shape) for key, value in s.items()} for s in (own, state))
        if wanted != given:  # copy_ would broadcast
            raise AdapterLoadError(f"a state of {given} does not fit adapter {name!r}, which has {wanted}")
        for key, value in state.items():
            own[key].copy_(value)
