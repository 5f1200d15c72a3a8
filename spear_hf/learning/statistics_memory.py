"""The batch-norm statistics that a stream remembers, and how one forward uses them for the streams of its batch.

A batch of four says little about a channel's mean and variance. A stream lets them be those of about its last M images
(`SpearConfig.memory_images`; ours, the paper has each batch alone). What is remembered belongs to the stream; the
model never holds it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.errors import CheckpointError
from spear_hf.steering.context import Moments
from spear_hf.steering.mixing import batch_norms, mixed_statistics
from spear_hf.steering.moments import batch_statistics, grouped_statistics
from spear_hf.utils.distributed import BatchShard

ABSURD = 1e6  # no batch norm has inputs of this size


class NormLayout:
    """Where the channels of each BatchNorm lie in one flat tensor that holds those of all.

    Args:
        base: the model whose layers they are.

    >>> from torch import nn
    >>> layout = NormLayout(nn.Sequential(nn.BatchNorm2d(8), nn.BatchNorm2d(16)))
    >>> layout.total, layout.places["1"]
    (24, slice(8, 24, None))
    """

    def __init__(self, base: nn.Module) -> None:
        self.names: list[str] = []
        self.places: dict[str, slice] = {}
        self.total = 0
        for name, norm in batch_norms(base):
            channels = len(norm.running_mean)  # pyright: ignore[reportArgumentType]
            self.names.append(name)
            self.places[name] = slice(self.total, self.total + channels)
            self.total += channels
        self.channels = [place.stop - place.start for place in self.places.values()]
        self.zero_weights = torch.zeros(len(self.names), dtype=torch.float64)
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.early = set(self.names[: -(-len(self.names) // 2)])
        self.is_early = torch.tensor([name in self.early for name in self.names])
        self.sizes = torch.tensor([p.stop - p.start for p in self.places.values()], dtype=torch.float32)
        self.layer_of_channel = torch.arange(len(self.names)).repeat_interleave(self.sizes.long())


@dataclass(frozen=True)
class Remembered:
    """Mean and biased variance of the images seen, each weighted by how recent it is, for every BatchNorm.

    Args:
        mean, variance: (T,), the layers one after the other as in NormLayout.
        weight: (L,) float64 on the CPU, in [0, 1): how much a layer remembers; 0 for a layer that remembers nothing.
    """

    mean: Tensor
    variance: Tensor
    weight: Tensor


@dataclass
class StatisticsMemory:
    """What one stream remembers of batch-norm statistics.

    A batch of B images fades what was there by exp(-B / images), so that the same stream gives about the same
    statistics at any batch size.

    Args:
        images: M, about how many images are remembered; 0 remembers nothing.
        num_channels: T of the base's NormLayout, to check what is loaded; None checks nothing.

    Attributes:
        kept: what is remembered, None for nothing; replaced as a whole, never written in place.
    """

    images: int = 0
    num_channels: int | None = None
    kept: Remembered | None = None

    def clear(self) -> None:
        """The stream has changed to another domain, or begins anew."""
        self.kept = None

    def copy(self) -> "StatisticsMemory":
        """One that later changes of this one do not reach; what is remembered is shared, since it is never written."""
        return replace(self)

    @property
    def nbytes(self) -> int:
        """Of what is remembered."""
        return sum(tensor.nbytes for tensor in self.state_dict().values() if tensor is not None)

    def state_dict(self) -> dict[str, Any]:
        """Mean, variance and weight; None each where nothing is remembered."""
        names = ("mean", "variance", "weight")
        return {name: None if self.kept is None else getattr(self.kept, name).clone() for name in names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; CheckpointError, with nothing changed, where it is of other layers."""
        if state["mean"] is None:
            self.kept = None
            return
        kept = Remembered(*(state[name].clone() for name in ("mean", "variance", "weight")))
        shape = (self.num_channels if self.num_channels is not None else kept.mean.numel(),)
        if {tuple(kept.mean.shape), tuple(kept.variance.shape)} != {shape}:
            raise CheckpointError(
                f"remembered statistics have shape {tuple(kept.mean.shape)}, this base's have {shape}; use its own"
            )
        self.kept = kept


class StreamStatistics:
    """A StatisticsProvider for one forward over the images of one stream, or of several.

    Args:
        memories: of the streams; S of them.
        layout: of the base.
        index: (B,) which stream each image is of; None where there is one.
        sizes: how many images each stream has in the batch, over all processes.
        shares: for each stream how much of alpha each layer takes, (L,) in [0, 1]; None for a stream takes all of it.

        in_tensors: keep in tensors what a forward looks up, for a compiled one: a number in Python would be a part of
            its graph, and another number another graph.
    """

    def __init__(
        self,
        memories: Sequence[StatisticsMemory],
        layout: NormLayout,
        index: Tensor | None,
        sizes: Sequence[int],
        shares: Sequence[Tensor | None] | None = None,
        *,
        in_tensors: bool = False,
    ) -> None:
        self.memories, self.layout, self.index, self.sizes = memories, layout, index, sizes
        self.shares, self.in_tensors = shares, in_tensors
        self._shares = None if shares is None else _by_layer(shares, in_tensors)
        self.images = memories[0].images
        self._single_layers, self._singles_before = 0, [0] * len(memories)
        self._counts = torch.tensor(sizes)
        self._are_all_alone = max(sizes) == 1
        self._are_several = None if min(sizes) > 1 else self._counts > 1
        self._mixed: dict[str, tuple[Moments, Tensor | None] | None] = {}
        self._batch: dict[str, Moments] = {}  # of this batch alone
        self._joined: dict[str, Moments | None] = {}  # with what is remembered; None for a layer that ran twice
        self._valid: dict[str, Tensor | None] = {}
        self._before = self._read_memories() if self.images else None

    @property
    def single_values(self) -> list[int]:
        """For each stream, how many layers had one value a channel and kept the source's statistics."""
        sizes = [1] if self.index is None else self.sizes
        return [n + self._single_layers * (size == 1) for n, size in zip(self._singles_before, sizes, strict=True)]

    # --- during the forward --------------------------------------------------------------------------------------

    def moments(self, layer: str, x: Tensor, norm: Any, alpha: float, shard: BatchShard | None) -> Moments | None:
        """The statistics that the layer normalises by: (C,) each for one stream, (B, C) for several."""
        with torch.no_grad():
            found = self._of_batch(x, norm, shard)
            if found is None:
                return None
            mean, variance, valid = found
            if self._before is not None:
                self._batch[layer], self._valid[layer] = (mean, variance), valid
                mean, variance = self._joined_with_memory(layer, mean, variance)
                self._joined[layer] = None if layer in self._joined else (mean, variance)
            mixed = mixed_statistics(norm, mean, variance, self._alpha(layer, alpha, mean))
            if valid is not None:  # a stream with one value a channel keeps the source's
                source = norm.running_mean.to(mean.dtype), norm.running_var.to(mean.dtype)
                mean, variance = (torch.where(valid[:, None], m, s) for m, s in zip(mixed, source, strict=True))
                mixed = mean, variance
            self._mixed[layer] = None if layer in self._mixed else (mixed, valid)
            return self._by_rows(mixed)

    def _of_batch(self, x: Tensor, norm: Any, shard: BatchShard | None) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Mean and variance of each stream's images, and which streams have any; None where none has."""
        if self.index is None:
            found = batch_statistics(x, shard, norm.running_mean)
            if found is None:
                self._single_layers += 1
                return None
            return *found, None
        valid = None
        if x[0, 0].numel() == 1:  # one value of each image
            self._single_layers += 1
            if self._are_all_alone:
                return None
            valid = None if self._are_several is None else self._are_several.to(x.device)
        return *grouped_statistics(x, self.index, len(self._counts)), valid

    def _alpha(self, layer: str, alpha: float, like: Tensor) -> float | Tensor:
        if self._shares is None:
            return alpha
        shares = self._shares[self.layout.numbers[layer]]
        if isinstance(shares, Tensor):
            return shares.to(like)[0 if self.index is None else (slice(None), None)] * alpha
        return alpha * shares[0] if self.index is None else like.new_tensor([alpha * s for s in shares])[:, None]

    def _by_rows(self, mixed: Moments) -> Moments:
        if self.index is None:
            return mixed
        index = self.index.to(mixed[0].device)
        return mixed[0].index_select(0, index), mixed[1].index_select(0, index)

    def _read_memories(self) -> "_Memory":
        """What the streams remember, laid out for this forward."""
        kept = [memory.kept for memory in self.memories]
        fading = torch.tensor([math.exp(-size / self.images) for size in self.sizes], dtype=torch.float64)[:, None]
        weights = torch.stack([self.layout.zero_weights if k is None else k.weight for k in kept])
        joined = fading * weights + (1 - fading)
        means = variances = None
        if (some := next((k for k in kept if k is not None), None)) is not None:
            nothing = None if all(kept) else torch.zeros_like(some.mean)
            means = _rows([nothing if k is None else k.mean.to(some.mean) for k in kept])
            variances = _rows([nothing if k is None else k.variance.to(some.mean) for k in kept])
        share = (1 - fading) / joined
        return _Memory(means, variances, weights, joined, share, self.layout, in_tensors=self.in_tensors)

    def _joined_with_memory(self, layer: str, mean: Tensor, variance: Tensor) -> Moments:
        """The moments of the union of batch and memory, without E[x^2] - mean^2, which would lose digits."""
        assert self._before is not None
        number = self.layout.numbers[layer]
        if not self._before.known[number]:
            return mean, variance
        before_mean, before_variance, weight, spread = self._before.of(number, mean)
        joined = torch.lerp(before_mean, mean, weight), torch.lerp(before_variance, variance, weight)
        squares = (mean - before_mean).square_()
        if not isinstance(weight, Tensor):
            return joined[0], joined[1].add_(squares, alpha=spread)
        # where nothing is remembered the spread is 0, and 0 times an overflow would be NaN
        return joined[0], torch.where(weight < 1, joined[1].addcmul_(squares, spread), variance)

    def replace_rows(self, other: "StreamStatistics", chosen: Sequence[int]) -> None:
        """Take the place of what was found for these streams by what another forward over their images found."""
        rows = torch.tensor(chosen)
        for i, n in zip(chosen, other.single_values, strict=True):
            self._singles_before[i] += n
        for mine, theirs in ((self._batch, other._batch), (self._joined, other._joined)):
            for layer, found in theirs.items():
                kept = mine.get(layer)
                if found is not None and kept is not None:
                    mine[layer] = _with_rows(kept, rows, found)
        for layer, found in other._mixed.items():
            kept = self._mixed.get(layer)
            if found is not None and kept is not None:
                self._mixed[layer] = _with_rows(kept[0], rows, found[0]), kept[1]
        if self._before is not None and other._before is not None:
            self._before.weights[rows], self._before.joined[rows] = other._before.weights, other._before.joined

    # --- afterwards ----------------------------------------------------------------------------------------------

    def replayed(self, index: Tensor | None, sizes: Sequence[int]) -> "ReplayedStatistics":
        """A provider of the same statistics for another forward over (some of) the same images."""
        return ReplayedStatistics(self, index, sizes)

    def collected(self) -> list[Remembered | None]:
        """For each stream what it is to remember after this forward; None where that is what it did before."""
        nothing: list[Remembered | None] = [None] * len(self.memories)
        if self._before is None or not self._joined:
            return nothing
        names, found = self.layout.names, list(self._joined.values())
        if len(found) == len(names) and all(found) and not any(v is not None for v in self._valid.values()):
            found = [self._joined[name] for name in names]
            mean, variance = (torch.cat([m[i].to(found[0][i]) for m in found], -1) for i in (0, 1))  # pyright: ignore
            mean, variance, weight = _two_dimensional(mean), _two_dimensional(variance), self._before.joined
        else:
            kept = [name for name in names if self._joined.get(name) is not None]
            if not kept:
                return nothing
            mean, variance, weight = self._scattered(kept)
        # neither an overflow nor what one absurd pixel (1e20) makes of a batch is remembered
        finite = (mean.abs() < ABSURD) & (variance < ABSURD**2)
        if not bool(finite.all()):
            spoilt = torch.zeros_like(weight).index_add_(
                1, self.layout.layer_of_channel, (~finite).cpu().to(weight.dtype)
            )
            weight = torch.where(spoilt > 0, 0.0, weight)
            mean, variance = torch.where(finite, mean, 0.0), torch.where(finite, variance, 0.0)
        rows = zip(mean.unbind(), variance.unbind(), weight.unbind(), strict=True)
        return [Remembered(m.clone(), v.clone(), w.clone()) for m, v, w in rows]

    def _scattered(self, kept: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """(S, T) means and variances and (S, L) weights where some layers, or some streams in a layer, have none."""
        assert self._before is not None
        like = self._joined[kept[0]][0]  # pyright: ignore[reportOptionalSubscript]
        shape = (len(self.memories), self.layout.total)
        mean, variance, weight = like.new_zeros(shape), like.new_zeros(shape), torch.zeros_like(self._before.weights)
        for name in kept:
            place, number, moments = self.layout.places[name], self.layout.numbers[name], self._joined[name]
            assert moments is not None
            mean[:, place], variance[:, place] = moments[0].to(mean), moments[1].to(mean)
            weight[:, number] = self._before.joined[:, number]
            if (valid := self._valid[name]) is not None:
                weight[:, number] = torch.where(valid.cpu(), weight[:, number], 0.0)
        return mean, variance, weight

    def log_distances(self) -> list[dict[str, float]]:
        """For each stream, layer -> log of its distance to what is remembered, less what sampling alone lets expect.

        A distance is the mean over the channels of `distance`; see `DomainShiftDetector`.
        """
        if self._before is None or self._before.means is None or self._before.variances is None:
            return [{} for _ in self.memories]
        means, variances, weights = self._before.means, self._before.variances, self._before.weights
        names = [n for n in self.layout.names if n in self._batch and self._joined.get(n) is not None]
        places = torch.cat([torch.arange(p.start, p.stop) for p in (self.layout.places[n] for n in names)])
        numbers = [self.layout.numbers[n] for n in names]
        if not numbers:
            return [{} for _ in self.memories]
        like = self._batch[names[0]][0]
        rows = (len(self.memories), -1)
        now = [torch.cat([self._batch[n][i].to(like).view(rows) for n in names], 1) for i in (0, 1)]
        before = [m.to(like)[:, places.to(like.device)] for m in (means, variances)]
        apart = distances((now[0], now[1]), (before[0], before[1]))
        layer_of = self.layout.layer_of_channel[places].to(like.device)
        sums = like.new_zeros(len(self.memories), len(self.layout.names)).index_add_(1, layer_of, apart)
        logs = (sums / self.layout.sizes.to(like)).log().tolist()
        found = []
        for stream, size in enumerate(self.sizes):
            known = weights[stream].tolist()
            found.append(
                {
                    name: logs[stream][number] - math.log((self.images / size + 1 / known[number]) / self.images)
                    for name, number in zip(names, numbers, strict=True)
                    if known[number] > 0
                }
            )
        return found


class _Memory:
    """What the S streams of a batch remember, and how much of it a forward takes.

    Args:
        means, variances: (S, T); None where no stream remembers anything.
        weights: (S, L), of what is remembered.
        joined: (S, L), of that and this batch together.
        share: (S, L), of this batch in it.
        layout: of the layers.
        in_tensors: as for `StreamStatistics`; where nothing is remembered there are zeros, of which nothing is taken.

    Attributes:
        known: for each layer, whether any stream remembers it.
    """

    def __init__(
        self,
        means: Tensor | None,
        variances: Tensor | None,
        weights: Tensor,
        joined: Tensor,
        share: Tensor,
        layout: NormLayout,
        *,
        in_tensors: bool,
    ) -> None:
        self.means, self.variances, self.weights, self.joined, self.share = means, variances, weights, joined, share
        self.known = [False] * len(layout.names) if means is None else weights.any(0).tolist()
        if in_tensors:
            self.known = [True] * len(layout.names)
            if means is None or variances is None:
                nothing = [torch.zeros(layout.total)] * len(weights)
                means, variances = _rows(nothing), _rows(nothing)
        if means is None or variances is None:
            return
        rows = (means[0], variances[0]) if len(means) == 1 else (means, variances)
        # one call splits all layers: with dozens of small layers the calls are what costs
        self._means, self._variances = (each.split(layout.channels, -1) for each in rows)
        is_one = len(means) == 1
        spread = share * (1 - share)
        self._weight, self._spread = (
            each[0].tolist() if is_one and not in_tensors else each.to(means).squeeze(0) if is_one else each.to(means)
            for each in (share, spread)
        )

    def of(self, number: int, like: Tensor) -> tuple[Tensor, Tensor, Any, Any]:
        """Mean and variance of a layer, (C,) with numbers or () for one stream, (S, C) with (S, 1) for several.

        Returns:
            Mean, variance, the weight of this batch, and weight (1 - weight).
        """
        weight, spread = self._weight, self._spread
        if isinstance(weight, Tensor) and isinstance(spread, Tensor):
            place = number if weight.dim() == 1 else (slice(None), number, None)
            weight, spread = weight[place].to(like), spread[place].to(like)
        else:
            weight, spread = weight[number], spread[number]
        return self._means[number].to(like), self._variances[number].to(like), weight, spread


class ReplayedStatistics:
    """Provides what another forward normalised by, to a forward over (some of) its images."""

    def __init__(self, first: StreamStatistics, index: Tensor | None, sizes: Sequence[int]) -> None:
        self.first = first
        self.index = index
        self.fresh = StreamStatistics(
            first.memories, first.layout, index, sizes, first.shares, in_tensors=first.in_tensors
        )

    def moments(self, layer: str, x: Tensor, norm: Any, alpha: float, shard: BatchShard | None) -> Moments | None:
        """As then; a layer that ran more than once computes its own each time."""
        kept = self.first._mixed.get(layer)
        if kept is None:
            return self.fresh.moments(layer, x, norm, alpha, shard)
        mixed, _ = kept
        if self.index is None:
            return mixed
        index = self.index.to(mixed[0].device)
        return mixed[0].index_select(0, index), mixed[1].index_select(0, index)


def _rows(tensors: Sequence[Tensor | None]) -> Tensor:
    """(S, T); without a copy where S is 1."""
    return tensors[0][None] if len(tensors) == 1 else torch.stack(tensors)  # pyright: ignore


def _by_layer(shares: Sequence[Tensor | None], in_tensors: bool) -> Tensor | list[list[float]] | None:
    """(L, S), for each layer the shares of the streams; None where all take the whole of alpha."""
    some = next((each for each in shares if each is not None), None)
    if some is None:
        return None
    whole = torch.ones_like(some)
    found = torch.stack([whole if each is None else each for each in shares], 1)
    return found if in_tensors else found.tolist()


def _two_dimensional(x: Tensor) -> Tensor:
    return x[None] if x.dim() == 1 else x


def _with_rows(kept: Moments, rows: Tensor, found: Moments) -> Moments:
    """(S, C) moments with other rows; `found` is (len(rows), C), or (C,) where it is of one stream."""
    place = rows.to(kept[0].device)
    mean, variance = (k.index_copy(0, place, f.view(len(rows), -1)) for k, f in zip(kept, found, strict=True))
    return mean, variance


def distances(a: Moments, b: Moments, eps: float = 1e-5) -> Tensor:
    """Symmetric divergence KL(a || b) + KL(b || a) of normal distributions, each half, channel by channel.

    Args:
        a, b: mean and variance, of any equal shape.

    >>> import torch
    >>> same = torch.zeros(3), torch.ones(3)
    >>> float(distances(same, same).sum())
    0.0
    """
    (mean, variance), (other_mean, other_variance) = a, b
    variance, other_variance = variance + eps, other_variance + eps
    apart = (mean - other_mean).square()
    ratio = variance / other_variance
    return (ratio + 1 / ratio - 2 + apart / variance + apart / other_variance) / 2
