"""Guard: any TTAMethod, watched; the frozen source answers as long as the method would be worse."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.config import differences
from spear_hf.errors import ConfigError
from spear_hf.guard.pixel_drift import replace_non_finite
from spear_hf.guard.policy import GuardPolicy
from spear_hf.guard.source_model import ParameterDistance, source_of
from spear_hf.guard.stream_watch import StreamWatch
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.record import StepRecord
from spear_hf.utils.batch import validate_batch
from spear_hf.utils.distributed import BatchShard, ProcessGroup


class Guard:
    """Wraps a TTAMethod and is one itself. It promises to be no worse than the frozen source by more than a margin, as
    far as that shows without labels.

    Every step checks for answers and parameters that are not finite, for drift, and for a jump in the pixels; on a
    shadow sample of the images it compares the method's answers with the source's. If something is wrong, the guard
    rolls the method back, resets it, or lets the source answer; after a wait it tries the method again, without
    returning its predictions. `last.events` says what was seen and done. After `reset` the same stream gives the same
    bits, events included.

    Args:
        method: call its `step` only through the guard from now on.
        policy: what is tolerated; the default is GuardPolicy().
        source: a copy of the base from before the method was made; put into evaluation mode. A method on a SpearModel
            needs none.
        accelerator: the method's own; all processes then see and do the same.

    Raises:
        ConfigError: the source is missing, or the method changes it.

    >>> import timm, torch
    >>> from spear_hf import Guard, Spear, get_spear_model
    >>> tta = Guard(Spear(get_spear_model(timm.create_model("test_resnet"))))
    >>> logits = tta.step(torch.rand(2, 3, 64, 64))
    >>> logits.shape, tta.last.events, tta.is_fallen_back
    (torch.Size([2, 1000]), (), False)
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
        self._watch = StreamWatch(method, ParameterDistance(method), self._source, self.policy)

    @property
    def last(self) -> StepRecord | None:
        """The StepRecord of the latest step, or None.

        Its events begin with "skip", "rollback", "reset", "fallback", "trial", "recover" or "note".
        """
        return self._watch.last

    @property
    def num_steps(self) -> int:
        """How many batches were answered."""
        return self._watch.num_steps

    @property
    def is_fallen_back(self) -> bool:
        """Whether the source answers."""
        return self._watch.breaker.source_answers

    @torch.inference_mode(False)  # what is saved and put back must not be inference tensors, which nothing can learn on
    def step(self, x: Tensor) -> Tensor:
        """Answer a batch, then let the method learn from it unless something is wrong.

        Args:
            x: (B, C, H, W) floats, as for the method.

        Returns:
            (B, K) logits, detached: the method's; or the source's, while fallen back or if the method's are not finite.

        Raises:
            InputError: the batch is empty, of another shape or not of floats; or, under bad_pixels="refuse", it holds
                NaN or infinity.
        """
        bad: list[int] = []
        if self.policy.bad_pixels == "repair":
            x, bad = replace_non_finite(x)
        images, shard = validate_batch(x, self.processes)
        is_clean = self._watch.receive(images, bad, shard)
        answer, record = self._answer(self._watch, x, images, shard, is_clean)
        self._watch.finish(answer, record, shard, learns=any(True for _ in self.parameters()))
        return answer

    def _answer(
        self, watch: StreamWatch, x: Tensor, images: Tensor, shard: BatchShard, is_clean: bool
    ) -> tuple[Tensor, Any]:
        """The logits to return, and the method's record if its step stands.

        `images` is x, or one black image on a process without any: the source, unlike a method, cannot run on none.
        """
        if watch.breaker.source_answers:
            answer = self._source(images)[: shard.local]
            if is_clean and watch.breaker.is_waiting:
                watch.wait_one_step()
            elif is_clean:
                watch.judge_trial(self.method.step(x), answer, shard)
            return answer, None
        before = None if is_clean else watch.learned.state_dict()
        answer = self.method.step(x)
        record = getattr(self.method, "last", None)
        if before is not None:  # repaired pixels are answered, but not learned from
            watch.learned.load_state_dict(before)
            record = None
        return watch.judge_answer(images, answer, record, shard, is_clean=is_clean)

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the method learns."""
        return self.method.parameters()

    def reset(self) -> None:
        """Reset the method, and forget all that was seen and decided."""
        self.method.reset()
        self._watch.clear()

    def unload(self) -> nn.Module:
        """The base, bit for bit as it came in."""
        return self.method.unload()

    def state_dict(self) -> dict[str, Any]:
        """The method's state, and all that the guard has seen and decided."""
        method = copy.deepcopy(self.method.state_dict())
        return {"policy": self.policy.to_dict(), "method": method, "watch": self._watch.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same policy and method.

        Raises:
            ConfigError: the state belongs to another policy or method; nothing is changed.
        """
        if differ := differences(state["policy"], self.policy.to_dict()):
            raise ConfigError(f"this state was guarded by another policy ({differ}); use that one to resume")
        self.method.load_state_dict(copy.deepcopy(state["method"]))  # first, because it may refuse
        self._watch.load_state_dict(state["watch"])
