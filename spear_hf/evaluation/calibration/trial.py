"""Trial: one configuration on clean images under corruptions, judged by what the source answers on them as they are."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spear_hf.boundaries import Boundary
from spear_hf.config import SpearConfig
from spear_hf.evaluation.calibration.clean_images import CleanImages
from spear_hf.guard.health import HealthMonitor
from spear_hf.guard.policy import GuardPolicy
from spear_hf.guard.shadow import evidence
from spear_hf.learning.objective import normalized_entropy
from spear_hf.learning.spear import Spear
from spear_hf.steering.model import SpearModel
from spear_hf.utils.batch import logits_of
from spear_hf.utils.distributed import ProcessGroup

AS_THEY_ARE = "clean"

Sets = Mapping[str, Tensor]
"""Name of a corruption, or AS_THEY_ARE -> (N, H, W, 3) uint8, the same images in the same order."""

Logits = Mapping[str, Tensor]
"""Name of a set -> (N, K) logits, in the order of the images."""


@dataclass(frozen=True)
class Trial:
    """What one configuration answered.

    Args:
        name: what was tried, such as "alpha 0.75".
        config: the configuration; None for the source, which learns nothing.
        logits: what was answered, each set from a new start.
        truth: (N,) the source's answers to the images as they are.

    >>> import torch
    >>> from spear_hf.evaluation.calibration.trial import Trial
    >>> same, other = torch.eye(2), torch.eye(2)[[0, 0]]
    >>> trial = Trial("source", None, {"clean": same, "fog": other}, torch.tensor([0, 1]))
    >>> trial.disagreement, trial.clean_disagreement
    (50.0, 0.0)
    """

    name: str
    config: SpearConfig | None
    logits: Logits
    truth: Tensor

    @property
    def wrong(self) -> Tensor:
        """(D, N) float64: 1 where the answer to an image under one of the D corruptions is not that of the source."""
        rows = [each.argmax(1) != self.truth for name, each in self.logits.items() if name != AS_THEY_ARE]
        return torch.stack(rows).double()

    @property
    def disagreement(self) -> float:
        """In percent of the answers to corrupted images."""
        return 100 * float(self.wrong.mean())

    @property
    def clean_disagreement(self) -> float:
        """In percent of the answers to the images as they are."""
        return 100 * float((self.logits[AS_THEY_ARE].argmax(1) != self.truth).double().mean())

    def entropy(self, name: str) -> float:
        """Mean normalised entropy of the answers to one set."""
        return float(normalized_entropy(self.logits[name]).mean())

    def gain_over(self, other: "Trial") -> tuple[float, float]:
        """How many points less disagreement than another trial, and the standard error of that.

        The same images are in all sets, so it is between images that answers are independent.
        """
        gained = 100 * (other.wrong - self.wrong).mean(0)
        return float(gained.mean()), float(gained.std()) / math.sqrt(len(gained))


def source_logits(model: nn.Module, images: CleanImages, sets: Sets, on_batch: Callable[[], None]) -> dict[str, Tensor]:
    """What the model answers to each set, without adapting."""

    @torch.no_grad()
    def answered(x: Tensor) -> Tensor:
        return logits_of(model(x))

    return {name: _answers(answered, images, pixels, on_batch) for name, pixels in sets.items()}


def adapted_logits(
    model: nn.Module,
    config: SpearConfig,
    boundaries: list[Boundary],
    images: CleanImages,
    sets: Sets,
    on_batch: Callable[[], None],
) -> dict[str, Tensor]:
    """What Spear answers to each set, reset before each; the model is as it was before.

    `boundaries` are those that `find_boundaries` has found in this model.
    """
    tta = Spear(SpearModel(model, config, boundaries=boundaries, probe=False))
    try:
        found = {}
        for name, pixels in sets.items():
            tta.reset()
            found[name] = _answers(tta.step, images, pixels, on_batch)
        return found
    finally:
        tta.unload()


def _answers(
    step: Callable[[Tensor], Tensor], images: CleanImages, pixels: Tensor, on_batch: Callable[[], None]
) -> Tensor:
    answers = []
    for part in pixels.split(images.batch_size):
        answers.append(step(images.inputs(part)).detach().float().cpu())
        on_batch()
    return torch.cat(answers)


def guard_extremes(source: Trial, adapted: Trial, batch_size: int, policy: GuardPolicy) -> tuple[float, float]:
    """The highest mean entropy rise and the largest collapse that a guard would have seen on streams that go well.

    Args:
        source: the trial of the source.
        adapted: of the configuration that is guarded. Corruptions under which it disagrees more than the source with
            the source's answers to clean images do not count.
        batch_size: images that are seen at a time.
        policy: says over how many images classes are counted.

    Returns:
        Entropy rise and collapse, as `max_entropy_rise` and `max_collapse` count them; 0 where nothing went well.
    """
    shard, rises, collapses = ProcessGroup().shard(batch_size), [0.0], [0.0]
    for name, ours in adapted.logits.items():
        theirs = source.logits[name]
        if _wrong(ours, adapted.truth) > _wrong(theirs, adapted.truth):
            continue
        health, risen = HealthMonitor(policy), []
        for mine, its in zip(ours.split(batch_size), theirs.split(batch_size), strict=True):
            found = evidence(mine, its, shard)
            health.add(found)
            risen.append(found.entropy_rise)
            collapses.append(health.collapse)
        rises.append(sum(risen) / len(ours))
    return max(rises), max(collapses)


def _wrong(logits: Tensor, truth: Tensor) -> int:
    return int((logits.argmax(1) != truth).sum())
