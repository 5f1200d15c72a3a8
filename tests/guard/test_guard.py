import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

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
from spear_hf.errors import ConfigError, InputError
from spear_hf.evaluation.checkpoint import Checkpoints
from spear_hf.guard.evidence import Evidence, evidence
from spear_hf.guard.fallback import CircuitBreaker
from spear_hf.guard.ladder import EscalationPolicy
from spear_hf.guard.pixels import Pixels
from spear_hf.guard.shadow import ShadowEvaluation
from spear_hf.guard.snapshots import Snapshots
from spear_hf.guard.watch import HealthMonitor
from spear_hf.learning.record import StepRecord
from spear_hf.utils.distributed import ProcessGroup
from tests.baselines.test_methods import made
from tests.conftest import ROOT
from tests.guard import guard_processes

OPEN = SpearConfig(tau=0.0, learning_rate=0.01, boundaries="all")
CALM = GuardPolicy(margin=1.0, max_entropy_rise=1.0, max_collapse=1.0)  # a random net and its source agree on little
ONE = ProcessGroup().shard


def guarded(net: nn.Module, policy: GuardPolicy | None = None, **changes: Any) -> Guard:
    return Guard(Spear(get_spear_model(net, OPEN), **changes), policy or CALM)


def events(guard: Guard) -> tuple[str, ...]:
    assert guard.last is not None
    return guard.last.events


def batches(count: int, size: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 3, 32, 32, generator=generator) * 1.5 - 0.5 for _ in range(count)]


# --- a method like any other -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_guarded_and_keeps_the_contract(name: str, net: nn.Module) -> None:
    before = {k: v.clone() for k, v in net.state_dict().items()}
    source = copy.deepcopy(net)
    guard = Guard(made(name, net), CALM, source=source)
    assert isinstance(guard, TTAMethod)
    stream = batches(3)
    first = [guard.step(x) for x in stream]
    guard.reset()
    assert all(torch.equal(guard.step(x), f) for x, f in zip(stream, first, strict=True))
    assert isinstance(guard.last, StepRecord)
    torch.testing.assert_close(dict(guard.unload().state_dict()), before, rtol=0, atol=0)


def test_while_nothing_is_wrong_the_answers_are_the_methods_own(net: nn.Module) -> None:
    stream = batches(20)
    alone = Spear(get_spear_model(copy.deepcopy(net), OPEN))
    guard = guarded(net)
    for x in stream:
        assert torch.equal(guard.step(x), alone.step(x))
        assert guard.last == alone.last


def test_a_method_on_the_base_needs_a_source(net: nn.Module) -> None:
    with pytest.raises(ConfigError, match=r"no source to compare with; pass source=copy\.deepcopy"):
        Guard(METHODS["tent"](net))
    with pytest.raises(ConfigError, match="very model that the method changes"):
        Guard(METHODS["tent"](net), source=net)


def test_a_guarded_run_repeats_itself_from_a_state_on_disk(net: nn.Module, tmp_path: Path) -> None:
    policy = GuardPolicy(pool=3, snapshot_every=2, wait=2, trial=2, memory=4, max_drift=0.2)
    stream, guard = batches(24), guarded(net, policy, learning_rate=0.5)
    whole = [(guard.step(x), events(guard)) for x in stream]
    assert len({event.split(":")[0] for _, said in whole for event in said}) >= 3
    guard.reset()
    for x in stream[:13]:
        guard.step(x)
    Checkpoints(tmp_path, {}).save(13, {"guard": guard})
    fresh = guarded(copy.deepcopy(guard.unload()), policy, learning_rate=0.5)
    assert Checkpoints(tmp_path, {}).resume(ProcessGroup(), {"guard": fresh}) == 13
    for x, (answer, said) in zip(stream[13:], whole[13:], strict=True):
        assert torch.equal(fresh.step(x), answer)
        assert events(fresh) == said


def test_a_state_of_another_policy_is_refused(net: nn.Module) -> None:
    guard = guarded(net)
    state = guard.state_dict() | {"policy": GuardPolicy().to_dict()}
    with pytest.raises(ConfigError, match=r"another policy \(margin: 0\.02, here 1\.0"):
        Guard(guard.method, CALM).load_state_dict({**state, "policy": {**CALM.to_dict(), "margin": 0.02}})


# --- pixels that are not finite --------------------------------------------------------------------------------------


def test_bad_pixels_are_answered_and_nothing_is_learned(net: nn.Module, images: Tensor) -> None:
    guard = guarded(net)
    guard.step(images)
    before, bad = guard.method.state_dict(), images.clone()
    bad[3, 0, 0, 0], bad[5] = torch.nan, torch.inf
    answer = guard.step(bad)
    assert bool(torch.isfinite(answer).all())
    assert events(guard) == (
        "skip: 2 images hold NaN or infinity, here [3, 5]; answered with these pixels at 0, not learned",
    )
    assert guard.last is not None
    assert (guard.last.adapted, guard.last.skipped) == (False, "the guard let nothing be learned")
    for part in ("rsp", "optimizer"):
        assert repr(guard.method.state_dict()[part]) == repr(before[part])
    assert torch.isnan(bad).any()  # the caller's batch is left alone


def test_bad_pixels_are_refused_where_the_policy_says_so(net: nn.Module, images: Tensor) -> None:
    images[0, 0, 0, 0] = torch.nan
    with pytest.raises(InputError, match=r"NaN or infinity in images \[0\]"):
        guarded(net, GuardPolicy(bad_pixels="refuse")).step(images)


@pytest.mark.parametrize("x", [torch.zeros(0, 3, 32, 32), torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(4)])
def test_batches_of_another_form_are_refused(net: nn.Module, x: Tensor) -> None:
    with pytest.raises(InputError, match="allowed is"):
        guarded(net).step(x)


# --- what is wrong, and what is done ---------------------------------------------------------------------------------


def test_parameters_that_are_not_finite_are_rolled_back_and_the_source_answers(net: nn.Module) -> None:
    stream = batches(40)
    expected = net(stream[-1]).detach()
    guard = guarded(net, GuardPolicy(**{**CALM.to_dict(), "snapshot_every": 4}))
    for x in stream[:-1]:
        guard.step(x)
    with torch.no_grad():
        next(iter(guard.parameters())).fill_(torch.nan)
    torch.testing.assert_close(guard.step(stream[-1]), expected)
    assert events(guard)[0].startswith("rollback: answers to 16 images are not finite")
    assert all(bool(torch.isfinite(p).all()) for p in guard.parameters())
    assert any(bool((p != 0).any() and (p != 1).any()) for p in guard.parameters())  # what was learned is kept


def test_drift_is_rolled_back_then_reset_then_the_source_answers_until_the_method_behaves(net: nn.Module) -> None:
    policy = GuardPolicy(**{**CALM.to_dict(), "max_drift": 0.2, "wait": 2, "trial": 2})
    source, guard = copy.deepcopy(net), guarded(net, policy, learning_rate=0.5)
    words = []
    for x in batches(8):
        was_back = guard.is_fallen_back
        answer = guard.step(x)
        words += [event.split(":")[0] for event in events(guard)]
        if was_back:
            torch.testing.assert_close(answer, source(x), rtol=0, atol=0)
    assert words == ["rollback", "reset", "fallback", "trial", "fallback"]


def test_the_method_comes_back_when_its_trial_goes_well(net: nn.Module) -> None:
    policy = GuardPolicy(**{**CALM.to_dict(), "wait": 1, "trial": 2})
    guard = guarded(net, policy)
    guard._fallback.start()
    words = []
    for x in batches(5):
        guard.step(x)
        words += [event.split(":")[0] for event in events(guard)]
    assert words == ["trial", "recover"]
    assert guard.last is not None
    assert guard.last.adapted


def test_another_domain_ends_the_wait_and_is_said_otherwise(net: nn.Module) -> None:
    guard, stream = guarded(net), batches(24)
    for x in stream[:10]:
        guard.step(x)
    guard.step(stream[10] + 3)
    assert events(guard)[0].startswith("note: the pixels jumped by")
    for x in stream[11:20]:
        guard.step(x + 3)
    guard._fallback.start()
    guard.step(stream[20])
    assert events(guard)[0].startswith("trial: the pixels jumped by")


def test_another_domain_is_met_by_a_reset_where_the_policy_says_so(net: nn.Module) -> None:
    guard, stream = guarded(net, GuardPolicy(**{**CALM.to_dict(), "on_domain_change": "reset"})), batches(11)
    for x in stream[:10]:
        guard.step(x)
    expected = Spear(get_spear_model(copy.deepcopy(guard.unload()), OPEN)).step(stream[10] + 3)
    fresh = guarded(copy.deepcopy(guard.method.model.base_model), guard.policy)  # pyright: ignore
    for x in stream[:10]:
        fresh.step(x)
    assert torch.equal(fresh.step(stream[10] + 3), expected)
    assert events(fresh)[0].startswith("reset: the pixels jumped by")


@pytest.mark.slow
def test_a_stream_of_one_class_is_answered_as_well_as_by_the_source(embedded: Path) -> None:
    base = load_base_model(str(embedded / "resnet"))
    rows = Dataset.from_parquet(str(embedded / "test.parquet")).select(range(5000)).with_format("torch")
    dresses = torch.stack(
        [image.reshape(28, 28, 1) for image, y in zip(rows["image"], rows["label"], strict=True) if y == 3]
    )
    x = load_processor(base)(dresses[:384].expand(-1, -1, -1, 3))
    alone, guard = Spear(get_spear_model(copy.deepcopy(base))), Guard(Spear(get_spear_model(base)))
    wrong = {name: [m.step(part).argmax(1) != 3 for part in x.split(16)] for name, m in (("a", alone), ("g", guard))}
    errors = {name: 100 * float(torch.cat(parts).float().mean()) for name, parts in wrong.items()}
    source = 100 * float((guard._source(x).argmax(1) != 3).float().mean())
    assert errors["a"] > source + 20
    assert errors["g"] < source + 5


# --- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_see_and_do_what_one_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    script = [str(ROOT / "tests" / "guard_processes.py"), str(tmp_path)]
    done = subprocess.run([*command, *script], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    two, one = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)], guard_processes.guarded(None)
    assert two[0]["events"] == two[1]["events"] == one["events"]
    assert len({event.split(":")[0] for events in one["events"] for event in events}) >= 4
    answers = [torch.cat(parts) for parts in zip(two[0]["answers"], two[1]["answers"], strict=True)]
    torch.testing.assert_close(answers, one["answers"], rtol=0, atol=1e-3)


# --- the parts -------------------------------------------------------------------------------------------------------


def test_regret_is_what_both_believe_together() -> None:
    source, method = torch.tensor([[0.8, 0.2], [0.6, 0.4]]).log(), torch.tensor([[0.7, 0.3], [0.1, 0.9]]).log()
    found = evidence(method, source, ONE(2))
    assert (found.n, found.classes.tolist()) == (2, [[1, 1], [2, 0]])
    assert found.regret == pytest.approx((0.6 + 0.1) / 2 - (0.4 + 0.9) / 2)  # the method is the surer one


def test_an_answer_that_is_not_finite_is_wrong_and_unsure() -> None:
    source = torch.tensor([[5.0, -5.0]])
    found = evidence(torch.tensor([[torch.nan, 0.0]]), source, ONE(1))
    assert found.regret == 1.0
    assert found.entropy_rise == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("size", "stride"), [(1, 1), (4, 4), (16, 16), (40, 16)])
def test_shadow_images_are_every_sixteenth_or_one_of_each_smaller_batch(size: int, stride: int) -> None:
    shadow = ShadowEvaluation(16, pool=10_000)
    for numbers in torch.arange(480.0).split(size):
        shadow.add(numbers[:, None], numbers[:, None], ONE(len(numbers)))
        shadow.seen += len(numbers)
    assert shadow.images is not None
    assert shadow.images[:, 0].tolist() == [stride * block + block % stride for block in range(480 // stride)]


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(-1, 1), st.floats(-1, 1)), max_size=60))
def test_without_an_alarm_the_regret_over_any_stretch_is_bounded(sums: list[tuple[int, float, float]]) -> None:
    policy = GuardPolicy()
    watch, total, images = HealthMonitor(policy), 0.0, 0
    for n, regret, rise in sums:
        watch.add(Evidence(n, n * regret, n * rise, torch.ones(2, 3)))
        total, images = total + n * regret, images + n
        if watch.findings():
            break
        assert total <= policy.margin * images + policy.patience + 1e-6


def test_a_collapse_is_seen_against_the_sources_classes() -> None:
    watch = HealthMonitor(GuardPolicy())
    one, all_ten = torch.eye(10)[0] * 40, torch.full((10,), 4.0)
    watch.add(Evidence(40, 0.0, 0.0, torch.stack([one, one])))
    assert watch.findings() == []
    watch.clear()
    watch.add(Evidence(40, 0.0, 0.0, torch.stack([one, all_ten])))
    assert [(f.kind, f.text[:12]) for f in watch.findings()] == [("collapse", "classes are ")]
    assert watch.collapse == pytest.approx(1.0)


def test_a_finding_that_comes_back_soon_gets_the_next_rung() -> None:
    ladder = EscalationPolicy(memory=2)
    assert [ladder.rung("drift") for _ in range(4)] == ["rollback", "reset", "fallback", "fallback"]
    for _ in range(3):
        ladder.tick()
    assert ladder.rung("drift") == "rollback"


def test_a_method_that_fails_its_trials_waits_ever_longer_up_to_a_limit() -> None:
    fallback, waits = CircuitBreaker(GuardPolicy(wait=2, max_wait=8)), []
    for _ in range(4):
        fallback.start()
        waits.append(fallback.waiting)
    assert waits == [2, 4, 8, 8]
    for _ in range(8):
        fallback.hold()
    fallback.start()
    assert fallback.waiting == 2


def test_a_snapshot_is_good_once_the_next_one_is_taken() -> None:
    snapshots = Snapshots(every=2)
    snapshots.take({"n": 1})
    assert snapshots.good is None
    snapshots.take({"n": 2})
    snapshots.drop()
    assert snapshots.good == {"n": 1}


def test_pixels_too_large_to_square_do_not_stay_in_the_averages() -> None:
    pixels, x = Pixels(6.0), torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    for _ in range(10):
        assert pixels.jump(x, ONE(8)) == 0.0
    assert pixels.jump(x * 1e30, ONE(8)) == 0.0
    assert pixels.jump(x + 5, ONE(8)) > 6


# --- the policy ------------------------------------------------------------------------------------------------------


def test_json_round_trip_is_equal_and_byte_stable() -> None:
    policy = GuardPolicy(margin=0.1, bad_pixels="refuse")
    assert GuardPolicy.from_json(policy.to_json()) == policy
    assert GuardPolicy.from_json(policy.to_json()).to_json() == policy.to_json()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: GuardPolicy(margin=2),
            r"margin=2 is not allowed; margin is a number in \[0, 1\]; the default is 0.02",
        ),
        (lambda: GuardPolicy(shadow=0), r"shadow=0 is not allowed"),
        (lambda: GuardPolicy(patience=float("nan")), "a finite number of at least 0"),
        (lambda: GuardPolicy(pool=0), "pool is a whole number of at least 1; the default is 8"),
        (lambda: GuardPolicy(bad_pixels="drop"), "bad_pixels='drop' is not allowed; choose repair or refuse"),  # pyright: ignore
        (lambda: GuardPolicy(wait=9, max_wait=4), "max_wait=4 is below wait=9; make it at least as long"),
        (lambda: GuardPolicy.from_dict({"marginn": 1}), "no field 'marginn'; did you mean margin"),
        (lambda: GuardPolicy.from_json("[1]"), "a JSON list is not a GuardPolicy"),
        (lambda: GuardPolicy.from_json("{"), "not JSON"),
    ],
)
def test_a_wrong_policy_says_what_is_allowed(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
