"""What is answered, image by image: `predict` for any method and stream, and the rows of a predictions file.

for prediction in predict(Spear(model), loader, class_names=names):
    print(prediction.file, prediction.class_name, prediction.probability)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.errors import DataError
from spear_hf.evaluation.input_batch import InputBatch, input_batches
from spear_hf.guard.source_model import source_of
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.objective import normalized_entropy
from spear_hf.learning.record import StepRecord
from spear_hf.steering.model import SpearModel
from spear_hf.utils.batch import logits_of
from spear_hf.utils.model_inputs import called

TOP = 5


@dataclass(frozen=True)
class Prediction:
    """The answer for one image, before its batch was learned from.

    >>> from spear_hf.evaluation.predictions import Prediction
    >>> Prediction("cam/7.jpg", 1, "dog", 0.75, ((1, 0.75), (0, 0.25)), 0.81).to_dict()["class"]
    1

    Args:
        file: its name: the path relative to the images' folder, or a number where images have no file.
        class_index: the most probable class.
        class_name: its name; None where the model's classes have none.
        probability: of that class, in [0, 1].
        top: the five most probable classes, each with its probability.
        entropy: of the answer, in [0, 1]: 0 is sure, 1 is every class equally likely.
        source_index: the class that the source answers, without adapting; None where it was not asked.
        source_name: its name.
        source_probability: the source's probability of it.
        learned: whether the batch of this image was learned from, after this answer.
        label: the right class; None where it is not known.
        domain: of the image.
        batch: number of its batch, from 0.
    """

    file: str
    class_index: int
    class_name: str | None
    probability: float
    top: tuple[tuple[int, float], ...]
    entropy: float
    source_index: int | None = None
    source_name: str | None = None
    source_probability: float | None = None
    learned: bool = False
    label: int | None = None
    domain: str = "images"
    batch: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The columns of a predictions file, JSON-ready."""
        return {
            "file": self.file,
            "class": self.class_index,
            "class_name": self.class_name,
            "probability": self.probability,
            "top5": [{"class": k, "probability": p} for k, p in self.top],
            "entropy": self.entropy,
            "source_class": self.source_index,
            "source_class_name": self.source_name,
            "source_probability": self.source_probability,
            "learned": self.learned,
            "label": self.label,
            "domain": self.domain,
            "batch": self.batch,
        }


def predict(
    method: TTAMethod | nn.Module,
    stream: Iterable[Any],
    *,
    source: TTAMethod | nn.Module | None = None,
    class_names: Sequence[str] | None = None,
    device: Any = None,
) -> Iterator[Prediction]:
    """The answer for each image, in the order of the stream; a method learns from each batch after it is answered.

    Nothing is done before the first answer is asked for, and one batch is read ahead of the answers at most.

    >>> import timm, torch
    >>> from spear_hf import Spear, get_spear_model, predict
    >>> tta = Spear(get_spear_model(timm.create_model("test_resnet")))
    >>> [answer.file for answer in predict(tta, [torch.randn(2, 3, 32, 32), torch.randn(1, 3, 32, 32)])]
    ['0', '1', '2']

    Args:
        method: a Spear, a Guard or another TTAMethod, which learns; or a model, which is only called.
        stream: of `load_stream`, a DataLoader, or any iterable of dictionaries with pixel_values, pairs
            (images, labels), or tensors.
        source: what answers for the columns of the source: the base, also the one that the method steers, which then
            answers without its adapter. None leaves the columns out.
        class_names: of the model, in the order of its classes.
        device: where images are moved; None leaves them where they are.

    Raises:
        DataError: a stream of something else.
        InputError: a batch that the method refuses.
    """
    asked = _source(method, source)
    for number, batch in enumerate(input_batches(stream)):
        x = batch.inputs(device)
        reference = None if asked is None else asked(x)
        logits = _answered(method, x)
        record = getattr(method, "last", None)
        yield from predictions_of(batch, number, logits, reference, record, class_names)


def predictions_of(
    batch: InputBatch,
    number: int,
    logits: Tensor,
    source: Tensor | None = None,
    record: Any = None,
    class_names: Sequence[str] | None = None,
    classes: Tensor | None = None,
) -> list[Prediction]:
    """The Predictions of a batch.

    >>> import torch
    >>> from spear_hf.evaluation.input_batch import InputBatch
    >>> from spear_hf.evaluation.predictions import predictions_of
    >>> batch = InputBatch(torch.zeros(1, 3, 8, 8), None, ["a.jpg"], "images", True)
    >>> predictions_of(batch, 0, torch.tensor([[0.0, 9.0]]), class_names=["cat", "dog"])[0].class_name
    'dog'

    Args:
        batch: its images, whose pixels are not looked at.
        number: of the batch in the stream.
        logits: (B, K) of the method.
        source: (B, K) of the source; None leaves its columns out.
        record: the method's StepRecord of the batch, which says whether it learned.
        class_names: K names.
        classes: (S,) the classes that can be answered; None for all.
    """
    if class_names is not None and len(class_names) != logits.shape[1]:
        raise DataError(
            f"{len(class_names)} class names do not fit a model with {logits.shape[1]} classes; give one name for "
            "each class, in the order of the model"
        )
    learned = isinstance(record, StepRecord) and record.adapted
    shown, chosen = _top(logits, classes)
    entropy = normalized_entropy(logits.detach().float()).cpu().tolist()
    own: list[tuple[int, float] | None] = [None] * len(shown)
    if source is not None:
        own = [(k[0], p[0]) for k, p in zip(*_top(source, classes), strict=True)]
    labels = [None] * len(shown) if batch.labels is None else batch.labels.tolist()

    def name_of(k: int | None) -> str | None:
        return None if class_names is None or k is None else class_names[k]

    return [
        Prediction(
            file=batch.names[i],
            class_index=shown[i][0],
            class_name=name_of(shown[i][0]),
            probability=chosen[i][0],
            top=tuple(zip(shown[i], chosen[i], strict=True)),
            entropy=round(entropy[i], 6),
            source_index=None if (mine := own[i]) is None else mine[0],
            source_name=None if mine is None else name_of(mine[0]),
            source_probability=None if mine is None else mine[1],
            learned=learned,
            label=labels[i],
            domain=batch.domain,
            batch=number,
        )
        for i in range(len(shown))
    ]


def _top(logits: Tensor, classes: Tensor | None) -> tuple[list[list[int]], list[list[float]]]:
    """The five most probable classes of each image, and their probabilities; ties go to the lower class."""
    logits = logits.detach().double().cpu()
    possible = logits if classes is None else logits[:, classes]
    values, places = possible.softmax(1).sort(dim=1, descending=True, stable=True)
    places = places[:, :TOP] if classes is None else classes[places[:, :TOP]]
    return places.tolist(), [[round(p, 6) for p in row] for row in values[:, :TOP].tolist()]


def _source(method: Any, source: TTAMethod | nn.Module | None) -> Callable[[Any], Tensor] | None:
    """What answers as the source; a base that the method steers answers without its adapter."""
    learner = getattr(method, "method", method)  # a Guard's own
    model = getattr(learner, "model", learner)
    if isinstance(model, SpearModel) and source in (model, model.base_model):
        return source_of(SimpleNamespace(model=model))  # of the method, only its model is looked at
    return None if source is None else lambda x: _answered(source, x)


def _answered(method: Any, x: Tensor | dict[str, Any]) -> Tensor:
    if not isinstance(method, nn.Module):
        return method.step(x)
    with torch.no_grad():
        return logits_of(called(method, x))
