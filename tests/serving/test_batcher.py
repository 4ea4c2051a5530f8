import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kepsvgp.serving.batcher import Batcher, QueueFull
from kepsvgp.serving.rows import Row


class Slow:
    """Answers with what was asked, when it may, and fails for a row that is None."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_answer = threading.Event()

    def __call__(self, rows):
        self.may_answer.wait(10)
        self.batches.append([row.content for row in rows])
        if None in self.batches[-1]:
            raise ValueError("none")
        return [{"answer": row.content} for row in rows]


def rows(*contents: int | None) -> list[Row]:
    return [Row(str(place), content) for place, content in enumerate(contents)]


def run(work: Coroutine) -> Any:
    """In a thread of its own: a browser's tests leave a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def asked(slow: Slow, *requests, batch_size: int = 100, max_queue: int = 100) -> list:
    """What becomes of requests that all wait before the first one is answered."""
    batcher = Batcher(slow, batch_size=batch_size, max_queue=max_queue)
    work = asyncio.create_task(batcher.run())
    waiting = []
    for request in requests:
        waiting.append(asyncio.create_task(batcher(rows(*request))))
        await asyncio.sleep(0.05)
    slow.may_answer.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    work.cancel()
    return outcomes


def values(outcome: list[dict]) -> list[int]:
    return [answer["answer"] for answer in outcome]


def test_rows_that_wait_are_answered_together_and_in_turns() -> None:
    slow = Slow()

    found = run(asked(slow, [0], [1, 2], [3], [4, 5, 6], batch_size=4))

    assert [values(each) for each in found] == [[0], [1, 2], [3], [4, 5, 6]]
    assert slow.batches == [[0], [1, 3, 4, 2], [5, 6]]


def test_row_that_fails_spoils_no_other() -> None:
    found = run(asked(Slow(), [0], [1, 2], [None, 3], [4]))

    assert [values(found[place]) for place in (0, 1, 3)] == [[0], [1, 2], [4]]
    assert isinstance(found[2], ValueError)


def test_more_rows_than_may_wait_are_refused() -> None:
    found = run(asked(Slow(), [0], [1, 2, 3], [4, 5], [6], max_queue=4))

    assert isinstance(found[2], QueueFull)
    assert [values(found[place]) for place in (0, 1, 3)] == [[0], [1, 2, 3], [6]]


def test_who_gives_up_is_not_answered() -> None:
    async def impatient(slow: Slow) -> list[int]:
        batcher = Batcher(slow, batch_size=10, max_queue=10)
        work = asyncio.create_task(batcher.run())
        first = asyncio.create_task(batcher(rows(0)))
        await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batcher(rows(1, 2)), 0.05)
        last = asyncio.create_task(batcher(rows(3)))
        slow.may_answer.set()
        answers = values(await first) + values(await last)
        work.cancel()
        return answers

    slow = Slow()
    assert run(impatient(slow)) == [0, 3]
    assert slow.batches == [[0], [3]]
