"""A mixed batch: each image steered by the adapter that was named for it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from spear_hf.errors import InputError
from spear_hf.steering.rsp import RSP, check_channels, steer


class RowRSPs:
    """z'[b, c, m] = gamma_b[c] z[b, c, m] + beta_b[c], with an RSP of its own for every row b of the batch.

    Args:
        rows: one RSP for each image; None leaves its image alone. At least one is an RSP.
    """

    def __init__(self, rows: Sequence[RSP | None]) -> None:
        self.rows = rows
        self.some = next(rsp for rsp in rows if rsp is not None)

    @property
    def gamma(self) -> Tensor:
        """One of the gammas: it says where they are."""
        return self.some.gamma

    def to(self, device: torch.device) -> None:
        """Move every RSP."""
        for rsp in self.rows:
            if rsp is not None:
                rsp.to(device)

    def __call__(self, z: Tensor) -> Tensor:
        """The steered representation, of z's shape and dtype; a row without an RSP comes out bit for bit."""
        if len(z) != len(self.rows):
            raise InputError(
                f"adapter_names has {len(self.rows)} entries, and a boundary sees a batch of {len(z)}; give one name "
                "for each image of the batch"
            )
        check_channels(z, self.some.channels, self.some.channel_axis)
        gamma = torch.stack([torch.ones_like(self.gamma) if rsp is None else rsp.gamma for rsp in self.rows])
        beta = torch.stack([torch.zeros_like(self.gamma) if rsp is None else rsp.beta for rsp in self.rows])
        return steer(z, gamma, beta, self.some.channel_axis)
