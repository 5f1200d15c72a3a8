"""The optimizer of a rival, and its learning rate for a batch of a given size."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from spear_hf.baselines.component import Component
from spear_hf.baselines.norms import has_only_layer_norms
from spear_hf.errors import ConfigError

OPTIMIZERS = ("adam", "sgd")


@dataclass
class OptimizerConfig(Component):
    """An optimizer without weight decay.

    Args:
        optimizer: "adam" or "sgd".
        learning_rate: at least 0.
        momentum: of SGD; in [0, 1).
        nesterov: whether SGD uses Nesterov momentum.
        scale_lr: whether the learning rate shrinks with the batch, as published for SAR and DeYO; see `rate`.
        single_image_factor: the scaled learning rate of a batch of one image is multiplied by this; 2 in SAR and DeYO.
        betas: of Adam; both in [0, 1).

    Raises:
        ConfigError: a value that is not allowed.

    >>> import torch
    >>> from spear_hf.baselines.optimizer_config import OptimizerConfig
    >>> config = OptimizerConfig("sgd", learning_rate=0.1, scale_lr=True)
    >>> optimizer = config.make([torch.nn.Parameter(torch.zeros(2))])
    >>> config.rate(batch_size=16), config.rate(batch_size=16, is_transformer=True)
    (0.05, 0.025)
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    momentum: float = 0.9
    nesterov: bool = False
    scale_lr: bool = False
    single_image_factor: float = 1.0
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer={self.optimizer!r} is not known; allowed are {', '.join(OPTIMIZERS)}")
        if not (math.isfinite(self.learning_rate) and self.learning_rate >= 0):
            raise ConfigError(f"learning_rate={self.learning_rate!r} is not allowed; give a finite number from 0 on")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum={self.momentum!r} is not allowed; it is in [0, 1), published is 0.9")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas={self.betas!r} are not allowed; both are in [0, 1), usual are (0.9, 0.999)")

    def make(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of these parameters."""
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=self.learning_rate, betas=self.betas)
        nesterov = self.nesterov and self.momentum > 0
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum, nesterov=nesterov)

    def rate(self, batch_size: int, is_transformer: bool = False) -> float:
        """The learning rate for batches of this size.

        With `scale_lr`, `learning_rate` is the rate from 32 images on, and smaller batches have less in proportion. For
        a transformer it is the rate of 64 images, and any other batch has it in proportion.
        """
        if not self.scale_lr:
            return self.learning_rate
        share = batch_size / 64 if is_transformer else min(1.0, batch_size / 32)
        return self.learning_rate * share * (self.single_image_factor if batch_size == 1 else 1.0)


def scaled_optimizer_config(model: nn.Module) -> OptimizerConfig:
    """SGD as published for SAR and DeYO: 2.5e-4, and 1e-3 for a transformer; both scaled by the batch size.

    A network whose only norms are layer norms counts as a transformer; one with batch norms, group norms or no norms
    does not.

    >>> import torch
    >>> from spear_hf.baselines.optimizer_config import scaled_optimizer_config
    >>> [scaled_optimizer_config(norm).learning_rate for norm in (torch.nn.LayerNorm(4), torch.nn.GroupNorm(2, 4))]
    [0.001, 0.00025]
    """
    rate = 1e-3 if has_only_layer_norms(model) else 2.5e-4
    return OptimizerConfig("sgd", rate, scale_lr=True, single_image_factor=2.0)
