"""StreamPart: the images of one stream in a batch; batches are split into parts and put together again."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spear_hf.guard.stream_watch import StreamWatch
from spear_hf.learning.stream_batch import local_shard
from spear_hf.utils.distributed import BatchShard


@dataclass(frozen=True)
class StreamPart:
    """The images of one stream in a batch.

    Args:
        name: of the stream; None if the batch has no named streams.
        watch: of the stream.
        x: (n, C, H, W), this process's images; n = 0 on a process without any.
        images: x, or one black image if n = 0: the source, unlike a method, cannot run on none.
        rows: (n,) int64, the places of the images in the batch.
        bad: rows of x in which NaN or infinity was replaced.
        shard: how the global batch is spread.

    >>> import torch
    >>> from spear_hf.guard.stream_part import stream_parts
    >>> (part,) = stream_parts(torch.rand(3, 3, 8, 8), ["a"], [None], None, [])
    >>> part.name, part.rows, part.shard.total
    ('a', tensor([0, 1, 2]), 3)
    """

    name: str | None
    watch: StreamWatch
    x: Tensor
    images: Tensor
    rows: Tensor
    bad: list[int]
    shard: BatchShard


def whole_batch(watch: StreamWatch, x: Tensor, images: Tensor, bad: list[int], shard: BatchShard) -> StreamPart:
    """A batch without named streams, as its only part.

    >>> import torch
    >>> from spear_hf.baselines import Source
    >>> from spear_hf.guard import Guard
    >>> from spear_hf.guard.stream_part import whole_batch
    >>> from spear_hf.learning.stream_batch import local_shard
    >>> model, x = torch.nn.Flatten(), torch.rand(4, 3, 2, 2)
    >>> watch = Guard(Source(model), source=torch.nn.Flatten())._watch
    >>> whole_batch(watch, x, x, [], local_shard(4)).rows
    tensor([0, 1, 2, 3])
    """
    return StreamPart(None, watch, x, images, torch.arange(len(x)), bad, shard)


def stream_parts(
    x: Tensor, names: Sequence[str], watches: Sequence[StreamWatch], index: Tensor | None, bad: Sequence[int]
) -> list[StreamPart]:
    """The parts of a batch of named streams, one for each stream.

    Args:
        x: (B, C, H, W).
        names: of the S streams.
        watches: of the S streams.
        index: (B,) int64 in 0..S-1, the stream of each image; None if there is one stream.
        bad: rows of x in which NaN or infinity was replaced.

    >>> import torch
    >>> from spear_hf.guard.stream_part import stream_parts
    >>> parts = stream_parts(torch.rand(3, 3, 8, 8), ["a", "b"], [None, None], torch.tensor([0, 1, 0]), [2])
    >>> [(part.name, part.rows.tolist(), part.bad) for part in parts]
    [('a', [0, 2], [1]), ('b', [1], [])]
    """
    parts = []
    for i, (name, watch) in enumerate(zip(names, watches, strict=True)):
        rows = torch.arange(len(x)) if index is None else (index == i).nonzero().flatten()
        images = x if index is None else x[rows.to(x.device)]
        own_bad = [place for place, row in enumerate(rows.tolist()) if row in bad]
        parts.append(StreamPart(name, watch, images, images, rows, own_bad, local_shard(len(rows))))
    return parts


def joined(tensors: Sequence[Tensor], parts: Sequence[StreamPart]) -> Tensor:
    """A tensor (n, ...) for each part as one, in the order of the batch.

    >>> import torch
    >>> from spear_hf.guard.stream_part import joined, stream_parts
    >>> x = torch.rand(3, 3, 8, 8)
    >>> parts = stream_parts(x, ["a", "b"], [None, None], torch.tensor([0, 1, 0]), [])
    >>> torch.equal(joined([part.x for part in parts], parts), x)
    True
    """
    if len(tensors) == 1:
        return tensors[0]
    together = torch.cat(list(tensors))
    return together[torch.cat([part.rows for part in parts]).argsort().to(together.device)]


def separated(together: Tensor, parts: Sequence[StreamPart]) -> list[Tensor]:
    """A tensor (B, ...) in the order of the batch as (n, ...) for each part: the inverse of `joined`.

    >>> import torch
    >>> from spear_hf.guard.stream_part import separated, stream_parts
    >>> parts = stream_parts(torch.rand(3, 3, 8, 8), ["a", "b"], [None, None], torch.tensor([0, 1, 0]), [])
    >>> separated(torch.tensor([5, 6, 7]), parts)
    [tensor([5, 7]), tensor([6])]
    """
    if len(parts) == 1:
        return [together]
    places = torch.cat([part.rows for part in parts]).argsort().argsort().to(together.device)
    return list(together[places].split([len(part.rows) for part in parts]))
