"""What the parts of SPeaR contribute: the hard gate, confident images, alpha (the paper's appendices)."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spear_hf.analysis.adapted import ImageSet, answer_online, learn, predict
from spear_hf.analysis.measures import accuracy
from spear_hf.baselines import Source
from spear_hf.config import SpearConfig
from spear_hf.errors import ConfigError, DataError
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.objective import normalized_entropy
from spear_hf.learning.spear import Spear
from spear_hf.steering.model import get_spear_model
from spear_hf.utils.batch import logits_of

MakeMethod = Callable[[nn.Module], TTAMethod]
"""Makes a method on a copy of the base model, which then belongs to the method."""


class GateRow(NamedTuple):
    """Online errors in percent with and without the hard gate.

    `entropy` is the source's mean entropy, and `skipped` the share of batches that the gate skipped; both in [0, 1].

    >>> from spear_hf.analysis import GateRow
    >>> GateRow("fog", 16, entropy=0.4, source=60.0, without_gate=50.0, with_gate=45.0, skipped=0.1).gain
    5.0
    """

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


class ScarcityRow(NamedTuple):
    """The online error in percent of a method on the images whose source entropy is at least a threshold.

    >>> from spear_hf.analysis import ScarcityRow
    >>> ScarcityRow("fog", 16, threshold=0.2, images=512, method="tent", error=40.0).error
    40.0
    """

    domain: str
    batch_size: int
    threshold: float
    images: int
    method: str
    error: float


class AlphaRow(NamedTuple):
    """Errors in percent of mixing alone (`unlearned`) and after learning (`learned`).

    >>> from spear_hf.analysis import AlphaRow
    >>> AlphaRow("fog", 0.35, 16, unlearned=50.0, learned=45.0).learned
    45.0
    """

    domain: str
    alpha: float
    batch_size: int
    unlearned: float
    learned: float


def source_entropy(base: nn.Module, images: Tensor) -> Tensor:
    """(N,) the normalised entropy of the source's predictions, in [0, 1] (Eq. 6).

    >>> import torch
    >>> from spear_hf.analysis import source_entropy
    >>> source_entropy(torch.nn.Identity(), torch.zeros(2, 10))  # uniform predictions
    tensor([1.0000, 1.0000])
    """
    source = Source(base)
    try:
        return torch.cat([normalized_entropy(logits_of(source.step(x))).cpu() for x in images.split(256)])
    finally:
        source.unload()


def without_confident(data: ImageSet, entropy: Tensor, threshold: float) -> ImageSet:
    """The images whose source entropy (N,) is at least `threshold`, in the same order.

    >>> import torch
    >>> from spear_hf.analysis import ImageSet, without_confident
    >>> data = ImageSet("fog", torch.zeros(3, 3, 32, 32), torch.arange(3))
    >>> without_confident(data, torch.tensor([0.1, 0.5, 0.9]), 0.4).labels
    tensor([1, 2])
    """
    keep = (entropy >= threshold).nonzero().flatten()
    return ImageSet(data.domain, data.images[keep.to(data.images.device)], data.labels[keep])


def gate_ablation(
    base: nn.Module,
    sets: Iterable[ImageSet],
    with_gate: MakeMethod,
    without_gate: MakeMethod,
    *,
    batch_sizes: Sequence[int] = (16,),
) -> Iterator[GateRow]:
    """The online errors on every set with and without the hard gate; `base` itself is not changed.

    >>> import torch
    >>> from spear_hf.analysis import ImageSet, gate_ablation
    >>> from spear_hf.baselines import Source
    >>> data = ImageSet("fog", torch.eye(3), torch.arange(3))
    >>> [row.with_gate for row in gate_ablation(torch.nn.Identity(), [data], Source, Source)]
    [0.0]

    Args:
        base: the network.
        sets: one for each domain.
        with_gate, without_gate: make the two methods on copies of `base`.
        batch_sizes: images in a batch.
    """
    source, gated, free = (make(copy.deepcopy(base)) for make in (Source, with_gate, without_gate))
    for data in sets:
        entropy = float(source_entropy(base, data.images).mean())
        for size in batch_sizes:
            plain, always, chosen = (answer_online(method, data, size) for method in (source, free, gated))
            yield GateRow(data.domain, size, entropy, plain.error, always.error, chosen.error, chosen.skipped)


def scarce_confidence(
    base: nn.Module,
    sets: Iterable[ImageSet],
    methods: Mapping[str, MakeMethod],
    thresholds: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4),
    *,
    batch_size: int = 16,
) -> Iterator[ScarcityRow]:
    """The online error of every method on every set as its most confident images are removed.

    The error is over the remaining images, which are harder for any method: compare methods at the same threshold. A
    threshold that leaves less than one batch of a set is skipped. `base` itself is not changed.

    >>> import torch
    >>> from spear_hf.analysis import ImageSet, scarce_confidence
    >>> from spear_hf.baselines import Source
    >>> data = ImageSet("fog", torch.eye(3), torch.arange(3))
    >>> rows = scarce_confidence(torch.nn.Identity(), [data], {"source": Source}, [0.0, 0.999], batch_size=3)
    >>> [(row.threshold, row.images) for row in rows]
    [(0.0, 3)]

    Args:
        base: the network.
        sets: one for each domain.
        methods: name -> makes the method on a copy of `base`.
        thresholds: of the source entropy.
        batch_size: images in a batch.

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
                yield ScarcityRow(data.domain, batch_size, threshold, len(left.images), name, error)


def mixing_errors(
    base: nn.Module,
    sets: Iterable[ImageSet],
    config: SpearConfig,
    *,
    alphas: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    batch_sizes: Sequence[int] = (4, 16, 64, 256),
    updates: int = 64,
) -> Iterator[AlphaRow]:
    """The errors of every set at every alpha and batch size, with the RSPs held: before learning and after it.

    `base` is steered meanwhile, and unloaded at the end.

    >>> import timm, torch
    >>> from spear_hf import SpearConfig
    >>> from spear_hf.analysis import ImageSet, mixing_errors
    >>> data = ImageSet("fog", torch.zeros(2, 3, 32, 32), torch.arange(2))
    >>> found = mixing_errors(
    ...     timm.create_model("test_resnet"), [data], SpearConfig(), alphas=[0.5], batch_sizes=[2], updates=0
    ... )
    >>> [(row.alpha, row.batch_size) for row in found]
    [(0.5, 2)]

    Args:
        base: the network.
        sets: one for each domain.
        config: of the adapter, except for alpha.
        alphas: weights of the batch in the batch-norm statistics.
        batch_sizes: images in a batch.
        updates: learning steps, as many at each batch size.

    Raises:
        ConfigError: a network without batch norms, in which alpha changes nothing.
    """
    for data in sets:
        for alpha in alphas:
            model = get_spear_model(base, replace(config, alpha=alpha))
            try:
                if not model.has_batch_norms:
                    raise ConfigError(
                        f"{type(base).__name__} has no BatchNorm, so alpha={alpha:g} changes nothing in it; "
                        "use a network with batch norms"
                    )
                for size in batch_sizes:
                    model.reset_adapter()
                    unlearned = 100 - accuracy(predict(model, data.images, size).argmax(1), data.labels)
                    learn(Spear(model), data.images, size, updates)
                    learned = 100 - accuracy(predict(model, data.images, size).argmax(1), data.labels)
                    yield AlphaRow(data.domain, alpha, size, unlearned, learned)
            finally:
                model.unload()
