"""RSPs as the place where another method's objective is minimised, with the alpha-mixing of their SpearModel."""

from typing import Any

from torch import Tensor, nn

from spear_hf.baselines.learned import ParameterSet
from spear_hf.baselines.rule import OptimizerConfig
from spear_hf.config import SpearConfig
from spear_hf.errors import ConfigError
from spear_hf.lean import LeanForward
from spear_hf.steering.model import SpearModel, get_spear_model
from spear_hf.utils.batch import logits_of


class Steering:
    """The RSPs of the active adapter; the base stays frozen.

    Args:
        model: a SpearModel, or a base that is made one.
        config: placement, alpha, Adam's rates; its gate and weights are SPeaR's own objective and are not used here.
    """

    def __init__(self, model: nn.Module, config: SpearConfig | None = None) -> None:
        if isinstance(model, SpearModel) and config is not None:
            raise ConfigError("this SpearModel has its configuration already; leave config= out, or pass its base")
        self.model = model if isinstance(model, SpearModel) else get_spear_model(model, config)
        if self.model.active_adapter is None:
            raise ConfigError("no adapter is active, so there is nothing to learn; call model.set_adapter(name) first")
        self._config = self.model.peft_config[self.model.active_adapter]
        betas = self._config.adam_beta1, self._config.adam_beta2
        self.rule = OptimizerConfig("adam", self._config.learning_rate, betas=betas)
        self.learned = ParameterSet(list(self.model.adapter_parameters()))

    @property
    def has_batch_norms(self) -> bool:
        """Whether the base has any."""
        return self.model.has_batch_norms

    def forward(self, x: Tensor) -> Tensor:
        """(B, K) logits with a graph that starts at the first RSP; frozen layers keep little for it."""
        with LeanForward():
            return logits_of(self.model(x))

    def undo(self) -> nn.Module:
        """The base, bit for bit as it came in; the adapter keeps what it learned."""
        return self.model.unload()

    def settings(self) -> dict[str, Any]:
        """The adapter's configuration."""
        return {"where": "rsp", "count": self.learned.count} | self._config.to_dict()
