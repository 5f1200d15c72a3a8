"""Right and wrong answers, their likelihood and their calibration, by domain; percentages, as in the paper's tables.

All of it is a sum over images, kept in whole numbers: however the images are spread over batches and processes, the
sums of the same answers are the same bits, and processes add up theirs without gathering a logit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spear_hf.errors import DataError

NUM_BINS = 15  # of the calibration error, of equal width, as it is usually reported
NUM_SUMS = 2 + NUM_BINS
UNIT = 1_000_000  # of likelihood and confidence: they are summed in millionths
WORST_NLL = 10_000.0  # nats; stands for an answer that is not finite, too


def count_wrong(logits: Tensor, labels: Tensor, classes: Tensor | None = None) -> int:
    """How many of the answers are wrong: logits (B, K), labels (B,) in 0..K-1; B may be 0.

    Args:
        classes: (S,) those that can occur, where the data has fewer than the model; no other can be the answer.
    """
    if len(labels) and (int(labels.max()) >= logits.shape[1] or int(labels.min()) < 0):
        raise DataError(
            f"labels {int(labels.min())}..{int(labels.max())} do not fit a model with {logits.shape[1]} classes; "
            "map the dataset's labels to the model's, or choose the model that was trained on this label set"
        )
    return int((answers_of(logits, classes) != labels.cpu()).sum())


def answers_of(logits: Tensor, classes: Tensor | None = None) -> Tensor:
    """(B,) int64 on the CPU, the class that each image gets; `classes` as for `count_wrong`."""
    logits = logits.cpu()
    return logits.argmax(1) if classes is None else classes[logits[:, classes].argmax(1)]


def sums_over(logits: Tensor, labels: Tensor, classes: Tensor | None = None) -> Tensor:
    """(2 + 15,) int64 sums over a batch: wrong answers; -log p of the labels; and for each bin of confidence, right
    answers minus confidence. The last two are in millionths.

    Args:
        logits, labels, classes: as for `count_wrong`; probabilities are over the classes that can occur.
    """
    wrong = count_wrong(logits, labels, classes)
    logits, labels = logits.detach().cpu().double(), labels.cpu()
    possible = logits if classes is None else logits[:, classes]
    evidence = possible.logsumexp(1)
    nll = (evidence - logits.gather(1, labels[:, None]).squeeze(1)).nan_to_num(WORST_NLL).clamp(0, WORST_NLL)
    best, place = possible.max(1)
    answers = place if classes is None else classes[place]
    confidence = (best - evidence).exp().nan_to_num(0.0)
    gaps = ((answers == labels).double() - confidence).mul(UNIT).round().long()
    bins = (confidence * NUM_BINS).ceil().long().sub(1).clamp(0, NUM_BINS - 1)
    calibration = torch.zeros(NUM_BINS, dtype=torch.int64).index_add(0, bins, gaps)
    return torch.cat([torch.tensor([wrong, int(nll.mul(UNIT).round().long().sum())]), calibration])


@dataclass
class Counts:
    """Running sums over the answers of one method in one domain.

    Args:
        wrong: answers that were wrong.
        total: answers.
        nll: negative log-likelihood of the labels, in millionths of a nat.
        gaps: right answers minus confidence, in millionths, in each of the bins of confidence.
    """

    wrong: int = 0
    total: int = 0
    nll: int = 0
    gaps: list[int] = field(default_factory=lambda: [0] * NUM_BINS)

    def add(self, sums: Sequence[int], total: int) -> None:
        """Count a batch of `total` answers, whose `sums_over` these are."""
        self.wrong += sums[0]
        self.nll += sums[1]
        self.gaps = [mine + new for mine, new in zip(self.gaps, sums[2:], strict=True)]
        self.total += total

    @property
    def error(self) -> float:
        """In percent; NaN before the first batch."""
        return 100 * self.wrong / self.total if self.total else float("nan")

    @property
    def mean_nll(self) -> float:
        """In nats, to four decimals: below them the logits of one process and of several differ anyway."""
        return round(self.nll / UNIT / self.total, 4) if self.total else float("nan")

    @property
    def ece(self) -> float:
        """Expected calibration error (Naeini et al. 2015, Guo et al. 2017), in percent, to three decimals.

        The mean over images of |accuracy - mean confidence| of the bin that an image's confidence falls into.
        """
        return round(100 * sum(map(abs, self.gaps)) / UNIT / self.total, 3) if self.total else float("nan")


@dataclass
class DomainCounts:
    """domain -> method -> Counts, in the order in which the domains came."""

    counts: dict[str, dict[str, Counts]] = field(default_factory=dict)

    def of(self, domain: str, method: str) -> Counts:
        """The counts of one cell, made when first asked for."""
        return self.counts.setdefault(domain, {}).setdefault(method, Counts())


def mean(values: list[float]) -> float:
    """The unweighted mean, as the paper averages over corruptions; NaN for none."""
    return float(torch.tensor(values, dtype=torch.float64).mean()) if values else float("nan")
