"""Rows of requests that come at the same time, put together into batches for one model."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kepsvgp.serving.rows import Row

Answer = dict[str, Any]


class QueueFull(Exception):
    """More rows wait than may."""


class Batcher:
    """Answers rows in one thread, as many together as wait when it becomes free, in turns.

    A batch that fails is divided until the row that it failed for is alone, so that nobody's row
    spoils another's answer.

    Args:
        answer: The answers to some rows.
        batch_size: Most rows at a time.
        max_queue: Most rows that wait.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Row]], Sequence[Answer]],
        *,
        batch_size: int,
        max_queue: int,
    ) -> None:
        self._answer, self._batch_size, self._max_queue = answer, batch_size, max_queue
        self._queue: deque[deque[tuple[Row, asyncio.Future[Answer]]]] = deque()
        self._arrived = asyncio.Event()
        self.batches = 0

    @property
    def waiting(self) -> int:
        """Rows in the queue."""
        return sum(map(len, self._queue))

    async def __call__(self, rows: Sequence[Row]) -> list[Answer]:
        """The answers to the rows, once their turn has come."""
        if self.waiting + len(rows) > self._max_queue:
            raise QueueFull
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in rows]
        self._queue.append(deque(zip(rows, futures, strict=True)))
        self._arrived.set()
        # who gives up waiting cancels these
        return await asyncio.gather(*futures)

    async def run(self) -> None:
        """Works until it is cancelled."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as thread:
            while True:
                await self._arrived.wait()
                batch = self._take()
                if not batch:
                    self._arrived.clear()
                    continue
                rows = [row for row, _ in batch]
                outcomes = await loop.run_in_executor(thread, self._outcomes, rows)
                self.batches += 1
                for (_, future), outcome in zip(batch, outcomes, strict=True):
                    if future.done():
                        continue
                    if isinstance(outcome, Exception):
                        future.set_exception(outcome)
                    else:
                        future.set_result(outcome)

    def _take(self) -> list[tuple[Row, asyncio.Future[Answer]]]:
        """One row of each request in turn, so that long requests do not hold up short ones."""
        batch = []
        while self._queue and len(batch) < self._batch_size:
            request = self._queue.popleft()
            row, future = request.popleft()
            if request:
                self._queue.append(request)
            if not future.done():
                batch.append((row, future))
        return batch

    def _outcomes(self, rows: Sequence[Row]) -> list[Answer | Exception]:
        try:
            return list(self._answer(rows))
        except Exception as error:
            if len(rows) == 1:
                return [error]
        half = len(rows) // 2
        return self._outcomes(rows[:half]) + self._outcomes(rows[half:])
