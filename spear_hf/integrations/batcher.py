"""Batcher: what arrives within a few milliseconds becomes one batch, in one worker thread."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class _Waiting(Generic[T, R]):
    item: T
    future: "asyncio.Future[R]"
    arrived: float  # on the clock of the event loop, in seconds


class Batcher(Generic[T, R]):
    """Collects what arrives within a few milliseconds and hands it, as one batch, to one worker thread.

    Args:
        answer: gives a result for each item of a batch, in order; called in the worker thread only.
        max_batch: items in a batch.
        max_wait_s: how long the first item of a batch waits for others, in seconds.

    >>> import asyncio
    >>> from spear_hf.integrations.batcher import Batcher
    >>> async def main():
    ...     async with Batcher(lambda numbers: [n + len(numbers) for n in numbers]) as batcher:
    ...         return await asyncio.gather(batcher.submit(10), batcher.submit(20))
    >>> asyncio.run(main())
    [12, 22]
    """

    def __init__(
        self, answer: Callable[[list[T]], Sequence[R]], *, max_batch: int = 32, max_wait_s: float = 0.005
    ) -> None:
        self.answer = answer
        self.max_batch, self.max_wait_s = max_batch, max_wait_s
        self._thread = ThreadPoolExecutor(1, "spear-hf-batches")

    async def __aenter__(self) -> "Batcher[T, R]":
        self._queue: asyncio.Queue[_Waiting[T, R] | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Answer what waits, then end the thread."""
        self._queue.put_nowait(None)
        await self._task
        self._thread.shutdown()

    async def submit(self, item: T) -> R:
        """The result for this item; a caller that is cancelled takes its item back, unless a batch has begun."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._queue.put_nowait(_Waiting(item, future, loop.time()))
        return await future

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of a function that must not run beside a batch; it runs between two of them."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def _work(self) -> None:
        goes_on = True
        while goes_on:
            batch, goes_on = await self._batch()
            batch = [each for each in batch if not each.future.done()]  # their callers have left
            if not batch:
                continue
            try:
                results = await self.call(self.answer, [each.item for each in batch])
                for each, result in zip(batch, results, strict=True):
                    if not each.future.done():
                        each.future.set_result(result)
            except Exception as error:
                for each in batch:
                    if not each.future.done():
                        each.future.set_exception(error)

    async def _batch(self) -> tuple[list[_Waiting[T, R]], bool]:
        """The next items, and whether more may come."""
        batch: list[_Waiting[T, R]] = []
        loop = asyncio.get_running_loop()
        while len(batch) < self.max_batch:
            left = batch[0].arrived + self.max_wait_s - loop.time() if batch else None
            try:
                if (left is not None and left <= 0) or not self._queue.empty():
                    each = self._queue.get_nowait()  # an item that is here already costs no waiting
                else:
                    each = await asyncio.wait_for(self._queue.get(), left)
            except (asyncio.QueueEmpty, asyncio.TimeoutError):
                break
            if each is None:
                return batch, False
            batch.append(each)
        return batch, True
