"""The optimizer of a rival, and its learning rate for a batch of a given size."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from spear_hf.baselines.component import Component
from spear_hf.errors import ConfigError
from spear_hf.steering.mixing import batch_norms

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
        betas: of Adam; both in [0, 1).

    Raises:
        ConfigError: a value that is not allowed.

    >>> import torch
    >>> from spear_hf.baselines.optimizer_config import OptimizerConfig
    >>> config = OptimizerConfig("sgd", learning_rate=0.1, scale_lr=True)
    >>> optimizer = config.make([torch.nn.Parameter(torch.zeros(2))])
    >>> config.rate(batch_size=16, has_batch_norms=True)
    0.05
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    momentum: float = 0.9
    nesterov: bool = False
    scale_lr: bool = False
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

    def rate(self, batch_size: int, has_batch_norms: bool) -> float:
        """The learning rate for batches of this size.

        With `scale_lr` it is proportional to the batch size. For networks with batch norms `learning_rate` is the rate
        from 32 images on; for networks without it is the rate of 64 images. A batch of one image gets twice its share.
        """
        if not self.scale_lr:
            return self.learning_rate
        share = min(1.0, batch_size / 32) if has_batch_norms else batch_size / 64
        return self.learning_rate * share * (2 if batch_size == 1 else 1)


def scaled_optimizer_config(model: nn.Module) -> OptimizerConfig:
    """SGD as published for SAR and DeYO: proportional to the batch size; faster for networks without batch norms.

    >>> import torch
    >>> from spear_hf.baselines.optimizer_config import scaled_optimizer_config
    >>> scaled_optimizer_config(torch.nn.LayerNorm(4)).learning_rate
    0.001
    """
    return OptimizerConfig("sgd", 2.5e-4 if any(True for _ in batch_norms(model)) else 1e-3, scale_lr=True)
