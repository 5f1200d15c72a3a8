"""The Representation Steering Primitive (RSP): a per-channel scale and shift of one stage output (Eq. 3)."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spear_hf.boundaries import Boundary
from spear_hf.errors import AdapterLoadError, AdapterNotFoundError, UnsupportedOutputError


def steer(z: Tensor, gamma: Tensor, beta: Tensor, channel_axis: int) -> Tensor:
    """gamma * z + beta, with gamma and beta (C,) along one axis of z, or (B, C) along it and the batch (Eq. 3).

    The product is taken in fp32 and cast back, so the identity is exact in bf16 and fp16 too. Double-precision inputs
    stay in float64.

    >>> import torch
    >>> z = torch.ones(2, 3, 4, 4)
    >>> float(steer(z, torch.full((3,), 2.0), torch.full((3,), 0.5), channel_axis=1).mean())
    2.5
    """
    shape = [1] * z.dim()
    shape[channel_axis] = gamma.shape[-1]
    if gamma.dim() == 2:
        shape[0] = len(gamma)
    wide = torch.promote_types(z.dtype, torch.float32)
    return torch.addcmul(beta.view(shape).to(wide), z.to(wide), gamma.view(shape).to(wide)).to(z.dtype)


def check_channels(z: Tensor, channels: int, axis: int) -> None:
    """Raise UnsupportedOutputError unless z has `channels` on `axis`: broadcasting would hide the mistake.

    >>> import torch
    >>> check_channels(torch.zeros(2, 8, 4, 4), 8, axis=1)
    """
    if not -z.dim() <= axis < z.dim() or z.shape[axis] != channels:
        raise UnsupportedOutputError(
            f"an RSP of {channels} channels on axis {axis} met a tensor of shape {tuple(z.shape)}; "
            "the adapter is of another base, or its boundary names another axis"
        )


class RSPValues(NamedTuple):
    """gamma and beta of one RSP, (C,) each, or of the same RSP in S streams, (S, C) each."""

    gamma: Tensor
    beta: Tensor

    def deviation(self) -> Tensor:
        """||gamma - 1||^2 + ||beta||^2: a scalar, or (S,) (one depth's part of Eq. 9)."""
        return (self.gamma - 1).square().sum(-1) + self.beta.square().sum(-1)


class RSP(nn.Module):
    """RSP(z)[b, c, m] = gamma[c] * z[b, c, m] + beta[c], identity at the start (Eq. 3).

    The parameters stay fp32 whatever the model is cast to: a bf16 gamma near 1 would lose every step below 0.0078.

    Args:
        channels: C, the length of gamma (C,) and beta (C,).
        channel_axis: the axis of z that holds the channels, counted from the end of the shape where negative.

    >>> import torch
    >>> rsp, z = RSP(channels=8, channel_axis=1), torch.randn(2, 8, 4, 4)
    >>> torch.equal(rsp(z), z)  # the identity, to the bit
    True
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


class Adapters(nn.ModuleDict):
    """Named adapters: name -> boundary key -> RSP; their states can be copied out and put back in place.

    >>> import torch
    >>> from spear_hf import Boundary
    >>> adapters = Adapters()
    >>> adapters.add("fog", [Boundary(0, "stem", "conv1", channels=8)], torch.device("cpu"))
    >>> sorted(adapters.snapshot("fog"))
    ['0.beta', '0.gamma']
    """

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

    def rsp(self, name: str, key: str) -> RSP | None:
        """The RSP that one adapter has at a boundary."""
        adapter = self.of(name)
        if key not in adapter:
            return None
        rsp = adapter[key]
        assert isinstance(rsp, RSP)
        return rsp

    def composed(self, names: Iterable[str], key: str) -> tuple[RSP, ...]:
        """The RSPs that these adapters have at a boundary, in their order."""
        found = (self.rsp(name, key) for name in names)
        return tuple(rsp for rsp in found if rsp is not None)

    def rsps(self, name: str, boundaries: Iterable[Boundary]) -> dict[int, list[RSP]]:
        """depth -> the RSPs of one adapter; several where a boundary is several tensors."""
        by_depth: dict[int, list[RSP]] = {}
        for boundary in boundaries:
            if (rsp := self.rsp(name, boundary.key)) is not None:
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
