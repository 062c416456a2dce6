"""What goes wrong in a task or callback of the controller's is told with what was being done."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pecan_ray.errors import ClusterError, SourceError
from pecan_ray.job.messages import Orders
from pecan_ray.runtime.job_tasks import JobTasks, unexpected_failure
from pecan_ray.runtime.notice_board import NoticeBoard

pytestmark = pytest.mark.usefixtures("each_event_loop")


def failures(work: Callable[[JobTasks], Coroutine[Any, Any, None]]) -> list[tuple[str, Exception]]:
    told: list[tuple[str, Exception]] = []
    asyncio.run(work(JobTasks(lambda doing, error: told.append((doing, error)))))
    return told


def test_a_task_that_fails_is_told_of_and_others_go_on() -> None:
    async def broken() -> None:
        raise KeyError("node")

    async def work(tasks: JobTasks) -> None:
        done = asyncio.Event()

        async def sound() -> None:
            done.set()

        await asyncio.gather(tasks.begin("looking for room", broken), tasks.begin("letting time pass", sound))
        assert done.is_set()

    ((doing, error),) = failures(work)
    assert doing == "looking for room" and isinstance(error, KeyError)


def test_a_task_that_is_cancelled_has_not_failed() -> None:
    async def work(tasks: JobTasks) -> None:
        task = tasks.begin("waiting", asyncio.Event().wait)
        await asyncio.sleep(0)
        tasks.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert failures(work) == []


def test_a_callback_of_the_notice_board_that_fails_is_told_of() -> None:
    class Broken(NoticeBoard):
        def _answer_due(self) -> None:
            raise RuntimeError("no rank")

    async def work(tasks: JobTasks) -> None:
        board = Broken(lambda rank: Orders(number=2), tasks)
        before = asyncio.get_running_loop().time()
        board.tell((0,))
        while board._answering is not None:
            assert asyncio.get_running_loop().time() < before + 60
            await asyncio.sleep(0.001)

    assert [doing for doing, _ in failures(work)] == ["answering trainers that wait for orders"]


def test_an_error_that_nobody_has_foreseen_says_what_was_being_done_and_what_to_do() -> None:
    error = unexpected_failure("job-1", "handling SplitsListed", KeyError("x"))
    assert isinstance(error, ClusterError)
    assert str(error).startswith("job job-1: its controller has failed while handling SplitsListed: KeyError: 'x'")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_an_error_of_ours_is_told_as_it_is() -> None:
    error = SourceError("split 7 is missing")
    assert unexpected_failure("job-1", "handling SplitsListed", error) is error
