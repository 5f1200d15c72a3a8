"""The Representation Steering Primitive: a per-channel scale and shift of one stage output (Eq. 3)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from spear_hf.errors import UnsupportedOutputError


def steer(z: Tensor, gamma: Tensor, beta: Tensor, channel_axis: int) -> Tensor:
    """gamma * z + beta, with gamma and beta (C,) along one axis of z, or (B, C) along it and the batch (Eq. 3).

    The product is taken in fp32 and cast back, so the identity is exact in bf16 and fp16 too; a double-precision model
    is asked for to be exact, and is not rounded to fp32.
    """
    shape = [1] * z.dim()
    shape[channel_axis] = gamma.shape[-1]
    if gamma.dim() == 2:
        shape[0] = len(gamma)
    wide = torch.promote_types(z.dtype, torch.float32)
    return torch.addcmul(beta.view(shape).to(wide), z.to(wide), gamma.view(shape).to(wide)).to(z.dtype)


def check_channels(z: Tensor, channels: int, axis: int) -> None:
    """Raise UnsupportedOutputError unless z has `channels` on `axis`: broadcasting would answer all the same."""
    if not -z.dim() <= axis < z.dim() or z.shape[axis] != channels:
        raise UnsupportedOutputError(
            f"an RSP of {channels} channels on axis {axis} met a tensor of shape {tuple(z.shape)}; "
            "the adapter is of another base, or its boundary names another axis"
        )


class RSP(nn.Module):
    """RSP(z)[b, c, m] = gamma[c] * z[b, c, m] + beta[c], identity at the start (Eq. 3).

    The parameters stay fp32 whatever the model is cast to: a bf16 gamma near 1 would lose every step below 0.0078.

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
        check_channels(z, self.channels, self.channel_axis)
        return steer(z, self.gamma, self.beta, self.channel_axis)

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
