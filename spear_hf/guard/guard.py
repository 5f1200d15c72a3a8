"""Guard: any TTAMethod, watched; the frozen source answers as long as the method would be worse."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.config import differences
from spear_hf.errors import CheckpointError, ConfigError
from spear_hf.guard.pixel_drift import replace_non_finite
from spear_hf.guard.policy import GuardPolicy
from spear_hf.guard.source_model import ParameterDistance, source_of
from spear_hf.guard.stream_part import StreamPart, joined, separated, stream_parts, whole_batch
from spear_hf.guard.stream_watch import StreamWatch
from spear_hf.guard.stream_watches import StreamWatches
from spear_hf.learning.method import TTAMethod
from spear_hf.learning.record import StepRecord
from spear_hf.learning.spear import Spear
from spear_hf.learning.stream_batch import grouped
from spear_hf.utils.batch import check_images, validate_batch
from spear_hf.utils.distributed import ProcessGroup
from spear_hf.utils.model_inputs import images_alone


class Guard:
    """Wraps a TTAMethod and is one itself. It promises to be no worse than the frozen source by more than a margin, as
    far as that shows without labels.

    Every step checks for answers and parameters that are not finite, for drift, and for a jump in the pixels; on a
    shadow sample of the images it compares the method's answers with the source's. If something is wrong, the guard
    rolls the method back, resets it, or lets the source answer; after a wait it tries the method again, without
    returning its predictions. `last.events` says what was seen and done. After `reset` the same stream gives the same
    bits, events included.

    Named streams are watched, rolled back, reset and answered by the source one by one, as if each had a guard and a
    model of its own.

    Args:
        method: call its `step` only through the guard from now on. A Spear can have named streams.
        policy: what is tolerated; the default is GuardPolicy().
        source: a copy of the base from before the method was made; put into evaluation mode. A method on a SpearModel
            needs none.
        accelerator: the method's own; all processes then see and do the same.

    Attributes:
        last: the StepRecord of the latest step, or None; a dictionary name -> StepRecord if the step had named streams.
            The events of a record begin with "skip", "rollback", "reset", "fallback", "trial", "recover" or "note".

    Raises:
        ConfigError: the source is missing, or the method changes it.

    >>> import timm, torch
    >>> from spear_hf import Guard, Spear, get_spear_model
    >>> tta = Guard(Spear(get_spear_model(timm.create_model("test_resnet"))))
    >>> logits = tta.step(torch.rand(2, 3, 32, 32))
    >>> logits.shape, tta.last.events, tta.is_fallen_back
    (torch.Size([2, 1000]), (), False)
    >>> logits = tta.step(torch.rand(2, 3, 32, 32), streams=["cam-1", "cam-7"])
    >>> tta.last["cam-1"].events, tta.streams["cam-1"].is_fallen_back
    ((), False)
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
        named = method.streams if isinstance(method, Spear) else None
        # a Spear's own reset and load would change its named streams too
        learned = method.stream if isinstance(method, Spear) else method
        self._watch = StreamWatch(learned, ParameterDistance(method), self._source, self.policy)
        self._watches = None if named is None else StreamWatches(named, self._source, self.policy)
        self.last: StepRecord | dict[str, StepRecord] | None = None

    @property
    def num_steps(self) -> int:
        """How many batches without named streams were answered."""
        return self._watch.num_steps

    @property
    def is_fallen_back(self) -> bool:
        """Whether the source answers batches without named streams."""
        return self._watch.is_fallen_back

    @property
    def streams(self) -> Mapping[str, StreamWatch]:
        """name -> StreamWatch of the named streams: `streams["cam-1"].is_fallen_back`, `.last`, `.num_steps`.

        If the method has `max_streams_in_memory`, only so many watches are kept. Those of the least recently used
        streams are dropped; such a stream keeps what it has learned, and starts with a new watch.
        """
        return {} if self._watches is None else self._watches

    # --- one step ----------------------------------------------------------------------------------------------------

    @torch.inference_mode(False)  # what is saved and put back must not be inference tensors, which nothing can learn on
    def step(
        self,
        x: Tensor | Mapping[str, Any] | None = None,
        *,
        pixel_values: Tensor | None = None,
        streams: str | Sequence[str] | None = None,
    ) -> Tensor:
        """Answer a batch, then let the method learn from it unless something is wrong.

        With named streams there is at most one step of the method, for the images of all streams that it steps, and
        one forward of the source for all streams that the source answers.

        Args:
            x: (B, C, H, W) floats, as for the method.
            streams: a name for each image, or one for all, as for `Spear.step`; only if the method is a Spear.
                Rows in events are places among the stream's own images.

        Returns:
            (B, K) logits, detached: the method's; or the source's, while fallen back or if the method's are not finite.

        Raises:
            InputError: the batch is empty, of another shape or not of floats; it has another number of names than of
                images; or, under bad_pixels="refuse", it holds NaN or infinity.
            ConfigError: `streams` was given, and the method has no named streams.
        """
        if streams is not None and self._watches is None:
            raise ConfigError(
                f"streams={streams!r} was given, and {type(self.method).__name__} learns from all images as one "
                "stream; allowed is streams=None; guard a Spear, or give each stream a method and a Guard of its own"
            )
        given, bad = images_alone(x, pixel_values, getattr(self.method, "model", None), "Guard"), []
        if self.policy.bad_pixels == "repair":
            given, bad = replace_non_finite(given)
        if streams is None or self._watches is None:
            images, shard = validate_batch(given, self.processes)
            answer = self._answers([whole_batch(self._watch, given, images, bad, shard)])[0]
            self.last = self._watch.last
            return answer
        check_images(given)
        names, index = grouped(streams, len(given))
        with self._watches.held(names) as watches:
            batch = stream_parts(given, names, watches, index, bad)
            answers = self._answers(batch)
            self.last = {name: watch.last for name, watch in zip(names, watches, strict=True) if watch.last is not None}
        return joined(answers, batch)

    def _answers(self, batch: list[StreamPart]) -> list[Tensor]:
        """The logits to return for each part, after one step of its stream."""
        learns = any(True for _ in self.parameters())
        clean = [part.watch.receive(part.images, part.bad, part.shard) for part in batch]
        by_source = [i for i, part in enumerate(batch) if part.watch.is_fallen_back]
        waiting = [i for i in by_source if batch[i].watch.breaker.is_waiting]
        on_trial = [i for i in by_source if i not in waiting and clean[i]]
        by_method = [i for i in range(len(batch)) if i not in by_source]
        before = {i: batch[i].watch.learned.state_dict() for i in by_method if not clean[i]}

        stepping = sorted(by_method + on_trial)
        theirs = dict(zip(by_source, self._by_source([batch[i] for i in by_source]), strict=True))
        ours = dict(zip(stepping, self._by_method([batch[i] for i in stepping]), strict=True))

        answers = []
        for i, part in enumerate(batch):
            watch, record = part.watch, None
            if i in theirs:
                answer = theirs[i]
                if i in on_trial:
                    watch.judge_trial(ours[i][0], answer, part.shard)
                elif i in waiting and clean[i]:
                    watch.wait_one_step()
            else:
                answer, record = ours[i]
                if i in before:  # repaired pixels are answered, but not learned from
                    watch.learned.load_state_dict(before[i])
                    record = None
                answer, record = watch.judge_answer(part.images, answer, record, part.shard, is_clean=clean[i])
            watch.finish(answer, record, part.shard, learns=learns)
            answers.append(answer)
        return answers

    def _by_source(self, parts: list[StreamPart]) -> list[Tensor]:
        """The source's logits for each part, in one forward."""
        if not parts:
            return []
        if len(parts) == 1:
            return [self._source(parts[0].images)[: parts[0].shard.local]]
        return separated(self._source(joined([part.images for part in parts], parts)), parts)

    def _by_method(self, parts: list[StreamPart]) -> list[tuple[Tensor, Any]]:
        """The method's logits for each part and its record of them, after one step."""
        names = [part.name for part in parts if part.name is not None]
        if not parts:
            return []
        if not names or not isinstance(self.method, Spear):
            return [(self.method.step(parts[0].x), getattr(self.method, "last", None))]
        owners = joined([torch.full((len(part.x),), i) for i, part in enumerate(parts)], parts)
        x = joined([part.x for part in parts], parts)
        logits = separated(self.method.step(x, streams=[names[i] for i in owners.tolist()]), parts)
        # not from `method.last`, which may be that of another thread
        return [(each, self.method.streams[name].last) for each, name in zip(logits, names, strict=True)]

    # --- what every method can do ------------------------------------------------------------------------------------

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the method learns."""
        return self.method.parameters()

    def reset(self) -> None:
        """Reset the method, and forget all that was seen and decided, of every stream."""
        self.method.reset()
        self._watch.clear()
        if self._watches is not None:
            self._watches.clear()
        self.last = None

    def unload(self) -> nn.Module:
        """The base, bit for bit as it came in."""
        return self.method.unload()

    def state_dict(self) -> dict[str, Any]:
        """The method's state, and all that the guard has seen and decided; of named streams by name."""
        method = copy.deepcopy(self.method.state_dict())
        own = {"policy": self.policy.to_dict(), "method": method, "watch": self._watch.state_dict()}
        return own | ({"streams": self._watches.state_dict()} if self._watches else {})

    @torch.inference_mode(False)
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same policy and method.

        Raises:
            SpearError: the state belongs to another policy or method, or a part of it is missing or invalid; nothing
                is changed.
        """
        if missing := sorted({"policy", "method", "watch"} - state.keys()):
            raise CheckpointError(f"this state lacks {missing}; use one that a Guard has saved")
        if differ := differences(state["policy"], self.policy.to_dict()):
            raise ConfigError(f"this state was guarded by another policy ({differ}); use that one to resume")
        watch, named = self._watch.fresh(), state.get("streams", {})
        watch.load_state_dict(state["watch"])
        if named and self._watches is None:
            raise ConfigError(
                f"this state has the named streams {sorted(named)}, and {type(self.method).__name__} has none; load it "
                "into a Guard of a Spear"
            )
        watches = {} if self._watches is None else self._watches.loaded(named)
        self.method.load_state_dict(copy.deepcopy(state["method"]))  # may refuse, and then changes nothing
        self._watch, self.last = watch, None
        if self._watches is not None:
            self._watches.replace(watches)
