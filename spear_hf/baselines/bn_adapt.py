"""BN-adapt: only the alpha-mixed batch statistics of Eq. 10, without learning (Schneider et al. 2020)."""

from typing import Any

from torch import Tensor, nn

from spear_hf.baselines.source import Source
from spear_hf.errors import ConfigError
from spear_hf.steering.fusion import FusedMixing, call_fused
from spear_hf.steering.mixing import AlphaMixing, batch_norms
from spear_hf.utils.distributed import BatchShard


class BnAdapt(Source):
    """Source with statistics (1 - alpha) source + alpha batch in every BatchNorm; no buffer is written.

    A network without running statistics answers as the source.

    Args:
        model: the base; hooks are registered on its BatchNorm layers until `unload`.
        alpha: in [0, 1].
        accelerator: under several processes the statistics are those of the global batch.
    """

    shard: BatchShard | None = None
    fusion: FusedMixing | None = None

    def __init__(self, model: nn.Module, alpha: float = 0.5, *, accelerator: Any = None) -> None:
        if not 0 <= alpha <= 1:
            raise ConfigError(f"alpha={alpha!r} is not allowed; it is in [0, 1]; the paper's value is 0.5")
        super().__init__(model, accelerator=accelerator)
        self.alpha = alpha
        self._handles = [m.register_forward_pre_hook(AlphaMixing(self)) for _, m in batch_norms(model)]

    def answer(self, x: Tensor, shard: BatchShard) -> Tensor:
        """The logits of x under the statistics of the global batch."""
        self.shard = shard
        return call_fused(self, super().answer, x, shard)

    def mixing_alpha(self) -> float:
        """alpha of Eq. 10."""
        return self.alpha

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
