"""A SpearModel holds nothing of a call: threads, tasks and nested models do not see each other's choices."""

import asyncio
import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread

import pytest
import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig
from spear_hf.steering import context
from spear_hf.steering.model import SpearModel
from tests.builders import steered

OPEN = SpearConfig(tau=0.0, hard_gate=False, learning_rate=0.05, boundaries="all")
CALLS = [8, pytest.param(500, marks=pytest.mark.slow)]


def moved(model: SpearModel, name: str, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.adapter_parameters(name):
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


def two_adapters(net: nn.Module, alpha: float) -> SpearModel:
    """Adapters "own" (active) and "other", both away from the identity."""
    config = SpearConfig(alpha=alpha, boundaries="all", tau=0.0, hard_gate=False, learning_rate=0.05)
    model = steered(net, config, adapter_name="own")
    model.add_adapter("other", config)
    moved(model, "own", 1)
    moved(model, "other", 2)
    return model


def batches(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, 8, 8, generator=generator) * (1 + i / 4) for i in range(n)]


def stepping(work: Callable[[], object], stop: Event) -> Thread:
    """A thread that steps until `stop`."""

    def run() -> None:
        while not stop.is_set():
            work()

    thread = Thread(target=run)
    thread.start()
    return thread


@torch.no_grad()
def answer(model: SpearModel, x: Tensor) -> Tensor:
    return model(x)


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("alpha", [0.35, pytest.param(0.0, marks=pytest.mark.slow)])
def test_eight_threads_get_the_bits_of_one_while_others_step(net: nn.Module, alpha: float, calls: int) -> None:
    model, xs, stop = two_adapters(net, alpha), batches(8), Event()
    expected = [answer(model, x) for x in xs]
    with model.use_adapter("other"):
        other, named = Spear(model), Spear(model)

    def steps_other() -> None:
        with model.use_adapter("other"):
            other.step(xs[0])

    def steps_named() -> None:
        with model.use_adapter("other"):
            named.step(xs[1], streams=["a", "b"])

    def calls_of(i: int) -> bool:
        return all(torch.equal(answer(model, xs[i]), expected[i]) for _ in range(calls))

    threads = [stepping(steps_other, stop), stepping(steps_named, stop)]
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(calls_of, range(8)))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert other.num_steps > 0
    assert named.streams["a"].num_steps > 0


def test_every_answer_is_by_the_values_before_or_after_a_step(net: nn.Module) -> None:
    model, x, y = steered(net, OPEN), *batches(2)
    tta = Spear(copy.deepcopy(model))
    states = [answer(tta.model, x)]  # of the same steps in one thread
    for _ in range(8):
        tta.step(y)
        states.append(answer(tta.model, x))
    tta, found = Spear(model), [answer(model, x)]
    thread = Thread(target=lambda: [tta.step(y) for _ in range(8)])
    thread.start()
    while thread.is_alive():
        found.append(answer(model, x))
    assert all(any(torch.equal(a, state) for state in states) for a in found)
    assert torch.equal(answer(model, x), states[-1])


@pytest.mark.parametrize("verb", ["disable_adapter", "use_adapter"])
def test_a_with_of_one_thread_does_not_reach_another(net: nn.Module, verb: str) -> None:
    model, (x,), both = two_adapters(net, 0.35), batches(1), Barrier(2, timeout=30)
    own = answer(model, x)

    def within() -> Tensor:
        with model.disable_adapter() if verb == "disable_adapter" else model.use_adapter("other"):
            both.wait()  # the main thread answers while this one is inside
            found = answer(model, x)
            both.wait()
        return found

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(within)
        both.wait()
        assert torch.equal(answer(model, x), own)
        both.wait()
        assert not torch.equal(running.result(), own)
    assert model.active_adapter == "own"


def test_set_adapter_inside_a_with_ends_with_it(net: nn.Module) -> None:
    model = two_adapters(net, 0.0)
    with model.use_adapter("own"):
        model.set_adapter("other")
        assert model.active_adapter == "other"
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: model.active_adapter).result() == "own"
    assert model.active_adapter == "own"


def test_set_adapter_outside_of_a_with_is_seen_by_every_thread(net: nn.Module) -> None:
    model = two_adapters(net, 0.0)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: model.active_adapter).result() == "own"
        model.set_adapter("other")
        assert pool.submit(lambda: model.active_adapter).result() == "other"


def test_tasks_of_one_loop_choose_apart(net: nn.Module) -> None:
    model, (x,) = two_adapters(net, 0.35), batches(1)
    expected = {}
    for name in ("own", "other"):
        with model.use_adapter(name):
            expected[name] = answer(model, x)

    async def task(name: str) -> bool:
        with model.use_adapter(name):
            for _ in range(3):
                await asyncio.sleep(0)  # the other task runs now
                if not torch.equal(answer(model, x), expected[name]):
                    return False
        return model.active_adapter == "own"

    async def both() -> list[bool]:
        return await asyncio.gather(task("own"), task("other"))

    assert asyncio.run(both()) == [True, True]


def test_a_steered_model_inside_the_forward_of_another(net: nn.Module) -> None:
    inner, (x,) = two_adapters(copy.deepcopy(net), 0.35), batches(1)
    outer = two_adapters(net, 0.35)
    expected = answer(inner, x) + answer(outer, x)
    found = []
    handle = net.get_submodule("layer2").register_forward_pre_hook(lambda *_: found.append(answer(inner, x)))
    total = answer(outer, x)
    handle.remove()
    assert torch.equal(total + found[0], expected)


@pytest.mark.parametrize("alpha", [0.0, 0.35])
def test_an_exception_in_a_forward_leaves_no_call_and_no_frame(net: nn.Module, alpha: float) -> None:
    model, (x,) = two_adapters(net, alpha), batches(1)
    expected = answer(model, x)
    handle = net.get_submodule("layer2").register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), model.use_adapter("other"):
        model(x)
    handle.remove()
    assert (context._CALL.get(), context._FRAME.get()) == (None, None)
    assert torch.equal(answer(model, x), expected)


def test_the_base_called_directly_is_steered(net: nn.Module) -> None:
    model, (x,) = two_adapters(net, 0.35), batches(1)
    assert torch.equal(net(x), model(x))
    with model.disable_adapter():
        source = net(x)
    assert not torch.equal(net(x), source)


@pytest.mark.parametrize("chosen", ["own", "other"])
def test_an_adapter_deleted_inside_a_with_steers_nobody_after_it(net: nn.Module, chosen: str) -> None:
    model, (x,) = two_adapters(net, 0.0), batches(1)
    with model.disable_adapter():
        source = answer(model, x)
    with model.use_adapter(chosen):
        model.delete_adapter("own")
    assert model.active_adapters == []
    assert torch.equal(answer(model, x), source)


def test_verifying_moves_nothing_that_other_threads_see(net: nn.Module) -> None:
    model, (x,) = two_adapters(net, 0.35), batches(1)
    expected, stop = answer(model, x), Event()
    thread = stepping(lambda: model.verify(x), stop)
    try:
        assert all(torch.equal(answer(model, x), expected) for _ in range(20))
    finally:
        stop.set()
        thread.join()


def test_verifying_two_adapters_that_act_together_gives_the_change_that_both_make(net: nn.Module) -> None:
    model, (x,) = two_adapters(net, 0.0), batches(1)
    model.set_adapter(["own", "other"])
    both = answer(model, x)
    with model.disable_adapter():
        source = answer(model, x)
    assert model.verify(x) == float((both - source).abs().max())
