"""Where RSPs act: AMD, CKA and a linear probe for the five placements that the paper compares."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spear_hf.adapters.card_metrics import MIXED
from spear_hf.analysis.adapted import ImageSet, Outputs, learn, outputs_of
from spear_hf.analysis.measures import accuracy, amd, linear_cka, probe_accuracy
from spear_hf.analysis.recording import CLASSIFIER, find_classifier
from spear_hf.config import SpearConfig
from spear_hf.errors import ConfigError, DataError
from spear_hf.learning.spear import Spear
from spear_hf.steering.model import SpearModel, get_spear_model

SOURCE = "none"  # the placement without any RSP


def placements(last: int) -> dict[str, tuple[int, ...]]:
    """placement -> the depths of its RSPs, for boundaries 0..last.

    The paper names stem, stem+1, early, deep and all, and defines the first two and the last. Here "early" is the
    depths up to ceil(last / 2) and "deep" the others, so that early and deep together are all.

    >>> from spear_hf.analysis import placements
    >>> placements(4)["early"], placements(4)["deep"]
    ((0, 1, 2), (3, 4))

    Raises:
        ConfigError: last < 3, where several placements would be the same.
    """
    if last < 3:
        raise ConfigError(
            f"boundaries 0..{last} are too few for five placements, at least 0..3 are needed; "
            "use a network with more stages, or a larger num_groups"
        )
    half = (last + 1) // 2
    every = tuple(range(last + 1))
    return {"stem": (0,), "stem+1": (0, 1), "early": every[: half + 1], "deep": every[half + 1 :], "all": every}


@contextmanager
def placed(base: nn.Module, config: SpearConfig) -> Iterator[SpearModel]:
    """A context with a SpearModel over `base` that has an adapter at the identity for each placement.

    `base` is unloaded at the end.

    >>> import timm
    >>> from spear_hf import SpearConfig
    >>> from spear_hf.analysis import placed
    >>> with placed(timm.create_model("test_resnet"), SpearConfig()) as model:
    ...     print(list(model.peft_config))
    ['all', 'stem', 'stem+1', 'early', 'deep']

    Args:
        base: the network.
        config: of every adapter, except for its boundaries.
    """
    model = get_spear_model(base, replace(config, boundaries="all"), adapter_name="all")
    try:
        for name, depths in placements(model.boundaries[-1].depth).items():
            if name != "all":
                model.add_adapter(name, replace(config, boundaries=depths))
        yield model
    finally:
        model.unload()


class Adapted(NamedTuple):
    """The outputs for one domain under one placement and one batch size; `adapted_representations` yields them.

    >>> import torch
    >>> from spear_hf.analysis import Adapted, ImageSet, Outputs
    >>> data = ImageSet("fog", torch.zeros(8, 3, 32, 32), torch.arange(8))
    >>> Adapted("stem", 16, data, Outputs(torch.zeros(8, 10), {})).placement
    'stem'
    """

    placement: str
    batch_size: int
    data: ImageSet
    outputs: Outputs


class DriftRow(NamedTuple):
    """How far the representation of corrupted images, after adaptation, is from the source's of the clean images.

    >>> from spear_hf.analysis import DriftRow
    >>> DriftRow("fog", "stem", 16, place="0", amd=0.1, cka=0.9).cka
    0.9
    """

    domain: str
    placement: str
    batch_size: int
    place: str
    amd: float
    cka: float


class ProbeRow(NamedTuple):
    """Accuracies in percent of the frozen classifier and of a linear probe, and their difference in points.

    >>> from spear_hf.analysis import ProbeRow
    >>> ProbeRow("fog", "stem", 16, accuracy=70.0, probe_accuracy=85.0, gap=15.0).gap
    15.0
    """

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
    """The outputs for every set, placement and batch size: after `updates` steps, with the RSPs held.

    References come first: "none" (the source on the same images) and, where batch-norm statistics are mixed, "alpha
    only" (the same without learning).

    >>> import timm, torch
    >>> from spear_hf import SpearConfig
    >>> from spear_hf.analysis import ImageSet, adapted_representations, placed
    >>> data = ImageSet("fog", torch.zeros(2, 3, 32, 32), torch.arange(2))
    >>> with placed(timm.create_model("test_resnet"), SpearConfig()) as model:
    ...     print([found.placement for found in adapted_representations(model, [data], batch_sizes=[2], updates=0)])
    ['none', 'alpha only', 'stem', 'stem+1', 'early', 'deep', 'all']

    Args:
        model: from `placed`.
        sets: one for each domain.
        batch_sizes: images in a batch.
        updates: steps before the outputs are recorded.
        steered: as for `recording`.
    """
    for data in sets:
        classifier = find_classifier(model, data.images[:2])
        for size in batch_sizes:
            with model.disable_adapter():
                source = outputs_of(model, data.images, size, classifier, steered=steered)
            yield Adapted(SOURCE, size, data, source)
            for name in _references(model) + list(placements(model.boundaries[-1].depth)):
                adapter = "all" if name == MIXED else name
                model.set_adapter(adapter)
                model.reset_adapter(adapter)
                if name != MIXED:
                    learn(Spear(model), data.images, size, updates)
                yield Adapted(name, size, data, outputs_of(model, data.images, size, classifier, steered=steered))


def _references(model: SpearModel) -> list[str]:
    """["alpha only"] where mixing the statistics changes the predictions, else an empty list."""
    return [MIXED] if model.has_batch_norms and model.peft_config["all"].alpha > 0 else []


def source_representations(model: SpearModel, clean: ImageSet) -> dict[str, Tensor]:
    """place -> (N, C): the representations of clean images in the frozen source, the reference of AMD and CKA.

    >>> import timm, torch
    >>> from spear_hf import get_spear_model
    >>> from spear_hf.analysis import ImageSet, source_representations
    >>> clean = ImageSet("clean", torch.zeros(2, 3, 32, 32), torch.arange(2))
    >>> list(source_representations(get_spear_model(timm.create_model("test_resnet")), clean))
    ['0', '1', '2', '3', '4', 'classifier']
    """
    with torch.no_grad(), model.disable_adapter():
        return outputs_of(model, clean.images, 256, find_classifier(model, clean.images[:2])).features


def drift(adapted: Adapted, reference: Mapping[str, Tensor]) -> list[DriftRow]:
    """AMD and CKA at every boundary and at the classifier's input.

    >>> import torch
    >>> from spear_hf.analysis import Adapted, ImageSet, Outputs, drift
    >>> z, data = torch.eye(2), ImageSet("fog", torch.zeros(2, 3, 32, 32), torch.arange(2))
    >>> drift(Adapted("stem", 16, data, Outputs(torch.zeros(2, 10), {"0": z + 1})), {"0": z})[0].amd
    1.0

    Args:
        adapted: the outputs for corrupted images.
        reference: `source_representations` of the same images, clean, in the same order.

    Raises:
        DataError: the numbers of images differ.
    """
    count = len(next(iter(reference.values())))
    if count != len(adapted.data.images):
        raise DataError(
            f"{adapted.data.domain} has {len(adapted.data.images)} images, the reference {count}; "
            "CKA compares the same images in the same order"
        )
    key = (adapted.data.domain, adapted.placement, adapted.batch_size)
    return [
        DriftRow(*key, place, amd(z, reference[place]), linear_cka(z, reference[place]))
        for place, z in adapted.outputs.features.items()
    ]


def separability(adapted: Adapted, *, c: float = 1.0, seed: int = 0) -> ProbeRow:
    """The accuracies of the frozen classifier and of a linear probe on its input; see `probe_accuracy`.

    >>> import torch
    >>> from spear_hf.analysis import Adapted, ImageSet, Outputs, separability
    >>> labels = torch.arange(20) % 2
    >>> z = torch.nn.functional.one_hot(labels).float()
    >>> data = ImageSet("fog", torch.zeros(20, 3, 32, 32), labels)
    >>> separability(Adapted("stem", 16, data, Outputs(-z, {"classifier": z}))).gap
    100.0

    Args:
        adapted: the outputs for one domain.
        c, seed: as for `probe_accuracy`.
    """
    data, outputs = adapted.data, adapted.outputs
    frozen = accuracy(outputs.logits.argmax(1), data.labels)
    probe = probe_accuracy(outputs.features[CLASSIFIER], data.labels, c=c, seed=seed)
    return ProbeRow(data.domain, adapted.placement, adapted.batch_size, frozen, probe, gap=probe - frozen)
