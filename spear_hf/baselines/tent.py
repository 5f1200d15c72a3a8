"""Entropy minimisation: Tent on normalisation layers (Wang et al. 2021), Buffer on buffer layers (Kim et al. 2025)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn
from typing_extensions import Unpack

from spear_hf.baselines.buffer_layers import buffer_layers
from spear_hf.baselines.component import Component
from spear_hf.baselines.learner import Learner
from spear_hf.baselines.learner_options import LearnerOptions
from spear_hf.baselines.losses import Batch, entropy
from spear_hf.baselines.optimizer_config import OptimizerConfig
from spear_hf.boundaries import Boundary
from spear_hf.errors import ConfigError


@dataclass
class MeanEntropy(Component):
    """L = mean_i H(p_i) over the batch.

    >>> from spear_hf.baselines.tent import MeanEntropy
    >>> MeanEntropy().settings()
    {'kind': 'MeanEntropy'}
    """

    def __call__(self, batch: Batch) -> Tensor:
        """The loss, in nats."""
        return entropy(batch.logits).mean()


class Tent(Learner):
    """Normalises each batch by its own statistics, and lowers its mean entropy by one Adam step.

    Learns gamma and beta of the batch, layer and group norms in place. Published with Adam at 1e-3 for CIFAR, and SGD
    at 2.5e-4 for ImageNet. The authors' code learns only those of 2d batch norms.

    Args:
        model: any image classifier.
        options: see LearnerOptions.

    >>> import timm, torch
    >>> from spear_hf.baselines import Tent
    >>> tent = Tent(timm.create_model("test_resnet"))
    >>> tent.step(torch.randn(2, 3, 32, 32)).shape, tent.last.adapted
    (torch.Size([2, 1000]), True)
    """

    def __init__(self, model: nn.Module, **options: Unpack[LearnerOptions]) -> None:
        super().__init__(model, MeanEntropy(), OptimizerConfig("adam", 1e-3), **options)


class Buffer(Tent):
    """Tent's objective on small convolutions beside the stem; only these learn, and the base has batch statistics.

    The paper does not say which method its rows named Buffer host; this is Tent. Other methods host buffer layers by
    METHODS["roid"](model, where="buffer"). Published with Adam at 1e-3. Adam's first step moves alpha by 1e-3, so the
    learning rate rather than `alpha` decides how strong the layers become.

    The default is a layer at the stem. The authors' CIFAR networks also have layers inside the first stage, or the
    first two, and an alpha that depends on the batch size: `published("buffer", "cifar10", batch_size=4)`. Their ViT
    has them after the attention of the first two blocks: pass Boundary objects for these.

    Args:
        model: any image classifier with stage boundaries.
        boundaries, stages, alpha, learn_norms, learn_scales, seed: see `buffer_layers`.
        options: see LearnerOptions; without `where`.

    Raises:
        ConfigError: a `where`, or boundaries that are not allowed.

    >>> import timm
    >>> from spear_hf.baselines import Buffer
    >>> sum(p.numel() for p in Buffer(timm.create_model("test_resnet")).parameters())
    10243
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        boundaries: Sequence[int | str | Boundary] = (0,),
        stages: Sequence[int] = (),
        alpha: float = 1e-4,
        learn_norms: bool = False,
        learn_scales: bool = True,
        seed: int = 0,
        **options: Unpack[LearnerOptions],
    ) -> None:
        if options.get("where") is not None:
            raise ConfigError(
                f"Buffer learns buffer layers, not {options.get('where')!r}; leave where= out, or use METHODS['tent']"
            )
        layers = partial(
            buffer_layers,
            boundaries=boundaries,
            stages=stages,
            alpha=alpha,
            learn_norms=learn_norms,
            learn_scales=learn_scales,
            seed=seed,
        )
        super().__init__(model, **{**options, "where": layers})
