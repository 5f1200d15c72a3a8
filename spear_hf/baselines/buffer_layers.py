"""Buffer layers: small convolutions beside a frozen base, added to its representation (Kim et al. 2025).

u <- u + alpha (s1 Conv1x1(u) + s3 Conv3x3(u) + ...)
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spear_hf.baselines.adapted_parameters import InPlace, norm_parameters
from spear_hf.baselines.component import Dice
from spear_hf.baselines.norms import use_batch_statistics
from spear_hf.baselines.optimizer_config import OptimizerConfig
from spear_hf.boundaries import Boundary, find_boundaries, select_boundaries, verify_boundaries
from spear_hf.boundaries.slots import register_at
from spear_hf.boundaries.verify import ProbeSession, shape_at
from spear_hf.errors import ConfigError

MAP_KERNELS = (1, 3)
TOKEN_KERNELS = (1, 3, 5, 7)


class BufferLayer(nn.Module):
    """u + alpha sum_k s_k Conv_k(u), each convolution from C to C channels, padded, without bias.

    Args:
        channels: C.
        kernels: their sizes.
        spatial: 2 for maps (B, C, H, W), 1 for tokens (B, C, N).
        alpha: its start value; alpha and the scales s are learned too.
        dice: draws the convolutions, from torch's own distribution.
        channel_axis: where the C channels of u are; 1, or -1 for tokens (B, N, C).

    >>> import torch
    >>> from spear_hf.baselines.buffer_layers import BufferLayer
    >>> from spear_hf.baselines.component import Dice
    >>> layer = BufferLayer(16, (1, 3), 2, 1e-4, Dice(0))
    >>> layer(torch.zeros(2, 16, 8, 8)).shape, sum(p.numel() for p in layer.parameters())
    (torch.Size([2, 16, 8, 8]), 2563)
    """

    def __init__(
        self, channels: int, kernels: Sequence[int], spatial: int, alpha: float, dice: Dice, channel_axis: int = 1
    ) -> None:
        super().__init__()
        self.kernels, self.spatial, self.channel_axis = tuple(kernels), spatial, channel_axis
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.scales = nn.Parameter(torch.full((len(self.kernels),), 1 / len(self.kernels)))
        self.convolutions = nn.ParameterList(_drawn(channels, k, spatial, dice) for k in self.kernels)

    def forward(self, u: Tensor) -> Tensor:
        """u with the convolutions added, of u's shape and dtype."""
        u = u.movedim(self.channel_axis, 1)
        convolve = F.conv2d if self.spatial == 2 else F.conv1d
        parts = [
            scale * convolve(u.to(weight.dtype), weight, padding=k // 2)
            for scale, weight, k in zip(self.scales, self.convolutions, self.kernels, strict=True)
        ]
        return (u + (self.alpha * torch.stack(parts).sum(0)).to(u.dtype)).movedim(1, self.channel_axis)


def _drawn(channels: int, kernel: int, spatial: int, dice: Dice) -> nn.Parameter:
    """Uniform in +-1 / sqrt(fan in)."""
    bound = (channels * kernel**spatial) ** -0.5
    return nn.Parameter((2 * dice.rand(channels, channels, *[kernel] * spatial) - 1) * bound)


def buffer_layers(
    model: nn.Module,
    *,
    boundaries: Sequence[int | str | Boundary] = (0,),
    alpha: float = 1e-4,
    learn_norms: bool = False,
    seed: int = 0,
) -> InPlace:
    """Buffer layers at some stage boundaries of a frozen base under batch statistics; only these layers learn.

    Args:
        model: any classifier whose boundaries are maps or tokens.
        boundaries: depths or names of `find_boundaries` (0 is the stem), or Boundary objects for other places, such as
            after the activations inside the blocks.
        alpha: how much of each layer is added at the start; published are 1e-5 for batches of 2 and 4, 1e-4 for 16,
            1e-9 for ResNet-50's stem.
        learn_norms: whether gamma and beta of the normalisation layers learn too; not so as published.
        seed: of the convolutions.

    Raises:
        ConfigError: no boundary, or one that is neither a map nor tokens; NoBoundariesError and
            BoundaryNotFoundError as for `get_spear_model`. Nothing is changed.

    >>> import timm
    >>> from spear_hf.baselines.buffer_layers import buffer_layers
    >>> buffer_layers(timm.create_model("test_resnet"), boundaries=(0,)).learned.count
    10243
    """
    chosen = _chosen(model, boundaries)
    trace, dice = ProbeSession(model, None).trace, Dice(seed)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    layers = []
    for boundary in chosen:
        spatial = len(shape_at(trace, boundary)) - 2
        if spatial not in (1, 2):
            raise ConfigError(
                f"boundary {boundary.name!r} has {spatial} axes beside batch and channels; a buffer layer needs a map "
                "(2) or tokens (1): choose other boundaries"
            )
        kernels = MAP_KERNELS if spatial == 2 else TOKEN_KERNELS
        layers.append(BufferLayer(boundary.channels, kernels, spatial, alpha, dice, boundary.channel_axis).to(device))
    parameters = [p for layer in layers for p in layer.parameters()] + (norm_parameters(model) if learn_norms else [])
    kind = {"where": "buffer", "alpha": alpha, "learn_norms": learn_norms, "seed": seed}
    kind["boundaries"] = [boundary.to_dict() for boundary in chosen]
    handles = use_batch_statistics(model)
    handles += [register_at(model, b, layer, prepend=False) for b, layer in zip(chosen, layers, strict=True)]
    return InPlace(model, parameters, handles, kind=kind, optimizer_config=OptimizerConfig("adam", 1e-3))


def _chosen(model: nn.Module, boundaries: Sequence[int | str | Boundary]) -> list[Boundary]:
    given = [b for b in boundaries if isinstance(b, Boundary)]
    names = [b for b in boundaries if not isinstance(b, Boundary)]
    if not given and not names:
        raise ConfigError("boundaries=() leaves nothing to learn; name depths, (0,) is the stem")
    found = select_boundaries(find_boundaries(model), names) if names else []
    return found + (verify_boundaries(model, given) if given else [])
