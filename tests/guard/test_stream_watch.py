import copy
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf import GuardPolicy
from spear_hf.baselines import Source
from spear_hf.guard.source_model import ParameterDistance
from spear_hf.guard.stream_watch import StreamWatch
from spear_hf.utils.distributed import ProcessGroup

SHARD = ProcessGroup().shard(8)
SOURCE = nn.Flatten()  # images (8, 3, 1, 1) are their own logits
X = torch.tensor([[4.0, 0.0, 0.0], [0.0, 4.0, 0.0]]).repeat(4, 1).view(8, 3, 1, 1)
POLICY = GuardPolicy(pool=1, snapshot_every=1, wait=2, trial=2)


class Counter:
    """What was learned: a number that each step raises."""

    def __init__(self) -> None:
        self.value = 0

    def reset(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def watch_of(learned: Counter) -> StreamWatch:
    return StreamWatch(learned, ParameterDistance(Source(SOURCE)), SOURCE, POLICY)


def step(watch: StreamWatch, answer: Tensor) -> Tensor:
    """One step of a method that gives this answer, as a Guard makes it; returns what is answered."""
    is_clean = watch.receive(X, [], SHARD)
    if watch.breaker.source_answers:
        returned = SOURCE(X)
        watch.wait_one_step() if watch.breaker.is_waiting else watch.judge_trial(answer, returned, SHARD)
    else:
        returned, _ = watch.judge_answer(X, answer, None, SHARD, is_clean=is_clean)
    watch.finish(returned, None, SHARD, learns=True)
    return returned


def test_what_was_learned_goes_back_to_the_last_good_snapshot() -> None:
    learned = Counter()
    watch = watch_of(learned)
    for learned.value in range(1, 6):
        step(watch, SOURCE(X))
    assert watch.snapshots.good == {"value": 4}
    assert torch.equal(step(watch, torch.full((8, 3), torch.nan)), SOURCE(X))
    assert learned.value == 4
    assert watch.events == ["rollback: answers to 8 images are not finite"]


def test_one_stream_falls_back_and_another_goes_on() -> None:
    bad, good = watch_of(Counter()), watch_of(Counter())
    wrong = SOURCE(X.roll(1, 0)) / 4  # the other class, less certain than the source
    for _ in range(2):
        step(bad, wrong)
        assert torch.equal(step(good, SOURCE(X)), SOURCE(X))
    assert (bad.breaker.source_answers, good.breaker.source_answers) == (True, False)
    assert torch.equal(step(bad, wrong), SOURCE(X))


def test_a_new_domain_is_noted_and_ends_the_wait() -> None:
    learned = Counter()
    watch = watch_of(learned)
    for x in [X] * 9 + [X + 3]:
        watch.receive(x, [], SHARD)
    assert watch.events[0].startswith("note: the pixels jumped by")
    learned.value = 7
    watch.breaker.trip()
    for x in [X + 3] * 9 + [X]:
        watch.receive(x, [], SHARD)
    assert watch.events[0].startswith("trial: the pixels jumped by")
    assert (learned.value, watch.breaker.is_waiting, watch.breaker.source_answers) == (0, False, True)


def test_a_watch_goes_on_from_its_state_and_starts_anew_after_clear() -> None:
    answers = [SOURCE(X) * (1 - number / 8) for number in range(16)]
    watch, fresh = watch_of(Counter()), watch_of(Counter())
    start, whole = copy.deepcopy(watch.state_dict()), []
    for number, answer in enumerate(answers):
        if number == 6:
            fresh.load_state_dict(watch.state_dict())
        step(watch, answer)
        whole.append(watch.last)
    for answer, expected in zip(answers[6:], whole[6:], strict=True):
        step(fresh, answer)
        assert fresh.last == expected
    assert any(record.events for record in whole if record)
    watch.clear()
    assert (repr(watch.state_dict()), watch.last) == (repr(start), None)
