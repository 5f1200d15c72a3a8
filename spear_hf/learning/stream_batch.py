"""StreamBatch: the images of a step, and whose they are."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from spear_hf.errors import InputError
from spear_hf.learning.objective import ImageGroups
from spear_hf.learning.stream_state import StreamState
from spear_hf.utils.distributed import BatchShard
from spear_hf.utils.model_inputs import Further, rows_of


@dataclass(frozen=True)
class StreamBatch:
    """Images of one stream, or of several.

    Args:
        x: (B, ...), on this process.
        shard: how the global batch is spread over processes; several streams are never spread.
        states: of the S streams.
        index: (B,) int64 in 0..S-1, the stream of each image; None where there is one stream.
        further: what the model takes beside the images, with a row for each.
    """

    x: Tensor
    shard: BatchShard
    states: Sequence[StreamState]
    index: Tensor | None = None
    further: Further = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """How many images each stream has, over all processes."""
        if self.index is None:
            return [self.shard.total]
        return torch.bincount(self.index, minlength=len(self.states)).tolist()

    @property
    def groups(self) -> ImageGroups | None:
        """As the objective takes it; None for one stream."""
        return None if self.index is None else ImageGroups(self.index, self.sizes)

    def rows_of(self, chosen: Sequence[int]) -> Tensor:
        """The places of the images of these streams, in order."""
        assert self.index is not None
        return torch.isin(self.index, torch.tensor(chosen)).nonzero().flatten()

    def rows(self, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Values of the streams, (S, C) each, as (B, C) with a row for each image; of one stream as they are."""
        if self.index is None:
            return gamma, beta
        index = self.index.to(gamma.device)
        return gamma.index_select(0, index), beta.index_select(0, index)

    def values_of(self, values: dict[str, Tensor], chosen: Sequence[int]) -> dict[str, Tensor]:
        """The rows of these streams in values (S, C) of all of them; of one stream (C,)."""
        if len(chosen) == len(self.states):
            return values
        place = chosen[0] if len(chosen) == 1 else torch.tensor(chosen)
        return {key: value[place] for key, value in values.items()}

    def with_images(self, x: Tensor) -> "StreamBatch":
        """Other views of the same images."""
        return replace(self, x=x)

    def _at(self, rows: Any) -> tuple[Tensor, Further]:
        """The images at these rows, and what goes with them."""
        return self.x[rows.to(self.x.device) if isinstance(rows, Tensor) else rows], rows_of(self.further, rows)

    def of(self, chosen: Sequence[int]) -> "StreamBatch":
        """The images of these streams alone; itself where these are all."""
        if len(chosen) == len(self.states):
            return self
        assert self.index is not None
        rows = self.rows_of(chosen)
        place = torch.full((len(self.states),), -1)
        place[torch.tensor(chosen)] = torch.arange(len(chosen))
        index = None if len(chosen) == 1 else place[self.index[rows]]
        x, further = self._at(rows)
        return StreamBatch(x, local_shard(len(rows)), [self.states[i] for i in chosen], index, further)

    def every(self, stride: int) -> "StreamBatch":
        """Every stride-th image of each stream."""
        if stride == 1:
            return self
        if self.index is None:
            part, chosen = self.shard.every(stride)
            x, further = self._at(torch.arange(self.shard.local)[chosen] if part.local else slice(1))
            return StreamBatch(x, part, self.states, None, further)
        rows = (
            torch.cat([(self.index == i).nonzero().flatten()[::stride] for i in range(len(self.states))]).sort().values
        )
        x, further = self._at(rows)
        return StreamBatch(x, local_shard(len(rows)), self.states, self.index[rows], further)


def local_shard(images: int) -> BatchShard:
    """A batch that this process has all of."""
    return BatchShard((images,), 0, lambda part: part)


def grouped(streams: str | Sequence[str], images: int) -> tuple[list[str], Tensor | None]:
    """The names of the streams in the order in which they come, and the stream of each image; None for one stream.

    Args:
        streams: a name for each image, or one for all of them.
        images: how many there are.

    Raises:
        InputError: another number of names than of images, or names that are no text.

    >>> grouped(["b", "a", "b"], 3)
    (['b', 'a'], tensor([0, 1, 0]))
    """
    if isinstance(streams, str):
        return [streams], None
    if not isinstance(streams, Iterable):
        raise InputError(f"streams is a {type(streams).__name__}; give a name for each image, or one for all")
    given = list(streams)
    for name in given:
        if not isinstance(name, str):
            raise InputError(f"stream name {name!r} is not allowed; it is a line of text, not a {type(name).__name__}")
    if len(given) != images:
        raise InputError(f"streams has {len(given)} names for {images} images; give one name for each image")
    names = list(dict.fromkeys(given))
    place = {name: i for i, name in enumerate(names)}
    return names, None if len(names) == 1 else torch.tensor([place[name] for name in given])
