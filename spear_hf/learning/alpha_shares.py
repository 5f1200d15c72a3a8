"""AlphaShares: how much of alpha each BatchNorm takes, by how far the stream is from the source there (ours).

Mixing is for streams whose statistics have moved. Where they have not, on clean images or in the layers that a shift
does not reach, those of a few images are only a noisy form of the source's, and mixing them in costs accuracy. So each
layer l takes alpha_l = share_l alpha, where

    share_l = max(0, 1 - (kappa_l / m) / (D_l - kappa_l / n)).

D_l is how far the mean over the stream's n images is from the source's, and kappa_l how far single images are spread
around it: both squared, in units of the source's variance, as means over the channels. Sampling alone makes D_l about
kappa_l / n, so D_l - kappa_l / n is the shift. One that is no larger than the sampling error of m images is not mixed
in at all (the positive part of James and Stein's estimator). Both are measured on the first images of a domain, by a
forward of the base alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spear_hf.errors import CheckpointError
from spear_hf.learning.objective import ImageGroups
from spear_hf.learning.statistics_memory import ABSURD, NormLayout
from spear_hf.utils.distributed import BatchShard

CHANCE_IMAGES = 8  # m; chosen on held-out images (benchmarks/results/any_network.md)


class AlphaShares:
    """The shares of one stream, and what they rest on.

    Args:
        images: on how many images of a domain they are measured; 0 measures nothing, and every share is 1.

    Attributes:
        shares: (L,) float64 in [0, 1], in the order of NormLayout; None before the first image. Replaced as a whole.
    """

    def __init__(self, images: int) -> None:
        self.images = images
        self.clear()

    def clear(self) -> None:
        """A new domain, or a new stream."""
        self.count = 0
        self.shares: Tensor | None = None
        self._means: Tensor | None = None  # (2, T): of the standardised image means, and of their squares

    @property
    def is_open(self) -> bool:
        """Whether images are still to be measured."""
        return self.count < self.images

    def add(self, means: Tensor, images: int, layout: NormLayout) -> None:
        """Take the images of a batch into account.

        Args:
            means: (2, T), what `ImageMeans.of_streams` gives for this stream.
            images: how many it is of, over all processes.
            layout: of the base.
        """
        if not images or not bool((means.abs() < ABSURD**2).all()):  # NaN fails too: nothing absurd is learned from
            return
        self.count += images
        before = means if self._means is None else self._means.to(means)
        self._means = torch.lerp(before, means, images / self.count)
        self.shares = _shares(self._means, self.count, layout)
        if not self.is_open:
            self._means = None

    @property
    def mean(self) -> float:
        """Of the shares of all layers: how much of a shift there is."""
        return 1.0 if self.shares is None else float(self.shares.mean())

    def shares_of_few(self) -> Tensor | None:
        """The shares where all images are of few classes: their mean is off by chance as much as that of one image."""
        return None if self.shares is None else (1 - CHANCE_IMAGES * (1 - self.shares)).clamp_min(0)

    def copy(self) -> "AlphaShares":
        """One that later changes of this one do not reach."""
        found = AlphaShares(self.images)
        found.count, found.shares, found._means = self.count, self.shares, self._means
        return found

    @property
    def nbytes(self) -> int:
        """Of the shares, and of what they rest on while it is measured."""
        return sum(t.nbytes for t in (self.shares, self._means) if t is not None)

    def state_dict(self) -> dict[str, Any]:
        """Images so far, the shares, and what they rest on."""
        kept = {"shares": self.shares, "means": self._means}
        return {"count": self.count, **{name: None if t is None else t.clone() for name, t in kept.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; CheckpointError, with nothing changed, where shares are not in [0, 1]."""
        shares, means = (None if state[name] is None else state[name].clone() for name in ("shares", "means"))
        if shares is not None and not bool(((shares >= 0) & (shares <= 1)).all()):
            raise CheckpointError("shares of alpha that are not in [0, 1]; resume from an earlier state")
        self.count, self.shares, self._means = int(state["count"]), shares, means


def _shares(means: Tensor, images: int, layout: NormLayout) -> Tensor:
    """(L,) float64 on the CPU, from (2, T)."""
    first, second = means.double().cpu().unbind()
    sums = torch.zeros(2, len(layout.names), dtype=torch.float64)
    sums.index_add_(1, layout.layer_of_channel, torch.stack([first.square(), (second - first.square()).clamp_min(0)]))
    distance, spread = sums / layout.sizes.double()
    spread = spread * (images / max(images - 1, 1))  # of one image nothing is known: all is shift
    shift = distance - spread / images
    shares = torch.where(shift > 0, (1 - spread / CHANCE_IMAGES / shift).clamp(0, 1), 0.0)
    return torch.where(distance + spread > 0, shares, 1.0)


class ImageMeans:
    """A StatisticsProvider that keeps the source's statistics, and sees what each image has on the way.

    Args:
        layout: of the base.
    """

    def __init__(self, layout: NormLayout) -> None:
        self.layout = layout
        self._seen: dict[str, Tensor] = {}

    def moments(self, layer: str, x: Tensor, norm: Any, alpha: float, shard: BatchShard | None) -> None:
        """Note (B, C), each image's mean of each channel, standardised by the source's mean and variance."""
        with torch.no_grad():
            wide = x if x.dtype == torch.float64 else x.float()
            means = wide.flatten(2).mean(2) if x.dim() > 2 else wide
            mean, variance = norm.running_mean.to(means.dtype), norm.running_var.to(means.dtype)
            self._seen.setdefault(layer, (means - mean) / torch.sqrt(variance + norm.eps))

    def of_streams(self, shard: BatchShard, groups: ImageGroups | None) -> Sequence[Tensor]:
        """For each stream (2, T): the means over its images of what was noted, and of its square.

        A layer of which nothing was noted has zeros, and is mixed as the configuration says.
        """
        seen = next(iter(self._seen.values()))
        rows = seen.new_zeros(len(seen), self.layout.total)
        for name, noted in self._seen.items():
            if len(noted) == len(seen):  # not of a part of the model that sees an image more than once, as crops
                rows[:, self.layout.places[name]] = noted
        rows = torch.cat([rows, rows.square()], 1)
        if groups is not None:
            return groups.means(rows).view(len(groups.sizes), 2, -1).unbind()
        local = rows[: shard.local].sum(0)
        return [(shard.sum(local) / max(shard.total, 1)).view(2, -1)]
