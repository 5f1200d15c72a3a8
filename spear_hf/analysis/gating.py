"""What the hard gate does, and what is left when confident images are scarce (the paper's appendix on gating)."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spear_hf.analysis.adapted import ImageSet, answer_online
from spear_hf.baselines import Source
from spear_hf.errors import DataError
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.objective import normalized_entropy
from spear_hf.utils.batch import logits_of

Make = Callable[[nn.Module], TTAMethod]  # takes a copy of the base to itself


class Gated(NamedTuple):
    """One row of the ablation: errors in percent, entropy in [0, 1], and the share of batches that the gate skipped."""

    domain: str
    batch_size: int
    entropy: float
    source: float
    without_gate: float
    with_gate: float
    skipped: float

    @property
    def gain(self) -> float:
        """Points of error that the gate saves."""
        return self.without_gate - self.with_gate


class Scarce(NamedTuple):
    """One row: the online error in percent of a method that saw only images with source entropy above a threshold."""

    domain: str
    batch_size: int
    threshold: float
    images: int
    method: str
    error: float


def source_entropy(base: nn.Module, images: Tensor) -> Tensor:
    """(N,) normalised entropy of the source's answers, in [0, 1] (Eq. 6)."""
    source = Source(base)
    try:
        return torch.cat([normalized_entropy(logits_of(source.step(x))).cpu() for x in images.split(256)])
    finally:
        source.unload()


def without_confident(data: ImageSet, entropy: Tensor, threshold: float) -> ImageSet:
    """The images whose source entropy (N,) is at least `threshold`, in the same order."""
    keep = (entropy >= threshold).nonzero().flatten()
    return ImageSet(data.domain, data.images[keep.to(data.images.device)], data.labels[keep])


def gate_ablation(
    base: nn.Module,
    sets: Iterable[ImageSet],
    with_gate: Make,
    without_gate: Make,
    *,
    batch_sizes: Sequence[int] = (16,),
) -> Iterator[Gated]:
    """Every set answered online with and without the hard gate; `base` itself is left alone."""
    source, gated, free = (make(copy.deepcopy(base)) for make in (Source, with_gate, without_gate))
    for data in sets:
        entropy = float(source_entropy(base, data.images).mean())
        for size in batch_sizes:
            plain, always, chosen = (answer_online(method, data, size) for method in (source, free, gated))
            yield Gated(data.domain, size, entropy, plain.error, always.error, chosen.error, chosen.skipped)


def scarce_confidence(
    base: nn.Module,
    sets: Iterable[ImageSet],
    methods: Mapping[str, Make],
    thresholds: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4),
    *,
    batch_size: int = 16,
) -> Iterator[Scarce]:
    """Every method on every set as its most confident images are taken away; `base` itself is left alone.

    The error is over the images that are left, which are harder for any method: compare at one threshold. A threshold
    that leaves less than one batch of a set is passed over.

    Raises:
        DataError: thresholds outside [0, 1).
    """
    if not all(0 <= threshold < 1 for threshold in thresholds):
        raise DataError(f"thresholds={list(thresholds)} are not allowed; entropies are in [0, 1): try 0 0.1 0.2 0.3")
    made = {name: make(copy.deepcopy(base)) for name, make in methods.items()}
    for data in sets:
        entropy = source_entropy(base, data.images)
        for threshold in thresholds:
            left = without_confident(data, entropy, threshold)
            if len(left.images) < batch_size:
                continue
            for name, method in made.items():
                error = answer_online(method, left, batch_size).error
                yield Scarce(data.domain, batch_size, threshold, len(left.images), name, error)
