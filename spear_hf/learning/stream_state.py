"""What a batch norm's statistics draw on beyond one batch: earlier batches of the stream, or an earlier forward.

A batch of four says little about a channel's mean and variance. `StreamStatistics` lets them be those of about the last
M images instead (`SpearConfig.statistics_memory`; ours, the paper has each batch alone). Only `Spear.step` remembers:
calling a model uses what is remembered and never adds to it.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from spear_hf.learning.domain_shift import distance


class Remembered(NamedTuple):
    """Mean and biased variance (C,) of the images seen, each weighted by how recent it is; `weight` in (0, 1)."""

    mean: Tensor
    variance: Tensor
    weight: float

    def joined(self, other: "Remembered") -> "Remembered":
        """Of both together: the moments of the union, without E[x^2] - mean^2, which would lose digits."""
        weight = self.weight + other.weight
        share = other.weight / weight
        apart = other.mean - self.mean
        variance = torch.lerp(self.variance, other.variance, share) + share * (1 - share) * apart.square()
        return Remembered(torch.lerp(self.mean, other.mean, share), variance, weight)


class StreamStatistics:
    """Per layer, the statistics of about the last `images` images of the stream, this batch included.

    A batch of B images fades what was there by exp(-B / images), so that the same stream gives about the same
    statistics at any batch size. A layer that runs several times in a forward is left to its own batch.

    Attributes:
        images: how many are remembered; 0 remembers nothing.
        whole: whether the statistics take the place of the source's in place of being mixed into them. What layers see
            then differs, so each way has a memory of its own.
    """

    def __init__(self) -> None:
        self.images = 0
        self.whole = False
        self._layers: dict[bool, dict[str, Remembered]] = {False: {}, True: {}}
        self._batch: dict[str, Remembered | None] | None = None  # of the forward that is to be remembered
        self._collected: dict[bool, dict[str, Remembered | None]] = {}
        self._met: dict[str, tuple[Remembered, Remembered]] = {}  # the batch alone, and what it was joined to

    @property
    def layers(self) -> dict[str, Remembered]:
        """layer -> what it remembers, the way statistics are taken now."""
        return self._layers[self.whole]

    def blended(self, layer: str, mean: Tensor, variance: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Statistics (C,), (C,) of this batch of `count` images and of what is remembered."""
        if not self.images:
            return mean, variance
        fading = math.exp(-count / self.images)
        now = Remembered(mean, variance, 1 - fading)
        before = self.layers.get(layer)
        if before is not None:
            now = before._replace(weight=fading * before.weight).joined(now)
        if self._batch is not None:
            if before is not None:
                self._met[layer] = Remembered(mean, variance, count / self.images), before
            self._batch[layer] = None if layer in self._batch else now
        return now.mean, now.variance

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Inside is the forward that `commit` remembers; of several forwards of one way, the last."""
        self._batch, self._met = {}, {}
        try:
            yield
        finally:
            self._collected[self.whole], self._batch = self._batch, None

    @contextmanager
    def other_way(self) -> Iterator[None]:
        """Inside, statistics are taken the other way: `whole` is its opposite."""
        self.whole = not self.whole
        try:
            yield
        finally:
            self.whole = not self.whole

    def apart(self) -> dict[str, float]:
        """layer -> how far the batch that was collected last is from what is remembered, in logs."""
        if not self._met:
            return {}
        distances = [distance(now[:2], before[:2]) for now, before in self._met.values()]
        sampling = [math.log((1 / now.weight + 1 / before.weight) / self.images) for now, before in self._met.values()]
        logs = torch.stack([d.to(distances[0].device) for d in distances]).log().tolist()
        return {layer: log - s for layer, log, s in zip(self._met, logs, sampling, strict=True)}

    def commit(self) -> None:
        """Remember the batch that was collected last."""
        for whole, batch in self._collected.items():
            self._layers[whole] |= {layer: now for layer, now in batch.items() if now is not None}
        self._collected = {}

    def forget(self) -> None:
        """Of another domain than what is remembered: the statistics go, the way they are taken stays."""
        self._layers = {False: {}, True: {}}
        self._collected = {}

    def clear(self) -> None:
        """Forget the stream."""
        self.forget()
        self.whole = False

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Inside, the model answers as if it had seen no stream, which is how a saved adapter answers once loaded."""
        state = self.state_dict()
        self.clear()
        try:
            yield
        finally:
            self.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Whether statistics are taken whole, and for each way layer -> [mean, variance, weight]."""
        kept = {
            whole: {layer: [r.mean.clone(), r.variance.clone(), r.weight] for layer, r in layers.items()}
            for whole, layers in self._layers.items()
        }
        return {"whole": self.whole, "mixed_layers": kept[False], "whole_layers": kept[True]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.whole = state["whole"]
        self._layers = {
            whole: {layer: Remembered(mean.clone(), var.clone(), w) for layer, (mean, var, w) in state[key].items()}
            for whole, key in ((False, "mixed_layers"), (True, "whole_layers"))
        }


class StatisticsCache:
    """The mixed statistics of one forward, for a second one over some of its images that is to be answered alike."""

    def __init__(self) -> None:
        self.mode: Literal["off", "keep", "replay"] = "off"
        self._layers: dict[str, tuple[Tensor, Tensor] | None] = {}

    @contextmanager
    def during(self, mode: Literal["off", "keep", "replay"]) -> Iterator[None]:
        """Inside, the statistics of every layer are kept, or those that were kept are used."""
        if mode == "keep":
            self._layers = {}
        before, self.mode = self.mode, mode
        try:
            yield
        finally:
            self.mode = before

    def of(self, layer: str) -> tuple[Tensor, Tensor] | None:
        """What this layer is to use; None where it computes its own."""
        return self._layers.get(layer) if self.mode == "replay" else None

    def note(self, layer: str, statistics: tuple[Tensor, Tensor]) -> None:
        """Keep them, unless the layer runs more than once in a forward: then each call computes its own."""
        if self.mode == "keep":
            self._layers[layer] = None if layer in self._layers else statistics
