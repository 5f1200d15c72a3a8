"""The shadow sample: every 16th image of the stream waits, with the method's answer, for one forward of the source."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spear_hf.guard.evidence import Evidence, evidence
from spear_hf.utils.distributed import BatchShard


class ShadowEvaluation:
    """The images that the source answers too.

    Image g of the stream is one of them where g mod stride = (g div stride) mod stride: one of every `stride`, at a
    place in the batch that moves on, the same for any number of processes. Waiting for several of them makes one
    forward of many small ones, whose cost is mostly that of being called.

    Args:
        stride: one image of so many; of a smaller batch it is one of the batch.
        pool: how many of them, over all processes, go into one forward.
    """

    def __init__(self, stride: int, pool: int) -> None:
        self.stride = stride
        self.pool = pool
        self.seen = 0  # images of the stream so far, over all processes
        self.clear()

    def clear(self) -> None:
        """Forget those that wait: they were answered by a state that is gone."""
        self.waiting = 0
        self.images: Tensor | None = None
        self.answers: Tensor | None = None

    def add(self, x: Tensor, answers: Tensor, shard: BatchShard, *, all_of_them: bool = False) -> None:
        """Keep the shadow images among x (B, ...), or all of them, and the method's answers (B, K) to them."""
        stride = 1 if all_of_them else min(self.stride, shard.total)
        self.waiting += len(self._places(0, shard.total, stride))
        rows = torch.tensor(self._places(shard.offset, shard.local, stride), dtype=torch.long, device=x.device)
        self.images = _joined(self.images, x[rows])
        self.answers = _joined(self.answers, answers[rows])

    def _places(self, first: int, count: int, stride: int) -> list[int]:
        start = self.seen + first
        return [g - start for g in range(start, start + count) if g % stride == (g // stride) % stride]

    def compare(self, source: Callable[[Tensor], Tensor], shard: BatchShard) -> Evidence | None:
        """What source and method say about those that wait, once they are enough; then they are forgotten."""
        if self.waiting < self.pool or self.images is None or self.answers is None:
            return None
        images, answers = self.images, self.answers
        self.clear()
        return evidence(answers, source(images) if len(images) else answers, shard)

    def state_dict(self) -> dict[str, Any]:
        """Those that wait, and how many images were seen."""
        return {"seen": self.seen, "waiting": self.waiting, "images": self.images, "answers": self.answers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.seen, self.waiting = state["seen"], state["waiting"]
        self.images, self.answers = state["images"], state["answers"]


def _joined(before: Tensor | None, new: Tensor) -> Tensor:
    return new.clone() if before is None else torch.cat([before.to(new.device), new])
