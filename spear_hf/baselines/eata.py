"""EATA and ETA: entropy minimisation over the images that are reliable and tell something new (Niu et al. 2022)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from spear_hf.baselines.descent import gradients
from spear_hf.baselines.learner import Learner
from spear_hf.baselines.objective import Batch, entropy
from spear_hf.baselines.options import Options
from spear_hf.baselines.part import Part
from spear_hf.baselines.published import nearest
from spear_hf.baselines.rule import OptimizerConfig
from spear_hf.baselines.where import AdaptedParameters
from spear_hf.errors import ConfigError
from spear_hf.learning.objective import log_probabilities
from spear_hf.utils.batch import check_images

MARGIN = {10: 0.4, 100: 0.1, 1000: 0.05}
STRENGTH = {10: 1.0, 100: 1.0, 1000: 2000.0}


@dataclass
class FilteredEntropy(Part):
    """L = mean_S H_i exp(E0 - H_i), the weight a constant, over S = {H_i < E0 and |cos(m, p_i)| < margin}.

    m is a moving average (0.9) of the mean prediction of the images that were chosen; before there is one, every
    reliable image is.

    Args:
        threshold: E0 / log K.
        margin: of the cosine; None takes what was published for the nearest number of classes: 0.4, 0.1 and 0.05 for
            10, 100 and 1000. Few classes have large cosines: 0.05 would leave nothing of ten.
    """

    threshold: float = 0.4
    margin: float | None = None
    mean: Tensor | None = field(init=False, default=None)

    def __call__(self, batch: Batch) -> Tensor | None:
        """In nats; None where no image is chosen."""
        limit = self.threshold * math.log(batch.logits.shape[1])
        h, p = entropy(batch.logits), log_probabilities(batch.logits.detach()).exp()
        chosen = self._chosen(h.detach() < limit, p)
        if not bool(chosen.any()):
            return None
        self._remember(p[chosen].mean(0))
        return (h * torch.exp(limit - h.detach()))[chosen].mean()

    def _chosen(self, reliable: Tensor, p: Tensor) -> Tensor:
        if self.mean is None:
            return reliable
        margin = nearest(p.shape[1], MARGIN) if self.margin is None else self.margin
        return reliable & (F.cosine_similarity(self.mean[None], p, dim=1).abs() < margin)

    def _remember(self, p: Tensor) -> None:
        self.mean = p if self.mean is None else 0.9 * self.mean + 0.1 * p


@dataclass
class Anchored(Part):
    """Another objective, plus strength * sum_w F_w (w - w0)^2 with the Fisher information F of the source.

    Args:
        objective: what else is minimised.
        strength: beta; None takes what was published for the nearest number of classes: 1, 1 and 2000.
    """

    objective: FilteredEntropy
    strength: float | None = None
    information: list[Tensor] = field(init=False, default_factory=list)

    def __call__(self, batch: Batch) -> Tensor | None:
        """None where the other objective has none."""
        loss = self.objective(batch)
        if loss is None:
            return None
        strength = nearest(batch.logits.shape[1], STRENGTH) if self.strength is None else self.strength
        triples = zip(self.information, batch.learned.parameters, batch.learned.start, strict=True)
        return loss + strength * torch.stack([(f * (w - w0).square()).sum() for f, w, w0 in triples]).sum()

    def reset(self) -> None:
        """Forget the stream, not the source."""
        self.objective.reset()


@torch.inference_mode(False)
@torch.enable_grad()
def fisher_information(where: AdaptedParameters, batches: Iterable[Tensor]) -> list[Tensor]:
    """F_w of what is learned: the mean over batches of (d/dw of the mean cross-entropy with the model's answers)^2."""
    total, count = [torch.zeros_like(p) for p in where.learned.parameters], 0
    for x in batches:
        check_images(x)
        logits = where.forward(x.to(where.learned.device))
        found = gradients(F.cross_entropy(logits, logits.argmax(1)), where.learned.parameters)
        total = [f if g is None else f + g.square() for f, g in zip(total, found, strict=True)]
        count += 1
    if count == 0:
        raise ConfigError("source_images holds no image; EATA was published with 2,000 of them")
    return [f / count for f in total]


class Eta(Learner):
    """Filtered, weighted entropy on gamma and beta of the normalisation layers; needs no image of the source.

    Published with Adam at 1e-3 for CIFAR, SGD at 2.5e-4 for ImageNet: `published("eta", "imagenet")`. The authors'
    reset keeps the average prediction; here it is forgotten too.

    Args:
        model: any image classifier.
        threshold, margin: see FilteredEntropy.
        options: see Options.
    """

    def __init__(
        self, model: nn.Module, *, threshold: float = 0.4, margin: float | None = None, **options: Unpack[Options]
    ) -> None:
        super().__init__(model, FilteredEntropy(threshold, margin), OptimizerConfig("adam", 1e-3), **options)


class Eata(Learner):
    """ETA that stays near the source where the source's images say that a parameter matters.

    Args:
        model: any image classifier.
        source_images: clean images as the model takes them: one tensor (N, C, H, W), or an iterable of batches. 2,000
            were published; their labels are not needed.
        batch_size: into which one tensor is divided; the test batch's was published.
        threshold, margin, strength: see FilteredEntropy and Anchored.
        options: see Options.

    Raises:
        ConfigError: without source images.
    """

    needs_source: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        source_images: Tensor | Iterable[Tensor] | None = None,
        *,
        batch_size: int = 64,
        threshold: float = 0.4,
        margin: float | None = None,
        strength: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        if source_images is None:
            raise ConfigError(
                "EATA weighs each parameter by the Fisher information of source images, and none were given; pass "
                'source_images= (about 2,000, without labels), or use METHODS["eta"], which goes without'
            )
        anchored = Anchored(FilteredEntropy(threshold, margin), strength)
        super().__init__(model, anchored, OptimizerConfig("adam", 1e-3), **options)
        batches = source_images.split(batch_size) if isinstance(source_images, Tensor) else source_images
        try:
            anchored.information = fisher_information(self.where, batches)
        except Exception:
            self.unload()
            raise
