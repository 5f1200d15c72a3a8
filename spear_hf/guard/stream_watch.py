"""StreamWatch: all that a Guard keeps about one stream, and what it decides for that stream."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from spear_hf.errors import CheckpointError
from spear_hf.guard.circuit_breaker import CircuitBreaker
from spear_hf.guard.health import Finding, HealthMonitor
from spear_hf.guard.pixel_drift import PixelDriftDetector
from spear_hf.guard.policy import GuardPolicy
from spear_hf.guard.recovery import ACTIONS, FALLBACK, ROLLBACK, EscalationPolicy, Snapshots
from spear_hf.guard.shadow import ShadowEvaluation, evidence
from spear_hf.guard.source_model import Distance
from spear_hf.learning.objective import normalized_entropy
from spear_hf.learning.record import GUARDED, StepRecord
from spear_hf.learning.state_form import LARGEST, check_form, number, tensor
from spear_hf.utils.distributed import BatchShard


@runtime_checkable
class Resettable(Protocol):
    """What was learned from one stream, with the three ways in which a guard changes it.

    >>> import torch
    >>> from spear_hf.baselines import Source
    >>> from spear_hf.guard.stream_watch import Resettable
    >>> isinstance(Source(torch.nn.Identity()), Resettable)
    True
    """

    def reset(self) -> None:
        """Forget everything learned."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything learned."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        ...


class StreamWatch:
    """Watches one stream: its images, the method's answers to them, and what the method learns from them.

    In each step a Guard calls `receive`; then `judge_answer` if the method answers, or, if the source answers,
    `wait_one_step` or `judge_trial`; and last `finish`. No call here steps the method.

    Args:
        learned: what the method learns from this stream: rolled back and reset here.
        distance: how far its parameters are from the source.
        source: from images to the source's logits.
        policy: what is tolerated.

    Attributes:
        events: what was seen and done in the present step, one sentence each.
        last: the StepRecord of the latest step, or None.
        num_steps: how many steps were finished.

    >>> import torch
    >>> from spear_hf.baselines import Source
    >>> from spear_hf.guard import GuardPolicy
    >>> from spear_hf.guard.source_model import ParameterDistance
    >>> from spear_hf.guard.stream_watch import StreamWatch
    >>> from spear_hf.utils.distributed import ProcessGroup
    >>> model, images = torch.nn.Flatten(), torch.rand(4, 3, 2, 2)
    >>> method, shard = Source(model), ProcessGroup().shard(4)
    >>> watch = StreamWatch(method, ParameterDistance(method), model, GuardPolicy())
    >>> watch.receive(images, [], shard)  # whether its pixels are all finite
    True
    >>> answer, _ = watch.judge_answer(images, model(images), None, shard, is_clean=True)
    >>> torch.equal(answer, model(images)), watch.events
    (True, [])
    """

    def __init__(
        self,
        learned: Resettable,
        distance: Distance,
        source: Callable[[Tensor], Tensor],
        policy: GuardPolicy,
    ) -> None:
        self.learned = learned
        self.distance = distance
        self.source = source
        self.policy = policy
        self.pixels = PixelDriftDetector(policy.domain_change)
        self.shadow = ShadowEvaluation(policy.stride, policy.pool)
        self.health = HealthMonitor(policy)
        self.escalation = EscalationPolicy(policy.memory)
        self.breaker = CircuitBreaker(policy)
        self.snapshots = Snapshots(policy.snapshot_every)
        self.events: list[str] = []
        self.num_steps = 0
        self.last: StepRecord | None = None

    @property
    def is_fallen_back(self) -> bool:
        """Whether the source answers this stream."""
        return self.breaker.source_answers

    # --- one step, in order ------------------------------------------------------------------------------------------

    def receive(self, x: Tensor, bad: list[int], shard: BatchShard) -> bool:
        """Begin a step: look at the pixels, and return whether they are finite on all processes.

        Args:
            x: (B, ...), this process's images, without NaN; at least one, which does not count where `shard` has none.
            bad: rows of x in which NaN or infinity was replaced.
            shard: how the global batch is spread.
        """
        self.events = []
        total = _total(len(bad), x, shard)
        if total:
            self.events.append(
                f"skip: {total} images hold NaN or infinity (on this process: {bad}); they were answered with these "
                "pixels at 0, and nothing was learned from the batch"
            )
            return False
        if jump := self.pixels.jump(x, shard):
            self._meet_new_domain(f"the pixels jumped by {jump:.1f} standard deviations, so the domain has changed")
        return True

    def judge_answer(
        self, x: Tensor, answer: Tensor, record: Any, shard: BatchShard, *, is_clean: bool
    ) -> tuple[Tensor, Any]:
        """The logits to return after the method has stepped, and its record of a step that stands.

        If something is wrong, the method is rolled back or reset, or the source answers from the next step on; there
        is then no record. The logits are the source's if the method's are not finite.

        Args:
            x: (B, ...), as for `receive`.
            answer: (B, K), the method's logits; B = 0 on a process without images.
            record: the method's record of this step, or None.
            shard: how the global batch is spread.
            is_clean: what `receive` returned. A batch that is not clean is not compared, and no snapshot follows it.
        """
        broken = _total(int((~torch.isfinite(answer)).any(1).sum()), x, shard)
        if broken:
            answer = self.source(x)[: shard.local]
            found = [Finding("non-finite", f"answers to {broken} images are not finite")]
        else:
            found = self._findings(x, answer, shard) if is_clean else []
        if found:
            self._respond(found[0])
            return answer, None
        self.escalation.hold_one_step()
        self.breaker.hold_one_step()
        if is_clean and self.snapshots.is_due() and self.health.is_healthy:
            self.snapshots.take(self.learned.state_dict())
        return answer, record

    def wait_one_step(self) -> None:
        """Count a step in which the source has answered; after the last one the method is put back for its trial."""
        if self.breaker.wait_one_step():
            self._roll_back() if self.breaker.is_first_wait else self._reset()
            self.events.append("trial: the wait is over; the method is tried again, its predictions are not returned")

    def judge_trial(self, answer: Tensor, source: Tensor, shard: BatchShard) -> None:
        """Compare the method's logits (B, K) on trial with the source's, which were returned."""
        over = self.breaker.add_trial_step(evidence(answer, source, shard))
        drift = self._drift()
        failure = drift[0].text if drift else self.breaker.trial_failure() if over else ""
        if failure:
            self.breaker.trip()
            self.events.append(
                f"fallback: on trial, {failure}; the source answers for {self.breaker.steps_to_trial} steps"
            )
        elif over:
            self.escalation.clear()
            self.events.append("recover: the method has passed its trial and answers again")

    def finish(self, answer: Tensor, record: Any, shard: BatchShard, *, learns: bool) -> None:
        """End the step with its record.

        Args:
            answer: (B, K), the logits that are returned.
            record: the method's StepRecord, which gets the events; anything else is replaced by one of the guard's.
            shard: how the global batch is spread.
            learns: whether the method has anything to learn.
        """
        events = tuple(self.events)
        if isinstance(record, StepRecord):
            self.last = replace(record, step=self.num_steps, events=events)
        else:
            skipped = GUARDED if self.is_fallen_back or events else None
            gamma, beta = self.distance.deviations()
            self.last = StepRecord(
                step=self.num_steps,
                batch_size=shard.total,
                entropy=float(shard.sum(normalized_entropy(answer).sum()[None])) / shard.total,
                adapted=skipped is None and learns,
                skipped=skipped,
                gamma_deviation=gamma,
                beta_deviation=beta,
                events=events,
            )
        self.shadow.seen += shard.total
        self.num_steps += 1

    # --- findings and what is done about them ------------------------------------------------------------------------

    def _meet_new_domain(self, seen: str) -> None:
        if self.is_fallen_back:
            self._reset()
            self.breaker.begin_trial()
            self.events.append(f"trial: {seen}; the method is reset and tried again")
        elif self.policy.on_domain_change == "reset":
            self._reset()
            self.events.append(f"reset: {seen}")
        else:
            self.events.append(f"note: {seen}")

    def _findings(self, x: Tensor, answer: Tensor, shard: BatchShard) -> list[Finding]:
        """What is wrong with the parameters and with the answers to the shadow images, worst first."""
        self.shadow.add(x[: shard.local], answer, shard, every_image=not self.health.is_healthy)
        compared = self.shadow.compare(self.source, shard)
        if compared is None:
            return self._drift()
        self.health.add(compared)
        return self._drift() + self.health.findings()

    def _drift(self) -> list[Finding]:
        distance, allowed = self.distance(), self.policy.max_drift
        if distance <= allowed:
            return []
        return [Finding("drift", f"parameters are {distance:.2f} away from the source, allowed is {allowed:g}")]

    def _respond(self, finding: Finding) -> None:
        action = self.escalation.action(finding.kind)
        if action == FALLBACK:
            self.breaker.trip()
        else:
            self._roll_back() if action == ROLLBACK else self._reset()
        self.events.append(f"{action}: {finding.text}")

    def _roll_back(self) -> None:
        """To the last good snapshot, or to the start if there is none."""
        if self.snapshots.good is None:
            self._reset()
        else:
            self.learned.load_state_dict(copy.deepcopy(self.snapshots.good))
            self._forget_state()

    def _reset(self) -> None:
        self.learned.reset()
        self._forget_state()

    def _forget_state(self) -> None:
        """Drop what was seen of a state that has been replaced."""
        self.health.clear()
        self.shadow.drop()
        self.snapshots.drop()

    # --- state -------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget everything about the stream; what was learned from it stays as it is."""
        for part in self._parts().values():
            part.clear()
        self.events, self.num_steps, self.last = [], 0, None

    def state_dict(self) -> dict[str, Any]:
        """A copy of all that was seen and decided, without what was learned."""
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        return {"num_steps": self.num_steps} | copy.deepcopy(parts)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`.

        Raises:
            CheckpointError: a part of the state is missing or invalid; load another one before the next step.
        """
        check_form({name: part for name, part in state.items() if name != "snapshots"}, _FORM)
        check = getattr(self.learned, "check_state_dict", None)
        for kept in (state.get("snapshots") or {}).values():
            if check is not None and isinstance(kept, dict):  # or a later rollback would fail
                check(kept)
        try:
            for name, part in self._parts().items():
                part.load_state_dict(copy.deepcopy(state[name]))
            self.events, self.num_steps, self.last = [], int(state["num_steps"]), None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"this state of a watch is invalid ({type(error).__name__}: {error}); use one that a Guard of this "
                "version has saved"
            ) from error

    def fresh(self) -> "StreamWatch":
        """A new watch of the same stream, which has seen nothing."""
        return StreamWatch(self.learned, self.distance, self.source, self.policy)

    def _parts(self) -> dict[str, Any]:
        return {
            "pixels": self.pixels,
            "shadow": self.shadow,
            "health": self.health,
            "escalation": self.escalation,
            "breaker": self.breaker,
            "snapshots": self.snapshots,
        }


def _trial_sums(value: Any) -> str:
    """The rule of the images, the regret and the entropy rise of a trial."""
    fits = isinstance(value, (list, tuple)) and len(value) == 3 and not any(map(number(-LARGEST, LARGEST), value))
    return "" if fits else "three numbers"


_COUNT = number(0, 2**53, whole=True)
_FORM = [
    (r"num_steps|pixels\.batches|shadow\.(seen|waiting)|escalation\.steps_since", _COUNT),
    (r"breaker\.(steps_to_trial|trial_steps_left|next_wait|steps_held)", _COUNT),
    (r"breaker\.trial_sums", _trial_sums),
    (r"escalation\.last", number(-1, len(ACTIONS) - 1, whole=True)),
    (r"health\.(regret|entropy_rise|images)", number(0, LARGEST)),
    (r"health\.classes", tensor(2, None, low=0)),
    (r"pixels\.mean", tensor(None)),
    (r"pixels\.variance", tensor(None, low=0)),
    (r"shadow\.answers", tensor(low=-torch.finfo(torch.float32).max, high=torch.finfo(torch.float32).max)),
]


def _total(count: int, like: Tensor, shard: BatchShard) -> int:
    """The sum of a count over the processes; a tensor on the device of `like` carries it."""
    return int(shard.sum(like.new_tensor([count], dtype=torch.float32)))
