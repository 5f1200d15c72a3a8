"""Two tools for the paper's analyses: SPeaR with a fixed number of updates, and a test on clean images on the way."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf import METHODS, Spear, SpearConfig, TTAMethod, get_spear_model
from spear_hf.learning.record import StepRecord
from spear_hf.utils.batch import logits_of


class LimitedSpear:
    """SPeaR that learns from the first batches only and predicts the others with the learned RSPs.

    With the same number of updates at every batch size, only the reliability of the batch statistics differs between
    the sizes (the paper's sweep of alpha).

    Args:
        model: the base.
        updates: the number of batches to learn from.
        config: the configuration of SPeaR.
    """

    def __init__(self, model: nn.Module, updates: int, config: SpearConfig | None = None) -> None:
        self.tta = Spear(get_spear_model(model, config))
        self.updates = updates

    def step(self, x: Tensor) -> Tensor:
        """(B, K) logits."""
        if self.tta.num_steps < self.updates:
            return self.tta.step(x)
        with torch.no_grad():
            return logits_of(self.tta.model(x))

    def reset(self) -> None:
        """Reset the RSPs and learn again from the next batches."""
        self.tta.reset()

    def unload(self) -> nn.Module:
        """The base, bitwise unchanged."""
        return self.tta.unload()

    def parameters(self) -> Iterator[nn.Parameter]:
        """gamma and beta of every RSP."""
        return self.tta.parameters()

    def state_dict(self) -> dict[str, Any]:
        """The state of Spear, which includes the number of updates."""
        return self.tta.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.tta.load_state_dict(state)


METHODS["limited_spear"] = LimitedSpear


class CleanProbe:
    """An Observer that measures the error on clean images after every few steps, without learning from them.

    Args:
        method: SPeaR.
        batches: clean images, with pixel_values and labels.
        every: steps between two measurements.
    """

    def __init__(self, method: TTAMethod, batches: list[dict[str, Any]], every: int) -> None:
        self.method, self.batches, self.every = method, batches, every
        self.steps = 0
        self.seen: list[dict[str, Any]] = []

    def __call__(self, domain: str, record: StepRecord) -> None:
        self.steps += 1
        if self.steps % self.every == 0:
            model = getattr(self.method, "model")  # noqa: B009  TTAMethod does not promise one
            self.seen.append({"step": self.steps, "domain": domain, "error": clean_error(model, self.batches)})

    def facts(self) -> dict[str, Any]:
        """The measurements, and the number of clean images."""
        return {"clean": self.seen, "clean_images": sum(len(batch["labels"]) for batch in self.batches)}


@torch.no_grad()
def clean_error(model: Callable[..., Any], batches: list[dict[str, Any]]) -> float:
    """The error of a model in percent; nothing is learned."""
    pairs = [(logits_of(model(batch["pixel_values"])).argmax(1).cpu(), batch["labels"]) for batch in batches]
    return 100 * sum(int((answers != labels).sum()) for answers, labels in pairs) / sum(len(y) for _, y in pairs)
