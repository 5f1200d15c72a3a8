"""Buffer layers: small convolutions beside a frozen base, added to its representation (Kim et al. 2025).

u <- u + alpha (s1 Conv1x1(u) + s3 Conv3x3(u) + ...)
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from spear_hf.baselines.dice import Dice
from spear_hf.baselines.in_place import InPlace, norm_parameters
from spear_hf.baselines.rule import OptimizerConfig
from spear_hf.baselines.statistics import use_batch_statistics
from spear_hf.boundaries import Boundary, find_boundaries, select_boundaries, verify_boundaries
from spear_hf.boundaries.slots import pick, pick_input, replace, replace_input
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
        alpha: at the start; learned, as the scales s are.
        dice: what the convolutions are drawn from, as torch draws its own.
    """

    def __init__(self, channels: int, kernels: Sequence[int], spatial: int, alpha: float, dice: Dice) -> None:
        super().__init__()
        self.kernels, self.spatial = tuple(kernels), spatial
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.scales = nn.Parameter(torch.full((len(self.kernels),), 1 / len(self.kernels)))
        self.convolutions = nn.ParameterList(_drawn(channels, k, spatial, dice) for k in self.kernels)

    def forward(self, u: Tensor) -> Tensor:
        """Of u's shape and dtype; (B, C, ...)."""
        convolve = F.conv2d if self.spatial == 2 else F.conv1d
        parts = [
            scale * convolve(u.to(weight.dtype), weight, padding=k // 2)
            for scale, weight, k in zip(self.scales, self.convolutions, self.kernels, strict=True)
        ]
        return u + (self.alpha * torch.stack(parts).sum(0)).to(u.dtype)


def _drawn(channels: int, kernel: int, spatial: int, dice: Dice) -> nn.Parameter:
    """Uniform in +-1 / sqrt(fan in)."""
    bound = (channels * kernel**spatial) ** -0.5
    return nn.Parameter((2 * dice.rand(channels, channels, *[kernel] * spatial) - 1) * bound)


class _Site:
    """One boundary and its buffer layer; its methods are the hooks."""

    def __init__(self, boundary: Boundary, layer: BufferLayer) -> None:
        self.boundary, self.layer = boundary, layer

    def register(self, model: nn.Module) -> RemovableHandle:
        module = model.get_submodule(self.boundary.module)
        if self.boundary.where == "in":
            return module.register_forward_pre_hook(self.before, with_kwargs=True)
        return module.register_forward_hook(self.after)

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        slot = self.boundary.output_slot
        return replace(output, slot, self._added(pick(output, slot)))

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return replace_input(self.boundary, args, kwargs, self._added(pick_input(self.boundary, args, kwargs)))

    def _added(self, z: Tensor) -> Tensor:
        axis = self.boundary.channel_axis
        return self.layer(z.movedim(axis, 1)).movedim(1, axis)


def buffer_layers(
    model: nn.Module,
    *,
    boundaries: Sequence[int | str | Boundary] = (0,),
    alpha: float = 1e-4,
    learn_norms: bool = False,
    seed: int = 0,
) -> InPlace:
    """A frozen base under batch statistics, with buffer layers at some of its stage boundaries, which alone learn.

    Args:
        model: any classifier whose boundaries are maps or tokens.
        boundaries: depths or names of `find_boundaries` (0 is the stem), or Boundary objects anywhere else, such as
            after the activations inside the blocks.
        alpha: how much of each layer is added at the start; published are 1e-5 for batches of 2 and 4, 1e-4 for 16,
            1e-9 for ResNet-50's stem.
        learn_norms: whether gamma and beta of the normalisation layers learn too; published is no.
        seed: of the convolutions.

    Raises:
        ConfigError: none, or a boundary that is neither a map nor tokens; NoBoundariesError and
            BoundaryNotFoundError as for `get_spear_model`. Nothing is changed.
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
        layers.append(BufferLayer(boundary.channels, kernels, spatial, alpha, dice).to(device))
    parameters = [p for layer in layers for p in layer.parameters()] + (norm_parameters(model) if learn_norms else [])
    sites = [_Site(boundary, layer) for boundary, layer in zip(chosen, layers, strict=True)]
    kind = {"where": "buffer", "alpha": alpha, "learn_norms": learn_norms, "seed": seed}
    kind["boundaries"] = [boundary.to_dict() for boundary in chosen]
    handles = use_batch_statistics(model) + [site.register(model) for site in sites]
    return InPlace(model, parameters, handles, kind=kind, rule=OptimizerConfig("adam", 1e-3))


def _chosen(model: nn.Module, boundaries: Sequence[int | str | Boundary]) -> list[Boundary]:
    given = [b for b in boundaries if isinstance(b, Boundary)]
    names = [b for b in boundaries if not isinstance(b, Boundary)]
    if not given and not names:
        raise ConfigError("boundaries=() leaves nothing to learn; name depths, (0,) is the stem")
    found = select_boundaries(find_boundaries(model), names) if names else []
    return found + (verify_boundaries(model, given) if given else [])
