"""Batches for `async for`: the event loop goes on, cancelled waits lose nothing, and errors arrive."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pecan_ray.errors import PlanError
from pecan_ray.integrations.async_batches import AsyncBatches
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays

pytestmark = pytest.mark.usefixtures("each_event_loop")


class Gated:
    def __init__(self, count: int = 3) -> None:
        self.gate = threading.Semaphore(0)
        self.closed, self.requested = threading.Event(), threading.Event()
        self._left = iter(range(count))

    def __next__(self) -> int:
        self.requested.set()
        self.gate.acquire()
        if self.closed.is_set():
            raise StopIteration
        return next(self._left)

    def state_dict(self) -> dict[str, Any]:
        return {"some": "state"}

    def close(self) -> None:
        self.closed.set()
        self.gate.release()


def rows(**options: Any) -> AsyncBatches:
    return PecanPipeline(Arrays(i=np.arange(5))).batch(2).iter_batches_async(debug=True, **options)


async def all_of(batches: AsyncBatches) -> list[Any]:
    return [batch async for batch in batches]


def test_other_tasks_go_on_while_a_batch_is_waited_for() -> None:
    async def loop() -> int:
        gated = Gated()
        waiting = asyncio.ensure_future(anext(AsyncBatches(lambda: gated)))
        await asyncio.sleep(0)
        gated.gate.release()  # by this very thread, which the wait would hold up
        return int(await waiting)

    assert asyncio.run(loop()) == 0


def test_a_cancelled_wait_loses_no_batch_and_there_is_no_state_until_somebody_has_it() -> None:
    async def loop() -> list[Any]:
        gated = Gated()
        batches = AsyncBatches(lambda: gated)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(batches), 0.01)
        with pytest.raises(PlanError, match="a wait for a batch was cancelled"):
            await batches.state_dict()
        gated.gate.release(4)
        first = await anext(batches)
        assert await batches.state_dict() == {"some": "state"}
        with pytest.raises(asyncio.TimeoutError):  # this one never comes, and the event loop ends all the same
            await asyncio.wait_for(anext(AsyncBatches(Gated)), 0.01)
        return [first] + [batch async for batch in batches]

    assert asyncio.run(loop()) == [0, 1, 2]


def test_to_close_ends_the_wait_of_another_task() -> None:
    async def loop() -> None:
        gated = Gated()
        async with AsyncBatches(lambda: gated) as batches:
            waiting = asyncio.ensure_future(all_of(batches))
            await asyncio.to_thread(gated.requested.wait)
        assert await waiting == [] and gated.closed.is_set()

    asyncio.run(loop())


def test_a_users_error_arrives_in_the_task() -> None:
    def fails(i: Any) -> Any:
        raise ValueError("no such luck")

    pipe = PecanPipeline(Arrays(i=np.arange(5))).map(fails, on="i").batch(2)
    with pytest.raises(ValueError, match="no such luck"):
        asyncio.run(all_of(pipe.iter_batches_async(debug=True)))


def test_an_iterator_that_nobody_has_goes_with_its_thread() -> None:
    async def loop() -> Iterator[Any]:
        batches = rows()
        async for _ in batches:
            break
        thread = batches._thread
        assert thread is not None
        return iter((weakref.ref(batches), weakref.ref(batches.batches), thread))

    iterator, job, thread = asyncio.run(loop())
    gc.collect()
    assert iterator() is None
    thread.join(10)
    gc.collect()
    assert not thread.is_alive() and job() is None
