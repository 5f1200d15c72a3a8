"""Where RSPs act and what becomes of the representation: AMD, CKA and probe of the five placements."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spear_hf.analysis.adapted import ImageSet, Look, learn, look
from spear_hf.analysis.placement import placements
from spear_hf.analysis.probe import ProbeResult, probe_features
from spear_hf.analysis.recording import CLASSIFIER, find_classifier
from spear_hf.analysis.similarity import amd, linear_cka
from spear_hf.errors import DataError
from spear_hf.learning.spear import Spear
from spear_hf.steering.model import SpearModel

SOURCE, MIXED = "none", "alpha only"


class Adapted(NamedTuple):
    """What one placement made of one domain at one batch size."""

    placement: str
    batch_size: int
    data: ImageSet
    look: Look


class Drift(NamedTuple):
    """One row: how far the adapted representation of corrupted images is from the source's of the clean ones."""

    domain: str
    placement: str
    batch_size: int
    place: str
    amd: float
    cka: float


class Separability(NamedTuple):
    """One row: accuracies in percent of the frozen classifier and of a linear probe, and their difference in points."""

    domain: str
    placement: str
    batch_size: int
    accuracy: float
    probe_accuracy: float
    gap: float


def adapted_representations(
    model: SpearModel,
    sets: Iterable[ImageSet],
    *,
    batch_sizes: Sequence[int] = (16, 256),
    updates: int = 64,
    steered: bool = True,
) -> Iterator[Adapted]:
    """Every set under every placement and batch size: `updates` steps, then a look with the RSPs held.

    Two references come first: "none" (the source on the same images) and, where batch norms have their statistics
    mixed, "alpha only" (the same without learning).

    Args:
        model: from `placed`.
        steered: as for `recording`.
    """
    for data in sets:
        classifier = find_classifier(model, data.images[:2])
        for size in batch_sizes:
            with model.disable_adapter():
                source = look(model, data.images, size, classifier, steered=steered)
            yield Adapted(SOURCE, size, data, source)
            for name in references(model) + list(placements(model.boundaries[-1].depth)):
                adapter = "all" if name == MIXED else name
                model.set_adapter(adapter)
                model.reset_adapter(adapter)
                if name != MIXED:
                    learn(Spear(model), data.images, size, updates)
                yield Adapted(name, size, data, look(model, data.images, size, classifier, steered=steered))


def references(model: SpearModel) -> list[str]:
    """["alpha only"] where mixing the statistics changes the model's answers, else nothing."""
    return [MIXED] if model.has_batch_norms and model.peft_config["all"].alpha > 0 else []


def source_representations(model: SpearModel, clean: ImageSet) -> dict[str, Tensor]:
    """place -> (N, C): the frozen source on clean images, the reference of AMD and CKA."""
    with torch.no_grad(), model.disable_adapter():
        return look(model, clean.images, 256, find_classifier(model, clean.images[:2])).features


def drift(adapted: Adapted, reference: dict[str, Tensor]) -> list[Drift]:
    """AMD and CKA at every boundary and before the classifier.

    Args:
        reference: `source_representations` of the same images, clean, in the same order.
    """
    if len(next(iter(reference.values()))) != len(adapted.data.images):
        raise DataError(
            f"{adapted.data.domain} has {len(adapted.data.images)} images, the reference "
            f"{len(next(iter(reference.values())))}; CKA compares the same images in the same order"
        )
    return [
        Drift(adapted.data.domain, adapted.placement, adapted.batch_size, place, amd(z, reference[place]), cka)
        for place, z in adapted.look.features.items()
        for cka in [linear_cka(z, reference[place])]
    ]


def separability(adapted: Adapted, *, c: float = 1.0, seed: int = 0) -> Separability:
    """The frozen classifier and a linear probe on the features it reads; `c` and `seed` as for `probe_accuracy`."""
    features, logits = adapted.look.features[CLASSIFIER], adapted.look.logits
    found: ProbeResult = probe_features(features, logits, adapted.data.labels, c=c, seed=seed)
    return Separability(
        adapted.data.domain, adapted.placement, adapted.batch_size, found.accuracy, found.probe_accuracy, found.gap
    )
