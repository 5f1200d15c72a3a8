"""The shadow sample: images that the source answers too, and evidence, without labels, of which answer is right."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spear_hf.learning.objective import normalized_entropy
from spear_hf.utils.distributed import BatchShard

BATCHES = 4  # of them, at most, one image is a shadow image; of one image each, all would cost 15 % of the time

ENOUGH = 16  # images of a batch, where every image is compared: more of one batch say little more


class Evidence(NamedTuple):
    """Sums over n images that both the method and the source have answered.

    Args:
        n: how many images.
        regret: sum of p(y_source) - p(y_method), where p is the mean of both probability vectors and y the predicted
            class of each: how many more predictions of the method are wrong, if both are believed equally. An image
            counts 0 where they agree, and less than 0 where the method is the more certain one; in [-n, n].
        entropy_rise: sum of the method's normalized entropies minus the source's; in [-n, n].
        classes: (2, K): how often the method (row 0) and the source (row 1) predicted each class.

    >>> import torch
    >>> from spear_hf.guard.shadow import Evidence
    >>> Evidence(n=8, regret=0.4, entropy_rise=-1.0, classes=torch.ones(2, 10)).regret
    0.4
    """

    n: int
    regret: float
    entropy_rise: float
    classes: Tensor


@torch.no_grad()
def evidence(method: Tensor, source: Tensor, shard: BatchShard) -> Evidence:
    """The Evidence in two sets of logits for the same images, summed over all processes.

    Args:
        method: (n, K). A row that is not finite counts as wrong and as maximally uncertain.
        source: (n, K).
        shard: gives the sum over the processes.

    >>> import torch
    >>> from spear_hf.guard.shadow import evidence
    >>> from spear_hf.utils.distributed import ProcessGroup
    >>> found = evidence(torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 1.0]]), ProcessGroup().shard(1))
    >>> found.regret < 0, found.entropy_rise < 0  # the method is the more certain one
    (True, True)
    """
    method, source = method.float(), source.float()
    classes = source.shape[1]
    finite = torch.isfinite(method).all(1)
    method = torch.where(finite[:, None], method, 0.0)
    p = (method.softmax(1) + source.softmax(1)) / 2
    ours, theirs = method.argmax(1, keepdim=True), source.argmax(1, keepdim=True)
    regret = torch.where(finite, (p.gather(1, theirs) - p.gather(1, ours))[:, 0], 1.0)
    rise = normalized_entropy(method) - normalized_entropy(source)
    counts = [torch.bincount(predicted[:, 0], minlength=classes).float() for predicted in (ours, theirs)]
    own = torch.stack([rise.new_tensor(float(len(rise))), regret.sum(), rise.sum()])
    sums = shard.sum(torch.cat([own, *counts])).cpu()  # one collective for all of them
    return Evidence(int(sums[0]), float(sums[1]), float(sums[2]), sums[3:].view(2, classes))


class ShadowEvaluation:
    """Collects the shadow images of a stream until there are enough for one forward of the source.

    Image g of the stream is a shadow image if g mod stride = (g div stride) mod stride: one of every `stride`, at a
    place in the batch that moves on, and the same for any number of processes. The images wait for each other because
    the cost of a forward of few images is mostly a constant.

    Args:
        stride: one image in so many; of small batches one image in BATCHES of them.
        pool: how many images, over all processes, go into one forward.

    >>> import torch
    >>> from spear_hf.guard.shadow import ShadowEvaluation
    >>> from spear_hf.utils.distributed import ProcessGroup
    >>> shadow, shard = ShadowEvaluation(stride=16, pool=2), ProcessGroup().shard(32)
    >>> shadow.add(torch.rand(32, 3, 8, 8), torch.rand(32, 10), shard)  # images and the method's logits
    >>> shadow.compare(lambda images: torch.rand(len(images), 10), shard).n
    2
    """

    def __init__(self, stride: int, pool: int) -> None:
        self.stride = stride
        self.pool = pool
        self.clear()

    def clear(self) -> None:
        """Start a new stream."""
        self.seen = 0  # images of the stream so far, over all processes
        self.drop()

    def drop(self) -> None:
        """Forget the waiting images: the state that answered them is gone."""
        self.waiting = 0  # over all processes
        self.images: list[Tensor] = []  # of this process; one tensor for each run of images of one size and dtype
        self.answers: Tensor | None = None  # of this process, to all of them in order

    @torch.no_grad()  # images may require grad; what is kept over steps must not hold their graph
    def add(self, x: Tensor, answers: Tensor, shard: BatchShard, *, every_image: bool = False) -> None:
        """Keep the shadow images among x (B, ...), and the method's logits (B, K) for them.

        Args:
            every_image: keep all, or about ENOUGH of a larger batch.
        """
        stride = max(1, shard.total // ENOUGH) if every_image else min(self.stride, BATCHES * shard.total)
        self.waiting += len(self._places(0, shard.total, stride))
        rows = torch.tensor(self._places(shard.offset, shard.local, stride), dtype=torch.long, device=x.device)
        self.answers = _joined(self.answers, answers[rows])
        images = x[rows]
        if self.images and (images.shape[1:], images.dtype) == (self.images[-1].shape[1:], self.images[-1].dtype):
            self.images[-1] = _joined(self.images[-1], images)
        elif len(images):
            self.images.append(images)

    def _places(self, first: int, count: int, stride: int) -> list[int]:
        start = self.seen + first
        return [g - start for g in range(start, start + count) if g % stride == (g // stride) % stride]

    def compare(self, source: Callable[[Tensor], Tensor], shard: BatchShard) -> Evidence | None:
        """The Evidence in the waiting images, which are then forgotten; None while they are fewer than `pool`."""
        if self.waiting < self.pool or self.answers is None:
            return None
        images, answers = self.images, self.answers
        self.drop()
        # after a resume the waiting images may be on the CPU; without images here, the sums still need this process
        theirs = torch.cat([source(run.to(answers.device)) for run in images]) if images else answers
        return evidence(answers, theirs, shard)

    def state_dict(self) -> dict[str, Any]:
        """The waiting images and their answers, and how many images were seen."""
        return {"seen": self.seen, "waiting": self.waiting, "images": list(self.images), "answers": self.answers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.seen, self.waiting = state["seen"], state["waiting"]
        self.images, self.answers = list(state["images"]), state["answers"]


def _joined(before: Tensor | None, new: Tensor) -> Tensor:
    return new if before is None else torch.cat([before.to(new.device), new])
