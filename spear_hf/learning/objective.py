"""The objective of SPeaR as pure functions of logits and RSPs (Eqs. 6 to 9 and 11)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from spear_hf.config import SpearConfig
from spear_hf.learning.class_marginal import ClassMarginal
from spear_hf.steering.rsp import RSP, RSPValues
from spear_hf.utils.distributed import BatchShard

_FAR = 1e30  # beyond any real logit, and p * log p stays finite where a logit is infinite


def log_probabilities(logits: Tensor) -> Tensor:
    """log softmax, (B, K), in fp32 (or fp64), outside autocast, finite for any logits but NaN."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    with torch.autocast(logits.device.type, enabled=False):
        return F.log_softmax(wide.clamp(-_FAR, _FAR), dim=-1)


def normalized_entropy(logits: Tensor) -> Tensor:
    """How unsure each answer is, H(p) / log K (Eq. 6).

    Args:
        logits: (B, K) with K >= 2.

    Returns:
        (B,) fp32 in [0, 1]; 1 for a uniform prediction.
    """
    log_p = log_probabilities(logits)
    return -(log_p.exp() * log_p).sum(-1) / math.log(logits.shape[-1])


def should_adapt(mean_entropy: Tensor, tau: float) -> bool:
    """The hard gate: learn from this batch unless its mean normalised entropy is below tau (section 3.3)."""
    return not bool(mean_entropy < tau)


def likelihood_ratio(logits: Tensor) -> Tensor:
    """-sum_k p_k log(p_k / (1 - p_k)) / log K of each answer (ours; Mummadi et al. 2021).

    The gradient of the entropy vanishes where an answer is sure. A network that is sure when it is wrong, as most are
    on corrupted images, then learns from a few images of the batch alone. Here sure answers keep their gradient.

    Args:
        logits: (B, K) with K >= 2.

    Returns:
        (B,) fp32, negative where the answer is surer than even.

    >>> import torch
    >>> likelihood_ratio(torch.zeros(1, 2)).abs().item()  # p = (1/2, 1/2)
    0.0
    """
    log_p = log_probabilities(logits)
    p = log_p.exp()
    return -(p * (log_p - torch.log1p(-p.clamp(max=1 - 1e-6)))).sum(-1) / math.log(logits.shape[-1])


def entropy_loss(mean_entropy: Tensor, tau: float) -> Tensor:
    """The soft gate, ReLU(mean normalised entropy - tau), a scalar in [0, 1] (Eq. 7)."""
    return F.relu(mean_entropy - tau)


@dataclass(frozen=True)
class ImageGroups:
    """Which stream each image of a batch is of, where the batch holds images of several.

    Args:
        index: (B,) int64 in 0..S-1.
        sizes: how many images each stream has, S of them, at least 1 each.

    >>> import torch
    >>> groups = ImageGroups(torch.tensor([0, 1, 0]), (2, 1))
    >>> groups.means(torch.tensor([1.0, 5.0, 3.0]))
    tensor([2., 5.])
    """

    index: Tensor
    sizes: Sequence[int]

    def means(self, rows: Tensor) -> Tensor:
        """(S, ...), the mean of each stream's rows (B, ...)."""
        sums = rows.new_zeros(len(self.sizes), *rows.shape[1:]).index_add(0, self.index.to(rows.device), rows)
        return sums / rows.new_tensor(self.sizes).view(-1, *[1] * (rows.dim() - 1))


def batch_means(
    logits: Tensor, shard: BatchShard | None = None, groups: ImageGroups | None = None
) -> tuple[Tensor, Tensor]:
    """The mean normalised entropy, a scalar in [0, 1], and the mean prediction pbar (K,) of the global batch.

    Args:
        logits: (B, K), with B = 0 on a process without images.
        shard: the global batch that the logits are a slice of; None where they are all of it.
        groups: takes the means of each stream's images apart: (S,) and (S, K).

    >>> import torch
    >>> batch_means(torch.zeros(4, 2))
    (tensor(1.), tensor([0.5000, 0.5000]))
    """
    entropy, prediction, _ = _means(logits, shard, groups)
    return entropy, prediction


def _means(
    logits: Tensor, shard: BatchShard | None, groups: ImageGroups | None, *, with_ratio: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """What `batch_means` returns, and the mean likelihood ratio where it is asked for; in one collective."""
    columns = [normalized_entropy(logits)[:, None], log_probabilities(logits).exp()]
    if with_ratio:
        columns.append(likelihood_ratio(logits)[:, None])
    means = row_means(torch.cat(columns, 1), shard, groups)
    return means[..., 0], means[..., 1 : 1 + logits.shape[-1]], means[..., -1] if with_ratio else None


def row_means(rows: Tensor, shard: BatchShard | None = None, groups: ImageGroups | None = None) -> Tensor:
    """(R,) over the global batch, or (S, R) over each stream's images, of rows (B, R).

    >>> row_means(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([2., 3.])
    """
    if groups is not None:
        return groups.means(rows)
    return rows.sum(0) / len(rows) if shard is None else shard.sum(rows.sum(0)) / shard.total


def diversity_loss(logits: Tensor, shard: BatchShard | None = None) -> Tensor:
    """How far the batch's mean prediction is from uniform, KL(pbar || U), in nats (Eq. 8).

    Args:
        logits: (B, K).
        shard: as for `batch_means`.

    Returns:
        A scalar in [0, log K]; 0 when every class is predicted equally often.
    """
    return _divergence_from_uniform(batch_means(logits, shard)[1])


def evidence_share(images: float, classes: int, images_per_class: float) -> float:
    """Which part of the images that could show all classes the mean prediction rests on, in (0, 1] (ours).

    n confident answers are at least log(K / n) from uniform, however right they are. Asked for all classes all the
    same, a network of 1,000 classes at batch 16 lost 12 points on one corruption, and at batch 1 any network collapses.

    Args:
        images: n, of this batch and of what is remembered.
        classes: K.
        images_per_class: how many images of each class are enough; 0 asks for none, and gives 1.

    >>> evidence_share(80, 10, 1.6), evidence_share(80, 1000, 1.6)
    (1.0, 0.05)
    """
    return min(1.0, images / (images_per_class * classes)) if images_per_class else 1.0


def _divergence_from_uniform(p: Tensor) -> Tensor:
    return math.log(p.shape[-1]) + torch.special.xlogy(p, p.clamp_min(1e-38)).sum(-1)


def anchor_loss(rsps: Mapping[int, Sequence[RSP | RSPValues]], growth: float) -> Tensor:
    """sum_d lambda_d (||gamma_d - 1||^2 + ||beta_d||^2) with lambda_d = growth ** d (Eq. 9).

    Args:
        rsps: the RSPs at each depth; several where a boundary consists of several tensors.
        growth: at least 1; above 1 it makes lambda_0 < lambda_1 < ... < lambda_L, as the paper asks.
    """
    terms = [growth**depth * rsp.deviation() for depth, several in rsps.items() for rsp in several]
    return torch.stack([term.to(terms[0].device) for term in terms]).sum(0)


class Losses(NamedTuple):
    """The three terms of Eq. 11, unweighted, their weighted sum, and the batch's means they were computed from."""

    mean_entropy: Tensor
    mean_prediction: Tensor
    entropy: Tensor
    diversity: Tensor
    anchor: Tensor
    total: Tensor


def spear_loss(
    logits: Tensor,
    rsps: Mapping[int, Sequence[RSP | RSPValues]],
    config: SpearConfig,
    shard: BatchShard | None = None,
    seen: ClassMarginal | Sequence[ClassMarginal] | None = None,
    groups: ImageGroups | None = None,
    temperature: Tensor | None = None,
) -> Losses:
    """lambda_ent L_ent + lambda_div L_div + lambda_anchor L_anchor (Eq. 11), with its parts; of the global batch.

    Args:
        logits: (B, K).
        rsps: as for `anchor_loss`.
        config: tau, the weights, and how much of L_ent is the likelihood ratio.
        shard: as for `batch_means`.
        seen: what the mean prediction remembers of the stream, of each stream for `groups`; None takes the batch alone.
        groups: as for `batch_means`; every loss is then (S,), each stream's own, and the RSPs are (S, C).
        temperature: a scalar, or (S,), that logits are divided by for the losses; `mean_entropy` is that of the logits
            as they are. None is 1.

    >>> import torch
    >>> round(spear_loss(torch.zeros(4, 10), {0: [RSP(8, 1)]}, SpearConfig.paper(tau=0.25)).entropy.item(), 4)
    0.75
    """
    share = config.likelihood_ratio
    answered = None if temperature is None else batch_means(logits.detach(), shard, groups)[0]
    if temperature is not None:
        rows = temperature if groups is None else temperature[groups.index.to(temperature.device)][:, None]
        logits = logits / rows
    mean_entropy, mean_prediction, ratio = _means(logits, shard, groups, with_ratio=share > 0)
    entropy = entropy_loss(mean_entropy, config.tau)
    if ratio is not None:
        entropy = (1 - share) * entropy + share * ratio
    sizes = groups.sizes if groups is not None else [len(logits) if shard is None else shard.total]
    if seen is None:
        diversity = _divergence_from_uniform(mean_prediction)
    else:
        diversity = _stream_divergence(mean_prediction, _joined(seen, mean_prediction.detach(), sizes))
    anchor = anchor_loss(rsps, config.anchor_growth).to(logits.device)
    weights = [config.lambda_div * each for each in evidence(sizes, logits.shape[-1], config, seen)]
    lambda_div = weights[0] if groups is None else diversity.new_tensor(weights)
    total = config.lambda_ent * entropy + lambda_div * diversity + config.lambda_anchor * anchor
    shown = mean_entropy if answered is None else answered
    return Losses(shown, mean_prediction, entropy, diversity, anchor, total)


def evidence(
    sizes: Sequence[int],
    classes: int,
    config: SpearConfig,
    seen: ClassMarginal | Sequence[ClassMarginal] | None,
) -> list[float]:
    """`evidence_share` of each stream, with what it remembers.

    Args:
        sizes: how many images of each stream the batch has.
        classes: K.
        config: evidence_images.
        seen: as for `spear_loss`.
    """
    memories: Sequence[ClassMarginal | None]
    memories = [seen] if isinstance(seen, ClassMarginal) else [None] * len(sizes) if seen is None else seen
    return [
        evidence_share(size if each is None else each.rests_on(size), classes, config.evidence_images)
        for size, each in zip(sizes, memories, strict=True)
    ]


def _joined(seen: ClassMarginal | Sequence[ClassMarginal], means: Tensor, sizes: Sequence[int]) -> Tensor:
    """(K,) or (S, K), what each stream's mean prediction becomes with this batch."""
    if isinstance(seen, ClassMarginal):
        return seen.joined(means, sizes[0])
    rows = zip(seen, means.unbind(), sizes, strict=True)
    return torch.stack([each.joined(mean, size) for each, mean, size in rows])


def _stream_divergence(p: Tensor, stream: Tensor) -> Tensor:
    """KL(stream || U) of what batch and memory predict together, with the gradient that the batch's p alone has there.

    The derivative of KL(q || U) is log q_k + 1. Taken at the stream's q it pushes p from the classes that the stream
    has had too often; where nothing is remembered it is that of Eq. 8. Left as it is, the batch's small share in q
    would make it small too.
    """
    push = (p * stream.clamp_min(1e-38).log()).sum(-1)
    return _divergence_from_uniform(stream) + push - push.detach()
