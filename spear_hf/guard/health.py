"""HealthMonitor: running sums over the shadow images, and what is wrong with a method according to them."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spear_hf.guard.policy import GuardPolicy
from spear_hf.guard.shadow import Evidence


class Finding(NamedTuple):
    """Something that is wrong with a method.

    Args:
        kind: "non-finite", "drift", "collapse", "entropy" or "regret".
        text: the figures in words.

    >>> from spear_hf.guard.health import Finding
    >>> Finding("drift", "parameters are 0.60 away from the source, allowed is 0.5").kind
    'drift'
    """

    kind: str
    text: str


class HealthMonitor:
    """Regret, entropy rise and class histograms over the last shadow images.

    Regret and entropy rise are each summed as a CUSUM, S = max(0, S + regret - margin * n). S exceeds `patience` soon
    after the quantity exceeds its bound, and seldom before. So over any n shadow images without an alarm the regret is
    at most margin * n + patience, whatever the stream does. Both sums start at half the patience: a new state is
    compared on every image until the sums fall, and an error that was there from the start is found early.

    >>> import torch
    >>> from spear_hf.guard import GuardPolicy
    >>> from spear_hf.guard.health import HealthMonitor
    >>> from spear_hf.guard.shadow import Evidence
    >>> health = HealthMonitor(GuardPolicy(patience=1.0))
    >>> health.add(Evidence(n=8, regret=4.0, entropy_rise=0.0, classes=torch.ones(2, 10)))
    >>> [finding.kind for finding in health.findings()]
    ['regret']
    """

    def __init__(self, policy: GuardPolicy) -> None:
        self.policy = policy
        self.clear()

    def clear(self) -> None:
        """Forget everything, because the method's state was replaced."""
        self.regret = self.entropy_rise = self.policy.patience / 2
        self.images = 0.0
        self.classes: Tensor | None = None

    def add(self, e: Evidence) -> None:
        """Add the evidence of some more images."""
        self.regret = max(0.0, self.regret + e.regret - self.policy.margin * e.n)
        self.entropy_rise = max(0.0, self.entropy_rise + e.entropy_rise - self.policy.max_entropy_rise * e.n)
        keep = (1 - 1 / self.policy.memory) ** e.n
        self.images = keep * self.images + e.n
        self.classes = e.classes if self.classes is None else keep * self.classes + e.classes

    @property
    def collapse(self) -> float:
        """How much less varied the predicted classes are than the source's, in [-1, 1]; 0 until `memory` / 2 images."""
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
        if self.entropy_rise > policy.patience:
            text = (
                f"predictions are less certain than the source's: their normalized entropies are higher by "
                f"{self.entropy_rise:.2f} in all beyond {policy.max_entropy_rise:g} an image"
            )
            found.append(Finding("entropy", text))
        if self.collapse > policy.max_collapse:
            text = (
                f"predicted classes are {self.collapse:.2f} less varied than the source's, "
                f"allowed is {policy.max_collapse:g}"
            )
            found.append(Finding("collapse", text))
        return found

    @property
    def is_healthy(self) -> bool:
        """Whether both sums are low: then a sample of the images is enough, and the state is worth a snapshot."""
        return max(self.regret, self.entropy_rise) < self.policy.patience / 2

    def state_dict(self) -> dict[str, Any]:
        """All sums."""
        sums = {"regret": self.regret, "entropy_rise": self.entropy_rise}
        return sums | {"images": self.images, "classes": self.classes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.regret, self.entropy_rise = state["regret"], state["entropy_rise"]
        self.images, self.classes = state["images"], state["classes"]
