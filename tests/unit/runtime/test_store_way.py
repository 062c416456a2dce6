"""Messages that Ray carries are read in an event loop of the reading thread's own, which another thread may end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import closing
from typing import Any, cast

import pytest

from pecan_ray.runtime.calls import Calls
from pecan_ray.runtime.messages import WorkerInfo
from pecan_ray.runtime.streams import _StoreWay

pytestmark = pytest.mark.usefixtures("each_event_loop")


def way() -> _StoreWay:
    return _StoreWay(cast(WorkerInfo, None), 0, cast(Calls, None))  # neither is asked for anything here


async def ready(message: int) -> int:
    return message


async def messages(count: int, *, then: Awaitable[Any] | None = None) -> AsyncIterator[Awaitable[int]]:
    for message in range(count):
        yield ready(message)
    if then is not None:
        await then


def test_all_messages_are_read() -> None:
    got: list[Any] = []

    def deliver(message: Any) -> bool:
        got.append(message)
        return True

    with closing(way()) as reading:
        assert reading.read(messages(3), deliver)
    assert got == [0, 1, 2]


def test_one_that_cannot_be_read_ends_the_reading() -> None:
    with closing(way()) as reading:
        assert not reading.read(messages(3), lambda message: False)


def test_another_thread_ends_the_reading_also_after_its_end() -> None:
    reading, waits, first = way(), asyncio.Event(), threading.Event()

    def stop() -> None:
        first.wait()
        reading.stop()

    def deliver(message: Any) -> bool:
        first.set()
        return True

    stopping = threading.Thread(target=stop)
    stopping.start()
    with closing(reading):
        assert reading.read(messages(1, then=waits.wait()), deliver)
        stopping.join()
    reading.stop()
