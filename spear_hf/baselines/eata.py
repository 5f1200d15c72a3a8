"""EATA and ETA: entropy minimisation over the images that are reliable and not redundant (Niu et al. 2022)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from spear_hf.baselines.adapted_parameters import AdaptedParameters
from spear_hf.baselines.component import Component
from spear_hf.baselines.learner import Learner
from spear_hf.baselines.learner_options import LearnerOptions
from spear_hf.baselines.losses import Batch, entropy
from spear_hf.baselines.optimizer_config import OptimizerConfig
from spear_hf.baselines.published import for_num_classes
from spear_hf.errors import ConfigError
from spear_hf.learning.objective import log_probabilities
from spear_hf.learning.optimize import gradients
from spear_hf.utils.batch import check_images

MARGIN = {10: 0.4, 100: 0.1, 1000: 0.05}
STRENGTH = {10: 1.0, 100: 1.0, 1000: 2000.0}


@dataclass
class FilteredEntropy(Component):
    """L = mean_S H_i exp(E0 - H_i), the weight a constant, over S = {H_i < E0 and |cos(m, p_i)| < margin}.

    m is a moving average (0.9) of the mean prediction of the chosen images; before the first, every reliable image is
    chosen.

    Args:
        threshold: E0 / log K.
        margin: of the cosine; None takes what was published for the nearest number of classes: 0.4, 0.1 and 0.05 for
            10, 100 and 1000. With few classes cosines are large: 0.05 would leave no image of ten classes.

    >>> from spear_hf.baselines.eata import FilteredEntropy
    >>> FilteredEntropy(margin=0.1).settings()
    {'kind': 'FilteredEntropy', 'threshold': 0.4, 'margin': 0.1}
    """

    threshold: float = 0.4
    margin: float | None = None
    mean: Tensor | None = field(init=False, default=None)

    def __call__(self, batch: Batch) -> Tensor | None:
        """The loss, in nats; None if no image is chosen."""
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
        margin = for_num_classes(p.shape[1], MARGIN) if self.margin is None else self.margin
        return reliable & (F.cosine_similarity(self.mean[None], p, dim=1).abs() < margin)

    def _remember(self, p: Tensor) -> None:
        self.mean = p if self.mean is None else 0.9 * self.mean + 0.1 * p


@dataclass
class Anchored(Component):
    """Another objective, plus strength * sum_w F_w (w - w0)^2 with the Fisher information F of the source.

    Args:
        objective: the other objective.
        strength: beta; None takes what was published for the nearest number of classes: 1, 1 and 2000.

    >>> from spear_hf.baselines.eata import Anchored, FilteredEntropy
    >>> Anchored(FilteredEntropy(), strength=1.0).settings()["strength"]
    1.0
    """

    objective: FilteredEntropy
    strength: float | None = None
    information: list[Tensor] = field(init=False, default_factory=list)

    def __call__(self, batch: Batch) -> Tensor | None:
        """The loss; None if the other objective has none."""
        loss = self.objective(batch)
        if loss is None:
            return None
        strength = for_num_classes(batch.logits.shape[1], STRENGTH) if self.strength is None else self.strength
        triples = zip(self.information, batch.learned.parameters, batch.learned.start, strict=True)
        return loss + strength * torch.stack([(f * (w - w0).square()).sum() for f, w, w0 in triples]).sum()

    def reset(self) -> None:
        """Forget the stream; the Fisher information is of the source and stays."""
        self.objective.reset()


@torch.inference_mode(False)
@torch.enable_grad()
def fisher_information(adapted: AdaptedParameters, batches: Iterable[Tensor]) -> list[Tensor]:
    """F_w of each parameter: the mean over batches of (d/dw of the mean cross-entropy with the model's answers)^2.

    Raises:
        ConfigError: no batch.

    >>> import torch
    >>> from spear_hf.baselines.adapted_parameters import weights_and_biases
    >>> from spear_hf.baselines.eata import fisher_information
    >>> [f.shape for f in fisher_information(weights_and_biases(torch.nn.Linear(4, 3)), [torch.randn(2, 4)])]
    [torch.Size([3, 4]), torch.Size([3])]
    """
    total, count = [torch.zeros_like(p) for p in adapted.learned.parameters], 0
    for x in batches:
        check_images(x)
        logits = adapted.forward(x.to(adapted.learned.device))
        found = gradients(F.cross_entropy(logits, logits.argmax(1)), adapted.learned.parameters)
        total = [f if g is None else f + g.square() for f, g in zip(total, found, strict=True)]
        count += 1
    if count == 0:
        raise ConfigError("source_images holds no image; EATA was published with 2,000 of them")
    return [f / count for f in total]


class Eta(Learner):
    """Filtered, weighted entropy on gamma and beta of the normalisation layers; needs no source images.

    Published with Adam at 1e-3 for CIFAR, SGD at 2.5e-4 for ImageNet: `published("eta", "imagenet")`. The authors'
    reset keeps the average prediction; here it is forgotten too.

    Args:
        model: any image classifier.
        threshold, margin: see FilteredEntropy.
        options: see LearnerOptions.

    >>> import timm, torch
    >>> from spear_hf.baselines import Eta
    >>> Eta(timm.create_model("test_resnet")).step(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 1000])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        threshold: float = 0.4,
        margin: float | None = None,
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(model, FilteredEntropy(threshold, margin), OptimizerConfig("adam", 1e-3), **options)


class Eata(Learner):
    """ETA that holds each parameter near the source by its Fisher information on source images.

    Args:
        model: any image classifier.
        source_images: clean images as the model takes them: one tensor (N, C, H, W), or an iterable of batches. 2,000
            were published; their labels are not needed.
        batch_size: one tensor is divided into batches of this size; published is the size of the test batches.
        threshold, margin, strength: see FilteredEntropy and Anchored.
        options: see LearnerOptions.

    Raises:
        ConfigError: without source images.

    >>> import timm, torch
    >>> from spear_hf.baselines import Eata
    >>> eata = Eata(timm.create_model("test_resnet"), source_images=torch.randn(2, 3, 32, 32))
    >>> eata.step(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 1000])
    """

    def __init__(
        self,
        model: nn.Module,
        source_images: Tensor | Iterable[Tensor] | None = None,
        *,
        batch_size: int = 64,
        threshold: float = 0.4,
        margin: float | None = None,
        strength: float | None = None,
        **options: Unpack[LearnerOptions],
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
            anchored.information = fisher_information(self.adapted, batches)
        except Exception:
            self.unload()
            raise
