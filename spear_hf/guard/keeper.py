"""Keeper: a method with what it takes to judge it and to undo it."""

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor

from spear_hf.guard.origin import Distance
from spear_hf.guard.policy import GuardPolicy
from spear_hf.guard.shadow import ShadowEvaluation
from spear_hf.guard.snapshots import Snapshots
from spear_hf.guard.watch import Finding, HealthMonitor
from spear_hf.learning.method import TTAMethod
from spear_hf.utils.distributed import BatchShard


class Keeper:
    """Looks at what a method does, keeps states of it, and puts them back."""

    def __init__(self, method: TTAMethod, source: Callable[[Tensor], Tensor], policy: GuardPolicy) -> None:
        self.method = method
        self.policy = policy
        self._source = source
        self._distance = Distance(method)
        self._shadow = ShadowEvaluation(policy.stride, policy.pool)
        self._watch = HealthMonitor(policy)
        self._snapshots = Snapshots(policy.snapshot_every)

    def findings(self, x: Tensor, answer: Tensor, shard: BatchShard) -> list[Finding]:
        """What is wrong with the parameters and with the answers to the shadow images, worst first."""
        self._shadow.add(x[: shard.local], answer, shard, all_of_them=not self._watch.is_calm)
        compared = self._shadow.compare(self._source, shard)
        if compared is None:
            return self.drift()
        self._watch.add(compared)
        return self.drift() + self._watch.findings()

    def drift(self) -> list[Finding]:
        """The parameters, where they are too far away or not finite."""
        distance, allowed = self._distance(), self.policy.max_drift
        if distance <= allowed:
            return []
        return [Finding("drift", f"parameters are {distance:.2f} away from the source, allowed is {allowed:g}")]

    def deviations(self) -> tuple[float, float]:
        """||gamma - 1|| and ||beta|| of the RSPs; zeros for a method that has none."""
        return self._distance.deviations()

    def hold(self) -> None:
        """Nothing was wrong in this step: keep the state, where one is due and nothing begins to be."""
        if self._snapshots.is_due() and self._watch.is_calm:
            self._snapshots.take(self.method.state_dict())

    def seen(self, shard: BatchShard) -> None:
        """A batch has gone by."""
        self._shadow.seen += shard.total

    def go_back(self) -> None:
        """To the last good snapshot, or to the start where there is none."""
        if self._snapshots.good is None:
            return self.reset()
        self.method.load_state_dict(copy.deepcopy(self._snapshots.good))
        return self._forget()

    def reset(self) -> None:
        """The method starts anew."""
        self.method.reset()
        self._forget()

    def clear(self) -> None:
        """The method starts anew, and so does all that is known of it."""
        self.reset()
        self._snapshots.clear()
        self._shadow.seen = 0

    def _forget(self) -> None:
        """What was seen of a state of the method that is gone."""
        self._watch.clear()
        self._shadow.clear()
        self._snapshots.drop()

    def parts(self) -> dict[str, Any]:
        """What a state consists of, besides the method."""
        return {"watch": self._watch, "shadow": self._shadow, "snapshots": self._snapshots}
