"""BN-adapt: only the alpha-mixed batch statistics of Eq. 10, without learning (Schneider et al. 2020)."""

from typing import Any

from torch import Tensor, nn

from spear_hf.baselines.source import Source
from spear_hf.errors import ConfigError
from spear_hf.steering.context import Steering, SteeringContext
from spear_hf.steering.hooks import register_hooks
from spear_hf.utils.distributed import BatchShard


class BnAdapt(Source):
    """Source with statistics (1 - alpha) source + alpha batch in every BatchNorm; no buffer is written.

    A network without running statistics answers as the source.

    Args:
        model: the base; hooks are registered on its BatchNorm layers until `unload`.
        alpha: in [0, 1].
        accelerator: under several processes the statistics are those of the global batch.
    """

    def __init__(self, model: nn.Module, alpha: float = 0.5, *, accelerator: Any = None) -> None:
        if not 0 <= alpha <= 1:
            raise ConfigError(f"alpha={alpha!r} is not allowed; it is in [0, 1]; the paper's value is 0.5")
        super().__init__(model, accelerator=accelerator)
        self.alpha = alpha
        self._steering = Steering()
        self._handles = register_hooks(model, (), self._steering)

    def answer(self, x: Tensor, shard: BatchShard) -> Tensor:
        """The logits of x under the statistics of the global batch."""
        with self._steering.within(context=SteeringContext({}, self.alpha, shard=shard)):
            return super().answer(x, shard)

    def unload(self) -> nn.Module:
        """The base without the hooks."""
        for handle in self._handles:
            handle.remove()
        return super().unload()

    def state_dict(self) -> dict[str, Any]:
        """alpha, which a resumed run must have too."""
        return {"alpha": self.alpha}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ConfigError where the run had another alpha."""
        if state["alpha"] != self.alpha:
            raise ConfigError(
                f"this state is of another configuration (alpha: {state['alpha']}, here {self.alpha}); use that"
            )
