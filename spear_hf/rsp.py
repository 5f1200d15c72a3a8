"""The Representation Steering Primitive: a per-channel scale and shift of one stage output (Eq. 3)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from spear_hf.errors import UnsupportedOutputError


class RSP(nn.Module):
    """RSP(z)[b, c, m] = gamma[c] * z[b, c, m] + beta[c], identity at the start (Eq. 3).

    The parameters stay fp32 whatever the model is cast to: a bf16 gamma near 1 would lose every step below 0.0078.
    The product is taken in fp32 and cast back, so the identity is exact in bf16 and fp16 too.

    Args:
        channels: C, the length of gamma (C,) and beta (C,).
        channel_axis: the axis of z that holds the channels, counted from the end of the shape where negative.
    """

    gamma: nn.Parameter
    beta: nn.Parameter

    def __init__(self, channels: int, channel_axis: int) -> None:
        super().__init__()
        self.channels = channels
        self.channel_axis = channel_axis
        self.gamma = nn.Parameter(torch.ones(channels, dtype=torch.float32))
        self.beta = nn.Parameter(torch.zeros(channels, dtype=torch.float32))

    def forward(self, z: Tensor) -> Tensor:
        """The steered representation, of z's shape, dtype and memory format."""
        self.check(z)
        shape = [1] * z.dim()
        shape[self.channel_axis] = self.channels
        gamma, beta = self.gamma.view(shape), self.beta.view(shape)
        if z.dtype == torch.float64:  # a double-precision model is asked for to be exact: do not round it to fp32
            return torch.addcmul(beta.double(), z, gamma.double())
        return torch.addcmul(beta, z.float(), gamma).to(z.dtype)

    def check(self, z: Tensor) -> None:
        """Raise UnsupportedOutputError unless z has this RSP's channels on its axis."""
        axis = self.channel_axis
        if not -z.dim() <= axis < z.dim() or z.shape[axis] != self.channels:  # broadcasting would answer all the same
            raise UnsupportedOutputError(
                f"an RSP of {self.channels} channels on axis {axis} met a tensor of shape {tuple(z.shape)}; "
                "the adapter is of another base, or its boundary names another axis"
            )

    def deviation(self) -> Tensor:
        """||gamma - 1||^2 + ||beta||^2, the squared distance from the identity (one depth's part of Eq. 9)."""
        return (self.gamma - 1).square().sum() + self.beta.square().sum()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Back to the identity, in place: optimizers and compiled graphs keep their references."""
        self.gamma.fill_(1.0)
        self.beta.zero_()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "RSP":  # .half(), .to(torch.bfloat16)
        """Follow the model's device but never its dtype."""

        def keep_fp32(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == torch.float32 else tensor.to(moved.device)

        super()._apply(keep_fp32, recurse)
        return self

    def extra_repr(self) -> str:
        return f"channels={self.channels}, channel_axis={self.channel_axis}"
