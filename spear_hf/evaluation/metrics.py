"""Sums over the predictions of a batch: wrong ones, likelihood and calibration.

Every metric is a ratio of sums of whole numbers over images. So the result does not depend on how the images are spread
over batches and processes, bit for bit, and processes add up their sums without gathering any logits.
"""

import torch
from torch import Tensor

from spear_hf.errors import DataError
from spear_hf.learning.objective import normalized_entropy

NUM_BINS = 15  # equal-width bins of confidence, the usual number for the calibration error
NUM_SUMS = 4 + NUM_BINS
UNIT = 1_000_000  # likelihood and confidence are rounded to millionths: integer sums do not depend on their order
WORST_NLL = 10_000.0  # nats; also the value for logits that are not finite


def count_wrong(logits: Tensor, labels: Tensor, classes: Tensor | None = None) -> int:
    """The number of wrong predictions.

    >>> import torch
    >>> from spear_hf.evaluation.metrics import count_wrong
    >>> count_wrong(torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]]), torch.tensor([0, 1]))
    1

    Args:
        logits: (B, K); B may be 0.
        labels: (B,) integers in 0..K-1.
        classes: (S,) the classes that can be predicted, where the data has fewer than the model; None for all.

    Raises:
        DataError: a label outside 0..K-1.
    """
    if len(labels) and (int(labels.max()) >= logits.shape[1] or int(labels.min()) < 0):
        raise DataError(
            f"labels {int(labels.min())}..{int(labels.max())} do not fit a model with {logits.shape[1]} classes; "
            "map the dataset's labels to the model's, or choose the model that was trained on this label set"
        )
    return int((answers_of(logits, classes) != labels.cpu()).sum())


def answers_of(logits: Tensor, classes: Tensor | None = None) -> Tensor:
    """(B,) int64 on the CPU: the predicted class of each image.

    >>> import torch
    >>> from spear_hf.evaluation.metrics import answers_of
    >>> answers_of(torch.tensor([[9.0, 1.0, 0.0]]), classes=torch.tensor([1, 2]))
    tensor([1])

    Args:
        logits, classes: as for `count_wrong`.
    """
    logits = logits.cpu()
    return logits.argmax(1) if classes is None else classes[logits[:, classes].argmax(1)]


def sums_over(
    logits: Tensor, labels: Tensor | None, classes: Tensor | None = None, reference: Tensor | None = None
) -> Tensor:
    """(4 + 15,) int64 sums over a batch, which `MetricAccumulator.add` takes.

    The number of wrong predictions; the sum of -log p of the labels, in millionths of a nat; the sum of the normalised
    entropy of the answers, in millionths; the number of answers that differ from the reference's; and for each of the
    15 bins of confidence, the number of right predictions minus the sum of their confidence, in millionths. What needs
    labels is 0 without them.

    >>> import torch
    >>> from spear_hf.evaluation.metrics import sums_over
    >>> sums_over(torch.tensor([[0.9, 0.1], [0.9, 0.1]]).log(), torch.tensor([0, 1]))[:3]
    tensor([      1, 2407946,  937992])

    Args:
        logits, labels, classes: as for `count_wrong`; probabilities are taken over `classes`.
        reference: (B, K) logits of another method; None is the method itself.
    """
    logits = logits.detach()
    changed = 0 if reference is None else int((answers_of(logits, classes) != answers_of(reference, classes)).sum())
    logits = logits.cpu().double()
    possible = logits if classes is None else logits[:, classes]
    unsure = normalized_entropy(possible).nan_to_num(1.0).clamp(0, 1)
    entropy = int(unsure.mul(UNIT).round().long().sum())
    if labels is None:
        return torch.tensor([0, 0, entropy, changed] + [0] * NUM_BINS)
    wrong, labels = count_wrong(logits, labels, classes), labels.cpu()
    evidence = possible.logsumexp(1)
    nll = (evidence - logits.gather(1, labels[:, None]).squeeze(1)).nan_to_num(WORST_NLL).clamp(0, WORST_NLL)
    best, place = possible.max(1)
    answers = place if classes is None else classes[place]
    confidence = (best - evidence).exp().nan_to_num(0.0)
    gaps = ((answers == labels).double() - confidence).mul(UNIT).round().long()
    bins = (confidence * NUM_BINS).ceil().long().sub(1).clamp(0, NUM_BINS - 1)
    calibration = torch.zeros(NUM_BINS, dtype=torch.int64).index_add(0, bins, gaps)
    return torch.cat([torch.tensor([wrong, int(nll.mul(UNIT).round().long().sum()), entropy, changed]), calibration])


def mean(values: list[float]) -> float:
    """The unweighted mean, as the paper averages over corruptions; NaN for an empty list.

    >>> from spear_hf.evaluation.metrics import mean
    >>> mean([10.0, 20.0])
    15.0
    """
    return float(torch.tensor(values, dtype=torch.float64).mean()) if values else float("nan")
