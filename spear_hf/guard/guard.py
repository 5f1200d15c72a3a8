"""Guard: any TTAMethod, watched; it answers as the method does as long as the source would not answer better."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.config import differences
from spear_hf.errors import ConfigError
from spear_hf.guard.evidence import evidence
from spear_hf.guard.fallback import CircuitBreaker
from spear_hf.guard.keeper import Keeper
from spear_hf.guard.ladder import FALLBACK, ROLLBACK, EscalationPolicy
from spear_hf.guard.origin import source_of
from spear_hf.guard.pixels import Pixels, repaired
from spear_hf.guard.policy import GuardPolicy
from spear_hf.guard.watch import Finding
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.objective import normalized_entropy
from spear_hf.learning.record import GUARDED, StepRecord
from spear_hf.utils.batch import validate_batch
from spear_hf.utils.distributed import BatchShard, ProcessGroup


class Guard:
    """Wraps a TTAMethod and is one. The promise is "not worse than the frozen source by more than a margin", as far as
    that shows without labels.

    At every step it looks for answers and parameters that are not finite, for drift, and for a jump in the pixels; on
    a shadow sample of the images it compares the method's answers with the source's. Where something is wrong it rolls
    the method back, resets it, or lets the source answer (the answers are then the source's logits, and after a wait
    the method is tried again in the dark), and `last.events` says what was seen and done. The same stream after a
    `reset` gives the same bits, events included.

    Args:
        method: stepped through the guard alone from now on.
        policy: what is tolerated; the default is GuardPolicy().
        source: a copy of the base from before the method was made; put into evaluation mode. A method on a SpearModel
            needs none.
        accelerator: the method's own; under several processes all of them see and do the same.

    Attributes:
        last: the StepRecord of the latest step, or None. Its events begin with "skip", "rollback", "reset", "fallback",
            "trial", "recover" or "note".

    Raises:
        ConfigError: no source, or one that the method changes.
    """

    def __init__(
        self,
        method: TTAMethod,
        policy: GuardPolicy | None = None,
        *,
        source: nn.Module | None = None,
        accelerator: Any = None,
    ) -> None:
        self.method = method
        self.policy = policy or GuardPolicy()
        self.processes = ProcessGroup(accelerator)
        self._source = source_of(method, source)
        self._keeper = Keeper(method, self._source, self.policy)
        self._pixels = Pixels(self.policy.domain_change)
        self._ladder = EscalationPolicy(self.policy.memory)
        self._fallback = CircuitBreaker(self.policy)
        self.num_steps = 0
        self.last: StepRecord | None = None

    @property
    def is_fallen_back(self) -> bool:
        """Whether the source answers."""
        return self._fallback.is_on

    # --- one step ----------------------------------------------------------------------------------------------------

    def step(self, x: Tensor) -> Tensor:
        """Answer a batch, then let the method learn from it where it may.

        Args:
            x: (B, C, H, W) floats, as for the method.

        Returns:
            (B, K) logits, detached: the method's or, while fallen back or where those are not finite, the source's.

        Raises:
            InputError: a batch of another form; one with pixels that are not finite, under bad_pixels="refuse".
        """
        bad: list[int] = []
        if self.policy.bad_pixels == "repair":
            x, bad = repaired(x)
        filled, shard = validate_batch(x, self.processes)
        self._events: list[str] = []
        clean = self._is_clean(filled, shard, bad)
        if clean:
            self._look_for_another_domain(filled, shard)
        answer, record = self._answer(x, filled, shard, clean)
        self.last = self._record(answer, record, shard)
        self._keeper.seen(shard)
        self.num_steps += 1
        return answer

    def _is_clean(self, x: Tensor, shard: BatchShard, bad: list[int]) -> bool:
        """Whether all pixels of the global batch were finite."""
        total = self._sum(len(bad), x, shard)
        if total:
            self._events.append(
                f"skip: {total} images hold NaN or infinity, here {bad}; answered with these pixels at 0, not learned"
            )
        return total == 0

    def _look_for_another_domain(self, x: Tensor, shard: BatchShard) -> None:
        jump = self._pixels.jump(x, shard)
        if jump == 0.0:
            return
        seen = f"the pixels jumped by {jump:.1f} standard deviations, another domain"
        if self.is_fallen_back:
            self._keeper.reset()
            self._fallback.begin()
            self._events.append(f"trial: {seen}; the method is tried again from its reset")
        elif self.policy.on_domain_change == "reset":
            self._keeper.reset()
            self._events.append(f"reset: {seen}")
        else:
            self._events.append(f"note: {seen}")

    def _answer(self, x: Tensor, filled: Tensor, shard: BatchShard, clean: bool) -> tuple[Tensor, StepRecord | None]:
        """The answer, and the method's record where it learned from this batch."""
        if self.is_fallen_back:
            answer = self._source(filled)[: shard.local]
            if clean:
                self._wait_or_try(x, answer, shard)
            return answer, None
        before = None if clean else self.method.state_dict()
        answer = self.method.step(x)
        record = getattr(self.method, "last", None)
        if before is not None:
            self.method.load_state_dict(before)
            record = None
        broken = self._sum(int((~torch.isfinite(answer)).any(1).sum()), filled, shard)
        found = [Finding("non-finite", f"answers to {broken} images are not finite")] if broken else []
        found += self._keeper.findings(filled, answer, shard) if clean and not broken else []
        if broken:
            answer = self._source(filled)[: shard.local]
        if found:
            self._respond(found[0])
            return answer, None
        self._ladder.tick()
        self._fallback.hold()
        if clean:
            self._keeper.hold()
        return answer, record

    # --- what is done about it -------------------------------------------------------------------------------------

    def _respond(self, finding: Finding) -> None:
        """Roll back, reset or fall back, and say why."""
        rung = self._ladder.rung(finding.kind)
        if rung == FALLBACK:
            self._fallback.start()
        else:
            self._keeper.go_back() if rung == ROLLBACK else self._keeper.reset()
        self._events.append(f"{rung}: {finding.text}")

    def _wait_or_try(self, x: Tensor, source: Tensor, shard: BatchShard) -> None:
        """One step in which the source has answered."""
        if self._fallback.waiting:
            if self._fallback.tick():
                self._keeper.go_back() if self._fallback.is_first else self._keeper.reset()
                self._events.append("trial: the wait is over; the method is tried again in the dark")
            return
        answer = self.method.step(x)
        over = self._fallback.add(evidence(answer, source, shard))
        drift = self._keeper.drift()
        failure = drift[0].text if drift else self._fallback.failure() if over else ""
        if failure:
            self._fallback.start()
            self._events.append(f"fallback: on trial, {failure}; the source answers for {self._fallback.waiting} steps")
        elif over:
            self._ladder.clear()
            self._events.append("recover: the method has passed its trial and answers again")

    # --- records and state -----------------------------------------------------------------------------------------

    def _record(self, answer: Tensor, record: Any, shard: BatchShard) -> StepRecord:
        """The method's own record with the guard's events, or one of the guard's where the method learned nothing."""
        events = tuple(self._events)
        if isinstance(record, StepRecord):
            return replace(record, step=self.num_steps, events=events)
        entropies = normalized_entropy(answer).sum()[None]
        skipped = GUARDED if self.is_fallen_back or events else None
        gamma, beta = self._keeper.deviations()
        return StepRecord(
            step=self.num_steps,
            batch_size=shard.total,
            entropy=float(shard.sum(entropies)) / shard.total,
            adapted=skipped is None and any(True for _ in self.parameters()),
            skipped=skipped,
            entropy_loss=None,
            diversity_loss=None,
            anchor_loss=None,
            loss=None,
            gamma_deviation=gamma,
            beta_deviation=beta,
            events=events,
        )

    def _sum(self, count: int, x: Tensor, shard: BatchShard) -> int:
        return int(shard.sum(x.new_tensor([count], dtype=torch.float32)))

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the method learns."""
        return self.method.parameters()

    def reset(self) -> None:
        """The method's reset, and nothing seen or done yet."""
        self._keeper.clear()
        for part in (self._pixels, self._ladder, self._fallback):
            part.clear()
        self.num_steps = 0
        self.last = None

    def unload(self) -> nn.Module:
        """The base, bit for bit as it came in."""
        return self.method.unload()

    def state_dict(self) -> dict[str, Any]:
        """The method's state, and all that the guard has seen and decided."""
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        return {"policy": self.policy.to_dict(), "num_steps": self.num_steps} | copy.deepcopy(parts)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; ConfigError, with nothing changed, where it is of another policy or method."""
        if differ := differences(state["policy"], self.policy.to_dict()):
            raise ConfigError(f"this state was guarded by another policy ({differ}); use that one to resume")
        for name, part in self._parts().items():  # the method's first: it may refuse
            part.load_state_dict(copy.deepcopy(state[name]))
        self.num_steps = state["num_steps"]
        self.last = None

    def _parts(self) -> dict[str, Any]:
        parts = {"method": self.method, "pixels": self._pixels, "ladder": self._ladder, "fallback": self._fallback}
        return parts | self._keeper.parts()
