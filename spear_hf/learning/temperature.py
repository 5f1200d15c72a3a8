"""The temperature at which a batch is learned from, where the scale of a model's logits says little (ours).

Cosines of CLIP are multiplied by 100. How sure such logits are depends on how far apart the texts are, and where nearly
all answers have a probability of 1, entropy and diversity have no gradient. Divided by the temperature at which their
mean entropy over the batch is that of a classifier, logits of any scale teach the same. Answers keep their scale.
"""

import torch
from torch import Tensor

from spear_hf.learning.objective import ImageGroups, normalized_entropy, row_means
from spear_hf.utils.distributed import BatchShard

OF_TEXTS = 0.2
"""The entropy for a model of images and texts, where the configuration gives none."""

_LOWEST, _HIGHEST, _STEP = -6.0, 8.0, 0.5  # of log T; between two steps the entropy is nearly linear in log T


@torch.no_grad()
def learning_temperature(
    logits: Tensor, entropy: float, shard: BatchShard | None = None, groups: ImageGroups | None = None
) -> Tensor:
    """T > 0, at which the mean normalised entropy of softmax(logits / T) over the batch is `entropy`.

    Args:
        logits: (B, K).
        entropy: in (0, 1).
        shard, groups: as for `batch_means`; with groups each stream has a temperature of its own, (S,).

    >>> logits = torch.tensor([[900.0, 0.0, 0.0], [300.0, 0.0, 0.0]])
    >>> round(float(normalized_entropy(logits / learning_temperature(logits, 0.2)).mean()), 2)
    0.2
    """
    steps = torch.arange(_LOWEST, _HIGHEST + _STEP, _STEP, device=logits.device)
    rows = torch.stack([normalized_entropy(logits / step.exp()) for step in steps], 1)
    means = row_means(rows, shard, groups)  # (G,) or (S, G), which grow with T
    at = (means < entropy).sum(-1).clamp(1, len(steps) - 1)
    below, above = means.gather(-1, (at - 1)[..., None])[..., 0], means.gather(-1, at[..., None])[..., 0]
    part = ((entropy - below) / (above - below).clamp_min(1e-12)).clamp(0, 1).nan_to_num(0)
    return (steps[at - 1] + _STEP * part).exp()
