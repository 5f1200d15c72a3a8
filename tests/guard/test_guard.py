import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor

from spear_hf import (
    METHODS,
    Guard,
    GuardPolicy,
    Spear,
    SpearConfig,
    TTAMethod,
    get_spear_model,
    load_base_model,
    load_processor,
)
from spear_hf.errors import CheckpointError, ConfigError, InputError
from spear_hf.evaluation.checkpoint import Checkpoints
from spear_hf.learning.record import StepRecord
from spear_hf.steering.model import SpearModel
from spear_hf.utils.distributed import ProcessGroup
from tests.builders import TwoStages, made
from tests.guard import guard_processes
from tests.processes import run_in_two_processes

OPEN = SpearConfig.paper(alpha=0.35, tau=0.0, learning_rate=0.01, boundaries="all")
CALM: dict[str, Any] = {"margin": 1.0, "max_entropy_rise": 1.0, "max_collapse": 1.0}  # a random net agrees on little


@pytest.fixture(scope="module")
def steered() -> SpearModel:
    """A small steered model, made once; tests take copies."""
    torch.manual_seed(0)
    return get_spear_model(TwoStages().eval(), OPEN)


def guarded(steered: SpearModel, learning_rate: float = 0.01, **policy: Any) -> Guard:
    return Guard(Spear(copy.deepcopy(steered), learning_rate=learning_rate), GuardPolicy(**(CALM | policy)))


def batches(count: int, size: int = 4, side: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 3, side, side, generator=generator) * 1.5 - 0.5 for _ in range(count)]


def events(guard: Guard) -> tuple[str, ...]:
    return record(guard).events


def record(guard: Guard) -> StepRecord:
    """Of the latest step, which had no named streams."""
    assert isinstance(guard.last, StepRecord)
    return guard.last


def records(guard: Guard) -> dict[str, StepRecord]:
    """Of the latest step, which had named streams."""
    assert isinstance(guard.last, dict)
    return guard.last


def first_words(guard: Guard, stream: list[Tensor]) -> list[str]:
    """Of all events while the guard steps over the stream."""
    words = []
    for x in stream:
        guard.step(x)
        words += [event.split(":")[0] for event in events(guard)]
    return words


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(part)


# --- a method like any other -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_guarded_and_keeps_the_contract(name: str, steered: SpearModel) -> None:
    net = copy.deepcopy(steered).unload()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    guard = Guard(made(name, net), GuardPolicy(**CALM), source=copy.deepcopy(net))
    assert isinstance(guard, TTAMethod)
    stream = batches(2)
    first = [guard.step(x) for x in stream]
    guard.reset()
    assert all(torch.equal(guard.step(x), f) for x, f in zip(stream, first, strict=True))
    assert isinstance(guard.last, StepRecord)
    torch.testing.assert_close(dict(guard.unload().state_dict()), before, rtol=0, atol=0)


def test_while_nothing_is_wrong_the_answers_are_the_methods_own(steered: SpearModel) -> None:
    alone, guard = Spear(copy.deepcopy(steered)), guarded(steered)
    for x in batches(6):
        assert torch.equal(guard.step(x), alone.step(x))
        assert guard.last == alone.last


def test_a_guarded_run_repeats_itself_from_a_state_on_disk(steered: SpearModel, tmp_path: Path) -> None:
    policy: dict[str, Any] = {"pool": 3, "snapshot_every": 2, "wait": 2, "trial": 2, "memory": 4, "max_drift": 0.2}
    stream, guard = batches(16), guarded(steered, learning_rate=0.5, **policy)
    whole = [(guard.step(x), events(guard)) for x in stream]
    assert len({event.split(":")[0] for _, said in whole for event in said}) >= 3
    guard.reset()
    for x in stream[:9]:
        guard.step(x)
    Checkpoints(tmp_path, {}).save(9, {"guard": guard})
    fresh = guarded(steered, learning_rate=0.5, **policy)
    assert Checkpoints(tmp_path, {}).resume(ProcessGroup(), {"guard": fresh}) == 9
    for x, (answer, said) in zip(stream[9:], whole[9:], strict=True):
        assert torch.equal(fresh.step(x), answer)
        assert events(fresh) == said


def test_a_state_of_another_policy_is_refused(steered: SpearModel) -> None:
    guard = guarded(steered)
    state = guard.state_dict()
    with pytest.raises(ConfigError, match=r"another policy \(margin: 0\.02, here 1\.0"):
        guard.load_state_dict(state | {"policy": state["policy"] | {"margin": 0.02}})


# --- what a stream may bring -----------------------------------------------------------------------------------------


def test_bad_pixels_are_answered_and_nothing_is_learned(steered: SpearModel, images: Tensor) -> None:
    guard = guarded(steered)
    guard.step(images)
    before, bad = guard.method.state_dict(), images.clone()
    bad[3, 0, 0, 0], bad[5] = torch.nan, torch.inf
    answer = guard.step(bad)
    assert bool(torch.isfinite(answer).all())
    assert events(guard) == (
        "skip: 2 images hold NaN or infinity (on this process: [3, 5]); they were answered with these pixels at 0, "
        "and nothing was learned from the batch",
    )
    assert (record(guard).adapted, record(guard).skipped) == (False, "the guard let nothing be learned")
    for part in ("rsp", "optimizer"):
        assert repr(guard.method.state_dict()[part]) == repr(before[part])
    assert torch.isnan(bad).any()  # the caller's batch is left alone


def test_bad_pixels_are_refused_where_the_policy_says_so(steered: SpearModel, images: Tensor) -> None:
    images[0, 0, 0, 0] = torch.nan
    with pytest.raises(InputError, match=r"NaN or infinity in images \[0\]"):
        guarded(steered, bad_pixels="refuse").step(images)


@pytest.mark.parametrize("x", [torch.zeros(0, 3, 32, 32), torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(4)])
def test_batches_of_another_form_are_refused(steered: SpearModel, x: Tensor) -> None:
    with pytest.raises(InputError, match="allowed is"):
        guarded(steered).step(x)


def test_images_that_require_grad_are_answered_alike_and_their_graph_is_not_kept(steered: SpearModel) -> None:
    plain, guard = guarded(steered), guarded(steered)
    for x in batches(4):
        assert torch.equal(guard.step(x.clone().requires_grad_()), plain.step(x))
    assert not any(kept.requires_grad for kept in tensors_in(guard.state_dict()["watch"]))


def test_a_stream_whose_resolution_changes_is_answered(steered: SpearModel) -> None:
    alone, guard = Spear(copy.deepcopy(steered)), guarded(steered, pool=6)
    for x in [*batches(2), *batches(3, side=24), *batches(2)]:
        assert torch.equal(guard.step(x), alone.step(x))


def test_a_guard_goes_on_under_inference_mode_after_it_has_put_a_state_back(steered: SpearModel) -> None:
    first, bad, last = batches(3)
    bad[0, 0, 0, 0] = torch.nan
    plain, guard = guarded(steered), guarded(steered)
    with torch.inference_mode():
        answers = [guard.step(x.clone()) for x in (first, bad, last)]
    assert all(torch.equal(plain.step(x), answer) for x, answer in zip((first, bad, last), answers, strict=True))
    assert record(guard).adapted


# --- what is wrong, and what is done ---------------------------------------------------------------------------------


def test_parameters_that_are_not_finite_are_rolled_back_and_the_source_answers(steered: SpearModel) -> None:
    *stream, last = batches(7)
    expected, guard = copy.deepcopy(steered).unload()(last), guarded(steered, snapshot_every=2, pool=1)
    for x in stream:
        guard.step(x)
    with torch.no_grad():
        next(iter(guard.parameters())).fill_(torch.nan)
    torch.testing.assert_close(guard.step(last), expected)
    assert events(guard)[0].startswith("rollback: answers to 4 images are not finite")
    assert all(bool(torch.isfinite(p).all()) for p in guard.parameters())
    assert any(bool((p != 0).any() and (p != 1).any()) for p in guard.parameters())  # what was learned is kept


def test_drift_is_rolled_back_then_reset_then_the_source_answers_until_the_method_behaves(steered: SpearModel) -> None:
    source, guard = copy.deepcopy(steered).unload(), guarded(steered, learning_rate=0.5, max_drift=0.2, wait=2, trial=2)
    words = []
    for x in batches(8):
        was_back = guard.is_fallen_back
        answer = guard.step(x)
        words += [event.split(":")[0] for event in events(guard)]
        if was_back:
            torch.testing.assert_close(answer, source(x), rtol=0, atol=0)
    assert words == ["rollback", "reset", "fallback", "trial", "fallback"]


def test_the_method_comes_back_when_its_trial_goes_well(steered: SpearModel) -> None:
    guard = guarded(steered, wait=1, trial=2)
    guard._watch.breaker.trip()
    assert first_words(guard, batches(5)) == ["trial", "recover"]
    assert record(guard).adapted


def test_a_new_domain_is_met_by_a_reset_where_the_policy_says_so(steered: SpearModel) -> None:
    *stream, last = batches(10)
    expected = Spear(copy.deepcopy(steered)).step(last + 3)
    guard = guarded(steered, on_domain_change="reset")
    assert first_words(guard, stream) == []
    assert torch.equal(guard.step(last + 3), expected)
    assert events(guard)[0].startswith("reset: the pixels jumped by")


@pytest.mark.slow
def test_a_stream_of_one_class_is_answered_as_well_as_by_the_source(embedded: Path) -> None:
    base = load_base_model(str(embedded / "resnet"))
    rows = Dataset.from_parquet(str(embedded / "test.parquet")).select(range(5000)).with_format("torch")
    dresses = torch.stack(
        [image.reshape(28, 28, 1) for image, y in zip(rows["image"], rows["label"], strict=True) if y == 3]
    )
    x = load_processor(base)(dresses[:384].expand(-1, -1, -1, 3))
    alone, other = (Spear(get_spear_model(copy.deepcopy(base)), class_skew=False) for _ in range(2))
    guard = Guard(other)
    wrong = {name: [m.step(part).argmax(1) != 3 for part in x.split(16)] for name, m in (("a", alone), ("g", guard))}
    errors = {name: 100 * float(torch.cat(parts).float().mean()) for name, parts in wrong.items()}
    source = 100 * float((guard._source(x).argmax(1) != 3).float().mean())
    assert errors["a"] > source + 20
    assert errors["g"] < source + 5


# --- named streams ---------------------------------------------------------------------------------------------------

NAMES = ["a", "b", "c"]
WILD: dict[str, Any] = {"pool": 3, "snapshot_every": 2, "wait": 2, "trial": 2, "memory": 4, "max_drift": 0.2}


def mixed(count: int) -> list[tuple[Tensor, list[str]]]:
    """Batches of images of three streams in turn. One stream's domain changes, and another has bad pixels once and is
    not in every batch."""
    found = []
    for number, x in enumerate(batches(count, size=12)):
        names = (NAMES if number % 5 else ["a", "c", "c"]) * 4
        rows = torch.tensor([name == "c" for name in names])
        if number >= 11:
            x[rows] += 3
        if number == 7:
            x[names.index("b"), 0, 0, 0] = torch.nan
        found.append((x, names))
    return found


def rows_of(name: str, names: list[str]) -> list[int]:
    return [row for row, other in enumerate(names) if other == name]


@pytest.mark.slow
def test_streams_in_mixed_batches_are_guarded_as_by_a_guard_and_a_model_each(steered: SpearModel) -> None:
    together = guarded(steered, learning_rate=0.5, **WILD)
    apart = {name: guarded(steered, learning_rate=0.5, **WILD) for name in NAMES}
    said: list[str] = []
    for x, names in mixed(18):
        answer = together.step(x, streams=names)
        assert set(records(together)) == set(names)
        for name in set(names):
            rows = rows_of(name, names)
            torch.testing.assert_close(answer[rows], apart[name].step(x[rows]), rtol=0, atol=1e-5)
            assert records(together)[name].events == events(apart[name])
            assert together.streams[name].is_fallen_back == apart[name].is_fallen_back
            said += [f"{name} {event}" for event in events(apart[name])]
    assert {event.split(":")[0][2:] for event in said} >= {"skip", "rollback", "reset", "fallback", "trial"}
    assert {event[0] for event in said if "the pixels jumped" in event} == {"c"}


def test_while_nothing_is_wrong_the_answers_to_streams_are_the_methods_own(steered: SpearModel) -> None:
    alone, guard = Spear(copy.deepcopy(steered)), guarded(steered)
    for x in batches(4, size=6):
        assert torch.equal(guard.step(x, streams=NAMES * 2), alone.step(x, streams=NAMES * 2))
        assert guard.last == alone.last


def test_one_stream_falls_back_and_the_others_take_one_step_together(
    steered: SpearModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, (first, second) = guarded(steered), batches(2, size=6)
    guard.step(first, streams=NAMES * 2)
    guard.streams["b"].breaker.trip()
    stepped, before = [], guard.method.state_dict()["streams"]["b"]
    step = guard.method.step
    monkeypatch.setattr(guard.method, "step", lambda x, **options: stepped.append(options) or step(x, **options))
    answer = guard.step(second, streams=NAMES * 2)
    assert stepped == [{"streams": ["a", "c", "a", "c"]}]
    source = copy.deepcopy(steered).unload()
    torch.testing.assert_close(answer[1::3], source(second[1::3]), rtol=0, atol=1e-6)
    assert repr(guard.method.state_dict()["streams"]["b"]) == repr(before)
    assert [records(guard)[name].adapted for name in NAMES] == [True, False, True]
    assert not guard.is_fallen_back


def test_a_rollback_of_the_stream_without_a_name_leaves_named_streams_alone(steered: SpearModel) -> None:
    guard, (x,) = guarded(steered, max_drift=0.001), batches(1)
    guard.step(x, streams="a")
    named = repr(guard.method.state_dict()["streams"])
    for _ in range(2):
        guard.step(x)
    assert events(guard)[0].startswith("reset: parameters are")
    assert repr(guard.method.state_dict()["streams"]) == named


def test_a_guarded_run_of_streams_repeats_itself_from_its_state_and_after_reset(
    steered: SpearModel, tmp_path: Path
) -> None:
    stream, guard = mixed(14), guarded(steered, learning_rate=0.5, **WILD)
    whole = [(guard.step(x, streams=names), guard.last) for x, names in stream]
    guard.reset()
    assert (guard.last, dict(guard.streams)) == (None, {})
    for (x, names), (answer, _) in zip(stream[:9], whole, strict=False):
        assert torch.equal(guard.step(x, streams=names), answer)
    Checkpoints(tmp_path, {}).save(9, {"guard": guard})
    fresh = guarded(steered, learning_rate=0.5, **WILD)
    assert Checkpoints(tmp_path, {}).resume(ProcessGroup(), {"guard": fresh}) == 9
    for (x, names), (answer, last) in zip(stream[9:], whole[9:], strict=True):
        assert torch.equal(fresh.step(x, streams=names), answer)
        assert fresh.last == last


def test_a_state_with_an_invalid_watch_is_refused_and_nothing_is_changed(steered: SpearModel) -> None:
    guard, (x,) = guarded(steered), batches(1, size=3)
    guard.step(x, streams=NAMES)
    state, other = guard.state_dict(), guarded(steered)
    other.step(x, streams="d")
    before = repr(other.state_dict())
    del state["streams"]["b"]["breaker"]
    with pytest.raises(CheckpointError, match=r"state of a watch is invalid \(KeyError: 'breaker'\)"):
        other.load_state_dict(state)
    with pytest.raises(CheckpointError, match=r"lacks \['watch'\]"):
        other.load_state_dict({key: value for key, value in state.items() if key != "watch"})
    assert repr(other.state_dict()) == before


@pytest.mark.parametrize(
    ("part", "entry", "value"),
    [
        ("breaker", "steps_to_trial", "x"),
        ("breaker", "trial_sums", [1, None, 0.0]),
        ("breaker", "next_wait", -1),
        ("health", "regret", math.nan),
        ("health", "classes", torch.ones(3)),
        ("escalation", "last", 7),
        ("pixels", "batches", 10**400),
        ("pixels", "variance", torch.tensor([-1.0])),
        ("shadow", "answers", "x"),
    ],
)
def test_an_entry_of_a_watch_that_cannot_be_is_refused(
    steered: SpearModel, part: str, entry: str, value: object
) -> None:
    guard, (x,) = guarded(steered), batches(1, size=3)
    guard.step(x)
    state = guard.state_dict()
    before = repr(state)
    state["watch"][part][entry] = value
    with pytest.raises(CheckpointError, match=rf"{part}\.{entry} is .*, allowed is"):
        guard.load_state_dict(state)
    assert repr(guard.state_dict()) == before


def test_a_snapshot_that_could_not_be_rolled_back_to_is_refused(steered: SpearModel) -> None:
    guard, (x,) = guarded(steered), batches(1, size=3)
    guard.step(x)
    state = guard.state_dict()
    state["watch"]["snapshots"]["good"] = {"rsp": {}}
    with pytest.raises(CheckpointError, match="this state lacks"):
        guard.load_state_dict(state)


def test_streams_are_refused_for_a_method_that_has_none(steered: SpearModel) -> None:
    net, (x,) = copy.deepcopy(steered).unload(), batches(1)
    guard = Guard(made("tent", net), source=copy.deepcopy(net))
    with pytest.raises(ConfigError, match=r"streams='a' was given, and Tent .* guard a Spear, or give each stream"):
        guard.step(x, streams="a")
    named = guarded(steered)
    named.step(x, streams="a")
    with pytest.raises(ConfigError, match=r"named streams \['a'\], and Tent has none"):
        guard.load_state_dict(guard.state_dict() | {"streams": named.state_dict()["streams"]})


def test_no_more_watches_are_kept_than_streams_in_memory(steered: SpearModel) -> None:
    guard = Guard(Spear(copy.deepcopy(steered), max_streams_in_memory=2), GuardPolicy(**CALM))
    (x,) = batches(1, size=3)
    guard.step(x, streams=NAMES)
    assert list(guard.streams) == ["b", "c"]
    guard.step(x[:1], streams="b")
    guard.step(x[:1], streams="a")
    assert list(guard.streams) == ["b", "a"]
    assert (guard.streams["a"].num_steps, guard.streams["b"].num_steps) == (1, 2)


def test_a_wrong_name_or_number_of_names_changes_nothing(steered: SpearModel) -> None:
    guard, (x,) = guarded(steered), batches(1)
    with pytest.raises(InputError, match="streams has 3 names for 4 images"):
        guard.step(x, streams=NAMES)
    with pytest.raises(InputError, match="stream name '' is not allowed"):
        guard.step(x, streams=["a", "a", "", "b"])
    assert dict(guard.streams) == {}


# --- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_see_and_do_what_one_does(tmp_path: Path) -> None:
    done = run_in_two_processes(guard_processes.__file__, str(tmp_path))
    assert done.returncode == 0, done.stderr
    two, one = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)], guard_processes.guarded(None)
    assert two[0]["events"] == two[1]["events"] == one["events"]
    assert len({event.split(":")[0] for events in one["events"] for event in events}) >= 4
    answers = [torch.cat(parts) for parts in zip(two[0]["answers"], two[1]["answers"], strict=True)]
    torch.testing.assert_close(answers, one["answers"], rtol=0, atol=1e-3)
