"""Adapt to a set of images, then predict it: with the RSPs held after some updates, or online."""

from itertools import cycle, islice
from typing import NamedTuple

import torch
from torch import Tensor

from spear_hf.analysis.measures import accuracy
from spear_hf.analysis.recording import recording
from spear_hf.errors import DataError
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.spear import Spear
from spear_hf.steering.model import SpearModel
from spear_hf.utils.batch import logits_of


class ImageSet(NamedTuple):
    """The images of one domain: (N, C, H, W), preprocessed, and their labels (N,).

    >>> import torch
    >>> from spear_hf.analysis import ImageSet
    >>> ImageSet("fog", torch.zeros(8, 3, 32, 32), torch.arange(8)).domain
    'fog'
    """

    domain: str
    images: Tensor
    labels: Tensor


class Outputs(NamedTuple):
    """The outputs of a model for N images: logits (N, K), and place -> pooled representations (N, C).

    >>> import torch
    >>> from spear_hf.analysis import Outputs
    >>> Outputs(torch.zeros(8, 10), {"0": torch.zeros(8, 64)}).features["0"].shape
    torch.Size([8, 64])
    """

    logits: Tensor
    features: dict[str, Tensor]


class OnlineResult(NamedTuple):
    """An online run: its error in percent, and the share of batches in [0, 1] from which nothing was learned.

    >>> from spear_hf.analysis import OnlineResult
    >>> OnlineResult(error=12.5, skipped=0.25).error
    12.5
    """

    error: float
    skipped: float


def learn(spear: Spear, images: Tensor, batch_size: int, updates: int) -> None:
    """Reset the learner, then make `updates` steps on the batches in order; after the last batch comes the first again.

    A batch that the hard gate skips counts as a step, because the stream offered it.

    >>> import timm, torch
    >>> from spear_hf import Spear, get_spear_model
    >>> from spear_hf.analysis import learn
    >>> spear = Spear(get_spear_model(timm.create_model("test_resnet")))
    >>> learn(spear, torch.zeros(4, 3, 32, 32), batch_size=2, updates=3)
    >>> spear.num_steps
    3
    """
    spear.reset()
    for x in islice(cycle(images.split(batch_size)), updates):
        spear.step(x)


@torch.no_grad()
def predict(model: SpearModel, images: Tensor, batch_size: int) -> Tensor:
    """The logits (N, K) of all images in batches of `batch_size`, fp32 on the CPU; nothing is learned.

    >>> import timm, torch
    >>> from spear_hf import get_spear_model
    >>> from spear_hf.analysis import predict
    >>> predict(get_spear_model(timm.create_model("test_resnet")), torch.zeros(4, 3, 32, 32), batch_size=2).shape
    torch.Size([4, 1000])
    """
    return torch.cat([logits_of(model(x)).float().cpu() for x in images.split(batch_size)])


def outputs_of(model: SpearModel, images: Tensor, batch_size: int, classifier: str, *, steered: bool = True) -> Outputs:
    """The logits and the representations of all images in batches of `batch_size`; nothing is learned.

    >>> import timm, torch
    >>> from spear_hf import get_spear_model
    >>> from spear_hf.analysis import outputs_of
    >>> model = get_spear_model(timm.create_model("test_resnet"))
    >>> list(outputs_of(model, torch.zeros(4, 3, 32, 32), 2, classifier="fc").features)
    ['0', '1', '2', '3', '4', 'classifier']

    Args:
        model, images, batch_size: as for `predict`.
        classifier, steered: as for `recording`.
    """
    with recording(model, classifier=classifier, steered=steered) as record:
        logits = predict(model, images, batch_size)
    return Outputs(logits, record.features())


def answer_online(method: TTAMethod, data: ImageSet, batch_size: int) -> OnlineResult:
    """The online error of a method, which is reset first: each batch is predicted before it is learned from.

    >>> import timm, torch
    >>> from spear_hf.analysis import ImageSet, answer_online
    >>> from spear_hf.baselines import Source
    >>> data = ImageSet("fog", torch.randn(4, 3, 32, 32), torch.full((4,), 1000))  # a class that it does not know
    >>> answer_online(Source(timm.create_model("test_resnet")), data, batch_size=2)
    OnlineResult(error=100.0, skipped=0.0)

    Raises:
        DataError: no images.
    """
    if len(data.images) == 0:
        raise DataError(f"{data.domain} has no images; at least one is needed, so lower the threshold or take more")
    method.reset()
    answered, skipped = [], []
    for x in data.images.split(batch_size):
        answered.append(method.step(x).argmax(1).cpu())
        skipped.append(getattr(getattr(method, "last", None), "skipped", None) is not None)
    return OnlineResult(100 - accuracy(torch.cat(answered), data.labels), sum(skipped) / len(skipped))
