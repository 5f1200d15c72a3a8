"""Views of a batch that its answer is averaged over: the mirrored images, and both moved a little (ours).

A view costs a forward and no gradient. Averaging over a few of them takes away more errors than any objective does
(benchmarks/results/compare.md), where a mirrored image is still of its class: not with digits, text or road signs.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from spear_hf.errors import InputError
from spear_hf.learning.objective import log_probabilities

FRACTION = 32  # of the side of an image that it is moved by, at least a pixel


def check_views(x: Tensor, count: int) -> None:
    """Raise InputError for more than one view of anything but (B, C, H, W)."""
    if count > 1 and x.dim() != 4:
        raise InputError(
            f"tta_views={count} needs images (B, C, H, W), and this batch is {tuple(x.shape)}; set tta_views=1"
        )


def further_views(x: Tensor, count: int) -> Iterator[Tensor]:
    """The first `count` - 1 of: mirrored; moved right and down; moved left and up, and mirrored.

    Args:
        x: (B, C, H, W); the border is repeated where an image moves away from it.
        count: 1 to 4, with x itself as the first.
    """
    by = max(1, x.shape[-1] // FRACTION)
    for view in range(1, count):
        moved = x if view == 1 else _moved(x, by if view == 2 else -by)
        yield moved.flip(-1) if view % 2 else moved


def _moved(x: Tensor, by: int) -> Tensor:
    height, width = x.shape[-2:]
    size = abs(by)
    wide = F.pad(x, (size, size, size, size), mode="replicate")
    return wide[..., size - by : size - by + height, size - by : size - by + width]


def mean_answer(logits: Sequence[Tensor]) -> Tensor:
    """(B, K), the log of the mean probability over the views, each (B, K); one view comes back as it is."""
    if len(logits) == 1:
        return logits[0]
    total = torch.stack([log_probabilities(each) for each in logits]).logsumexp(0)
    return (total - math.log(len(logits))).to(logits[0].dtype)
