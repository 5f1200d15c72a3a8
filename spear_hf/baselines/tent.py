"""Tent: entropy minimisation over the affine parameters of the normalisation layers (Wang et al. 2021)."""

from dataclasses import dataclass

from torch import Tensor, nn
from typing_extensions import Unpack

from spear_hf.baselines.learner import Learner
from spear_hf.baselines.objective import Batch, entropy
from spear_hf.baselines.options import Options
from spear_hf.baselines.part import Part
from spear_hf.baselines.rule import OptimizerConfig


@dataclass
class MeanEntropy(Part):
    """L = mean_i H(p_i), over the batch."""

    def __call__(self, batch: Batch) -> Tensor:
        """In nats."""
        return entropy(batch.logits).mean()


class Tent(Learner):
    """Every batch is normalised by its own statistics, and one Adam step lowers its mean entropy.

    Learns gamma and beta of the batch, layer and group norms in place. Published with Adam at 1e-3 for CIFAR, and SGD
    at 2.5e-4 for ImageNet. The authors' code learns those of 2d batch norms alone.

    Args:
        model: any image classifier.
        options: see Options.
    """

    def __init__(self, model: nn.Module, **options: Unpack[Options]) -> None:
        super().__init__(model, MeanEntropy(), OptimizerConfig("adam", 1e-3), **options)
