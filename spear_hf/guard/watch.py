"""What the guard looks at: running sums over the images that the source answered too, and what is wrong with them."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spear_hf.guard.evidence import Evidence
from spear_hf.guard.policy import GuardPolicy


class Finding(NamedTuple):
    """Something wrong: what kind it is, and the figures in words."""

    kind: str
    text: str


class HealthMonitor:
    """Regret, entropy rise and class histograms over the last shadow images.

    Regret and rise are each summed as a CUSUM, S = max(0, S + regret - margin * n), which is over `patience` soon after
    either goes beyond its bound, and seldom before. So over any n shadow images without an alarm the regret is at most
    margin * n + patience, whatever the stream does. Both start at half the patience: a state that nothing is known of
    is looked at closely, and what is wrong from the start shows at once.
    """

    def __init__(self, policy: GuardPolicy) -> None:
        self.policy = policy
        self.clear()

    def clear(self) -> None:
        """Forget all, after the method was changed."""
        self.regret = self.rise = self.policy.patience / 2
        self.images = 0.0
        self.classes: Tensor | None = None

    def add(self, e: Evidence) -> None:
        """Take some more images into account."""
        self.regret = max(0.0, self.regret + e.regret - self.policy.margin * e.n)
        self.rise = max(0.0, self.rise + e.entropy_rise - self.policy.max_entropy_rise * e.n)
        keep = (1 - 1 / self.policy.memory) ** e.n
        self.images = keep * self.images + e.n
        self.classes = e.classes if self.classes is None else keep * self.classes + e.classes

    @property
    def collapse(self) -> float:
        """By how much the classes answered are less varied than the source's, in [-1, 1]; 0 before there are enough."""
        if self.classes is None or self.images < self.policy.memory / 2:
            return 0.0
        p = self.classes / self.classes.sum(1, keepdim=True).clamp_min(1e-9)
        method, source = (-torch.special.xlogy(p, p).sum(1) / math.log(p.shape[1])).tolist()
        return source - method

    def findings(self) -> list[Finding]:
        """What is wrong now, worst first."""
        policy, found = self.policy, []
        if self.regret > policy.patience:
            text = (
                f"the source seems right more often, by {self.regret:.2f} images beyond a margin of {policy.margin:g}"
            )
            found.append(Finding("regret", text))
        if self.rise > policy.patience:
            text = (
                f"answers are less sure than the source's, by {self.rise:.2f} beyond {policy.max_entropy_rise:g} each"
            )
            found.append(Finding("entropy", text))
        if self.collapse > policy.max_collapse:
            text = f"classes are {self.collapse:.2f} less varied than the source's, allowed is {policy.max_collapse:g}"
            found.append(Finding("collapse", text))
        return found

    @property
    def is_calm(self) -> bool:
        """Whether a sample is enough, and the method as it is now worth going back to."""
        return max(self.regret, self.rise) < self.policy.patience / 2

    def state_dict(self) -> dict[str, Any]:
        """All sums."""
        return {"regret": self.regret, "rise": self.rise, "images": self.images, "classes": self.classes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.regret, self.rise, self.images = state["regret"], state["rise"], state["images"]
        self.classes = state["classes"]
