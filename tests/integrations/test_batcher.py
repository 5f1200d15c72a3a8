"""The batcher in this process."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from spear_hf.integrations.batcher import Batcher


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 20))


def test_what_arrives_together_is_one_batch_and_max_batch_bounds_it() -> None:
    sizes: list[int] = []

    def answer(items: list[int]) -> list[int]:
        sizes.append(len(items))
        return [-item for item in items]

    async def main() -> list[int]:
        async with Batcher(answer, max_batch=8, max_wait_s=0.2) as batcher:
            return await asyncio.gather(*(batcher.submit(i) for i in range(20)))

    assert run(main()) == [-i for i in range(20)]
    assert sizes == [8, 8, 4]


def test_one_item_waits_no_longer_than_max_wait() -> None:
    async def main() -> float:
        async with Batcher(lambda items: items, max_wait_s=0.01) as batcher:
            begun = asyncio.get_running_loop().time()
            await batcher.submit(1)
            return asyncio.get_running_loop().time() - begun

    assert 0.005 < run(main()) < 5


def test_a_failing_batch_fails_its_items_and_the_next_batch_is_answered() -> None:
    def answer(items: list[int]) -> list[int]:
        if 0 in items:
            raise ValueError("zero")
        return items

    async def main() -> list[Any]:
        async with Batcher(answer, max_batch=2, max_wait_s=0.2) as batcher:
            return await asyncio.gather(*(batcher.submit(i) for i in range(4)), return_exceptions=True)

    first, second, *rest = run(main())
    assert isinstance(first, ValueError)
    assert isinstance(second, ValueError)
    assert rest == [2, 3]


def test_an_item_whose_caller_left_is_not_answered() -> None:
    seen: list[int] = []

    async def main() -> None:
        async with Batcher(lambda items: seen.extend(items) or items, max_wait_s=0.05) as batcher:
            left = asyncio.create_task(batcher.submit(1))
            stays = asyncio.create_task(batcher.submit(2))
            await asyncio.sleep(0)
            left.cancel()
            assert await stays == 2

    run(main())
    assert seen == [2]


def test_the_end_answers_what_waits() -> None:
    async def main() -> int:
        async with Batcher(lambda items: items, max_wait_s=10) as batcher:
            waiting = asyncio.create_task(batcher.submit(7))
            await asyncio.sleep(0)
        return await waiting

    assert run(main()) == 7


def test_a_call_never_runs_beside_a_batch() -> None:
    lock, seen = threading.Lock(), []

    def alone(items: list[int]) -> list[int]:
        assert lock.acquire(blocking=False)
        threading.Event().wait(0.01)
        lock.release()
        seen.extend(items)
        return items

    async def main() -> None:
        async with Batcher(alone, max_batch=1) as batcher:
            work = [batcher.submit(i) for i in range(4)] + [batcher.call(alone, [i]) for i in range(4, 8)]
            await asyncio.gather(*work)

    run(main())
    assert sorted(seen) == list(range(8))


def test_results_of_another_number_are_an_error_not_a_hang() -> None:
    async def main() -> int:
        async with Batcher(lambda items: []) as batcher:
            return await batcher.submit(1)

    with pytest.raises(ValueError, match="zip"):
        run(main())
