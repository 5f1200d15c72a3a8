"""Source: the pretrained model as it is, which every method has to beat."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.adapt import check_images, logits_of


class Source:
    """Answers and never learns. The model is put into evaluation mode; `unload` restores its flags."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._training = {name: m.training for name, m in model.named_modules()}
        model.eval()

    @torch.no_grad()
    def step(self, x: Tensor) -> Tensor:
        """The source's logits (B, K)."""
        check_images(x)
        return logits_of(self.model(x))

    def reset(self) -> None:
        """Nothing to forget."""

    def unload(self) -> nn.Module:
        """The base, with its training flags as they came in."""
        for name, module in self.model.named_modules():
            module.training = self._training[name]
        return self.model

    def parameters(self) -> Iterator[nn.Parameter]:
        """None."""
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""
