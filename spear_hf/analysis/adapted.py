"""Learn from a set of images for a fixed number of updates, then hold the RSPs and look; or answer it online."""

from itertools import cycle, islice
from typing import NamedTuple

import torch
from torch import Tensor

from spear_hf.analysis.probe import accuracy
from spear_hf.analysis.recording import recording
from spear_hf.errors import DataError
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.spear import Spear
from spear_hf.steering.model import SpearModel
from spear_hf.utils.batch import logits_of


class ImageSet(NamedTuple):
    """The images of one domain: (N, C, H, W) as the model's processor makes them, and their labels (N,)."""

    domain: str
    images: Tensor
    labels: Tensor


class Look(NamedTuple):
    """What a model made of N images while nothing learned: logits (N, K), and place -> pooled features (N, C)."""

    logits: Tensor
    features: dict[str, Tensor]


class Online(NamedTuple):
    """One online run: error in percent, and the share of batches in [0, 1] that the method did not learn from."""

    error: float
    skipped: float


def learn(spear: Spear, images: Tensor, batch_size: int, updates: int) -> None:
    """Reset, then make `updates` steps on the batches in order, from the first again when they are through.

    A batch that the hard gate skips counts as a step: it is one that the stream has offered.
    """
    spear.reset()
    for x in islice(cycle(images.split(batch_size)), updates):
        spear.step(x)


@torch.no_grad()
def look(model: SpearModel, images: Tensor, batch_size: int, classifier: str, *, steered: bool = True) -> Look:
    """Answer all images in batches of `batch_size`, and record the representations; nothing is learned.

    Args:
        classifier, steered: as for `recording`.
    """
    with recording(model, classifier=classifier, steered=steered) as record:
        logits = answers(model, images, batch_size)
    return Look(logits, record.features())


@torch.no_grad()
def answers(model: SpearModel, images: Tensor, batch_size: int) -> Tensor:
    """The logits (N, K) of all images in batches of `batch_size`, on the CPU; nothing is learned."""
    return torch.cat([logits_of(model(x)).float().cpu() for x in images.split(batch_size)])


def answer_online(method: TTAMethod, data: ImageSet, batch_size: int) -> Online:
    """Reset, then answer every batch before it is learned from, as the paper's error is counted."""
    if len(data.images) == 0:
        raise DataError(f"{data.domain} has no images; at least one is needed, so lower the threshold or take more")
    method.reset()
    answered, skipped = [], []
    for x in data.images.split(batch_size):
        answered.append(method.step(x).argmax(1).cpu())
        skipped.append(getattr(getattr(method, "last", None), "skipped", None) is not None)
    return Online(100 - accuracy(torch.cat(answered), data.labels), sum(skipped) / len(skipped))
