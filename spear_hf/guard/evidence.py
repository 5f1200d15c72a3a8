"""What the answers of a method and of its source to the same images say about who is right, without labels."""

from typing import NamedTuple

import torch
from torch import Tensor

from spear_hf.learning.objective import normalized_entropy
from spear_hf.utils.distributed import BatchShard


class Evidence(NamedTuple):
    """Sums over n images.

    Args:
        n: how many images.
        regret: sum of p(y_source) - p(y_method), where p is the mean of both probabilities and y each one's answer: how
            many more of the method's answers are wrong, if both are believed alike. 0 where they agree, below 0 where
            the method is the surer one of its own answer; in [-n, n].
        entropy_rise: sum of the method's normalised entropies less the source's; in [-n, n].
        classes: (2, K): how often the method, and the source, answered each class.
    """

    n: int
    regret: float
    entropy_rise: float
    classes: Tensor


@torch.no_grad()
def evidence(method: Tensor, source: Tensor, shard: BatchShard) -> Evidence:
    """What two sets of logits (n, K) of the same images say, summed over all processes.

    An answer of the method that is not finite counts as wrong, and as wholly unsure.
    """
    method, source = method.float(), source.float()
    classes = source.shape[1]
    finite = torch.isfinite(method).all(1)
    method = torch.where(finite[:, None], method, 0.0)
    p = (method.softmax(1) + source.softmax(1)) / 2
    ours, theirs = method.argmax(1, keepdim=True), source.argmax(1, keepdim=True)
    regret = torch.where(finite, (p.gather(1, theirs) - p.gather(1, ours))[:, 0], 1.0)
    rise = normalized_entropy(method) - normalized_entropy(source)
    counts = [torch.bincount(answers[:, 0], minlength=classes).float() for answers in (ours, theirs)]
    own = torch.stack([rise.new_tensor(float(len(rise))), regret.sum(), rise.sum()])
    sums = shard.sum(torch.cat([own, *counts])).cpu()
    return Evidence(int(sums[0]), float(sums[1]), float(sums[2]), sums[3:].view(2, classes))
