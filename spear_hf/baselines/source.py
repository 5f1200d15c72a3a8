"""Source: the pretrained model as it is, which every method has to beat."""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spear_hf.baselines.flags import Flags
from spear_hf.utils.batch import logits_of, validate_batch
from spear_hf.utils.distributed import BatchShard, ProcessGroup


class Source:
    """Answers and never learns. The model is put into evaluation mode; `unload` restores its flags.

    Args:
        model: the base.
        accelerator: under several processes each answers its slice of the global batch, which may be empty.
    """

    needs_source: ClassVar[bool] = False

    def __init__(self, model: nn.Module, *, accelerator: Any = None) -> None:
        self.model = model
        self.processes = ProcessGroup(accelerator)
        self._flags = Flags(model)
        model.eval()

    @torch.no_grad()
    def step(self, x: Tensor) -> Tensor:
        """The source's logits (B, K)."""
        x, shard = validate_batch(x, self.processes)
        return self.answer(x, shard)[: shard.local]

    def answer(self, x: Tensor, shard: BatchShard) -> Tensor:
        """The logits of x, which holds a black image where this process has none."""
        self.model.eval()  # whatever train() was called since: no dropout, and no running statistics written
        return logits_of(self.model(x))

    def reset(self) -> None:
        """Nothing to forget."""

    def unload(self) -> nn.Module:
        """The base, with its training flags as they came in."""
        self._flags.restore()
        return self.model

    def parameters(self) -> Iterator[nn.Parameter]:
        """None."""
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""
