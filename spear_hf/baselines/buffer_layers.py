"""Buffer layers: small convolutions beside a frozen base, added to its representation (Kim et al. 2025).

u <- u + alpha (s1 Conv1x1(u) + s3 Conv3x3(u) + ...)
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spear_hf.baselines.adapted_parameters import InPlace, norm_parameters
from spear_hf.baselines.component import Dice
from spear_hf.baselines.norms import NORMS, use_batch_statistics
from spear_hf.baselines.optimizer_config import OptimizerConfig
from spear_hf.boundaries import Boundary, find_boundaries, select_boundaries, verify_boundaries
from spear_hf.boundaries.graph import Edge, inputs_of
from spear_hf.boundaries.slots import register_at
from spear_hf.boundaries.trace import Call, Trace
from spear_hf.boundaries.verify import ProbeSession, shape_at, value_at
from spear_hf.errors import ConfigError

MAP_KERNELS = (1, 3)
TOKEN_KERNELS = (1, 3, 5, 7)
SCALE = 0.5


class BufferLayer(nn.Module):
    """u + alpha sum_k s_k Conv_k(u), each convolution from C to C channels, padded, without bias.

    Args:
        channels: C.
        kernels: their sizes.
        spatial: 2 for maps (B, C, H, W), 1 for tokens (B, C, N).
        alpha: its start value; it is learned too.
        dice: draws the convolutions, from torch's own distribution.
        channel_axis: where the C channels of u are; 1, or -1 for tokens (B, N, C).
        learn_scales: whether the scales s are learned; they begin as 0.5.

    >>> import torch
    >>> from spear_hf.baselines.buffer_layers import BufferLayer
    >>> from spear_hf.baselines.component import Dice
    >>> layer = BufferLayer(16, (1, 3), 2, 1e-4, Dice(0))
    >>> layer(torch.zeros(2, 16, 8, 8)).shape, sum(p.numel() for p in layer.parameters())
    (torch.Size([2, 16, 8, 8]), 2563)
    """

    scales: Tensor

    def __init__(
        self,
        channels: int,
        kernels: Sequence[int],
        spatial: int,
        alpha: float,
        dice: Dice,
        channel_axis: int = 1,
        *,
        learn_scales: bool = True,
    ) -> None:
        super().__init__()
        self.kernels, self.spatial, self.channel_axis = tuple(kernels), spatial, channel_axis
        self.alpha = nn.Parameter(torch.tensor(alpha))
        scales = torch.full((len(self.kernels),), SCALE)
        if learn_scales:
            self.scales = nn.Parameter(scales)
        else:
            self.register_buffer("scales", scales)
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
    stages: Sequence[int] = (),
    alpha: float = 1e-4,
    learn_norms: bool = False,
    learn_scales: bool = True,
    seed: int = 0,
) -> InPlace:
    """Buffer layers in a frozen base under batch statistics; only these layers learn.

    Args:
        model: any classifier whose boundaries are maps or tokens.
        boundaries: depths or names of `find_boundaries` (0 is the stem), or Boundary objects for other places.
        stages: the stages, of 1..L, whose blocks have layers after their inner activations; see `inner_activations`.
        alpha: how much of each layer is added at the start.
        learn_norms: whether gamma and beta of the normalisation layers learn too; not so as published.
        learn_scales: whether the scales of the convolutions learn too; in the authors' WideResNet and ResNet-50 they
            do, in their ResNeXt they are constants.
        seed: of the convolutions.

    Raises:
        ConfigError: no place, a stage that does not exist or has no inner activation, or a place that is neither a map
            nor tokens; NoBoundariesError and BoundaryNotFoundError as for `get_spear_model`. Nothing is changed.

    >>> import timm
    >>> from spear_hf.baselines.buffer_layers import buffer_layers
    >>> buffer_layers(timm.create_model("test_resnet"), boundaries=(0,)).learned.count
    10243
    """
    trace, dice = ProbeSession(model, None).trace, Dice(seed)
    chosen = _chosen(model, boundaries, stages, trace)
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
        shape = boundary.channels, kernels, spatial
        layer = BufferLayer(*shape, alpha, dice, boundary.channel_axis, learn_scales=learn_scales)
        layers.append(layer.to(device))
    parameters = [p for layer in layers for p in layer.parameters()] + (norm_parameters(model) if learn_norms else [])
    kind = {"where": "buffer", "alpha": alpha, "learn_norms": learn_norms, "learn_scales": learn_scales, "seed": seed}
    kind["boundaries"] = [boundary.to_dict() for boundary in chosen]
    handles = use_batch_statistics(model)
    handles += [register_at(model, b, layer, prepend=False) for b, layer in zip(chosen, layers, strict=True)]
    return InPlace(model, parameters, handles, kind=kind, optimizer_config=OptimizerConfig("adam", 1e-3))


def _chosen(
    model: nn.Module, boundaries: Sequence[int | str | Boundary], stages: Sequence[int], trace: Trace
) -> list[Boundary]:
    given = [b for b in boundaries if isinstance(b, Boundary)]
    names = [b for b in boundaries if not isinstance(b, Boundary)]
    if not given and not names and not stages:
        raise ConfigError("boundaries=() leaves nothing to learn; name depths, (0,) is the stem")
    all_of_them = find_boundaries(model) if names or stages else []
    found = select_boundaries(all_of_them, names) if names else []
    inner = [place for stage in stages for place in inner_activations(trace, all_of_them, stage)]
    return found + (verify_boundaries(model, given) if given else []) + inner


def inner_activations(trace: Trace, boundaries: Sequence[Boundary], stage: int) -> list[Boundary]:
    """The inputs of a stage's convolutions that are an activation of a norm's output, in the order they run.

    These are the places of the authors' CIFAR networks: after each activation inside a block, and not after the sum of
    a block and its shortcut. Of two convolutions that take the same tensor, the one that is not the shortcut is meant.

    Args:
        trace: of the model.
        boundaries: of the model, as `find_boundaries` gives them.
        stage: in 1..L.

    Raises:
        ConfigError: a stage that does not exist, or one without such a place.

    >>> from spear_hf.backbones.cifar import CifarResNet
    >>> from spear_hf.baselines.buffer_layers import inner_activations
    >>> from spear_hf.boundaries import find_boundaries
    >>> from spear_hf.boundaries.verify import ProbeSession
    >>> model = CifarResNet(widths=(4, 8, 8), depth=2).eval()
    >>> boundaries = find_boundaries(model)
    >>> [b.module for b in inner_activations(ProbeSession(model).trace, boundaries, stage=1)]
    ['stages.0.0.conv2', 'stages.0.1.conv2']
    """
    ends = {boundary.depth: value_at(trace, boundary).edge for boundary in boundaries}
    if stage < 1 or not {stage - 1, stage} <= ends.keys():
        raise ConfigError(f"stages={stage} is not allowed; {type(trace.model).__name__} has stages 1..{max(ends)}")
    began, ended = trace.first_seen[ends[stage - 1]], trace.first_seen[ends[stage]]
    takers: dict[Edge, list[Call]] = {}
    for call in sorted(trace.calls, key=lambda call: call.began):
        if began < call.began < ended and isinstance(call.module, nn.modules.conv._ConvNd) and call.inputs:
            takers.setdefault(call.inputs[0].edge, []).append(call)
    normalized = {value.edge for call in trace.calls if isinstance(call.module, NORMS) for value in call.inputs}
    places = [
        next((call for call in calls if call.outputs[0].edge in normalized), calls[0])
        for edge, calls in takers.items()
        if edge != ends[stage - 1] and _is_activation(edge)
    ]
    if not places:
        raise ConfigError(
            f"no convolution in stage {stage} of {type(trace.model).__name__} follows a norm and an activation; leave "
            "the stage out of stages=, or pass Boundary objects in boundaries="
        )
    return [
        Boundary(stage, f"inside stage {stage}", call.path, "in", call.inputs[0].shape[1], part=part)
        for part, call in enumerate(places)
    ]


def _is_activation(edge: Edge) -> bool:
    """Whether a tensor was computed from the output of a norm alone: not a norm's output itself, and not a sum."""
    parents = [node for node, _ in inputs_of(edge[0]) if not node.name().endswith("AccumulateGrad")]
    return len(parents) == 1 and "Norm" in parents[0].name()
