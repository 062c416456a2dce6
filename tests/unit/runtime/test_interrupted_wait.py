"""A signal's handler that raises while a batch is waited for: the batch comes with the next call, and is not lost."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pecan_ray.job.messages import Orders
from pecan_ray.job.trainer_events import OrdersCame
from pecan_ray.runtime.bell import Bell
from pecan_ray.runtime.client import BatchClient, Received
from pecan_ray.transport.messages import Message
from tests.ray.waiting import until


class PreemptedError(Exception):
    """What a handler raises."""


def preempt(*_: object) -> None:
    raise PreemptedError


@pytest.fixture
def client() -> Iterator[BatchClient]:
    """A client of one trainer that talks to nobody; SIGUSR1 preempts."""
    before = signal.signal(signal.SIGUSR1, preempt)
    yield BatchClient(None, 0, 1, ("job", "incarnation", "node"), 1000, lambda bad: None)
    signal.signal(signal.SIGUSR1, before)


def test_a_bell_that_was_rung_before_is_heard_once() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    bell.wait()
    threading.Timer(0.01, bell.ring).start()
    bell.wait()


def deliver(client: BatchClient, numbers: list[int]) -> None:
    messages = [Message({"i": number}, {}, 1, 0) for number in numbers]
    assert client._deliver("worker", messages)


def when_it_waits(thread: int, client: BatchClient, numbers: list[int]) -> None:
    """Let a signal end the wait of a thread, and batches come at the same time."""
    until(lambda: sys._current_frames()[thread].f_code is Bell.wait.__code__, "it does not wait")
    with client._lock:  # the thread is behind its wait, and comes no further
        signal.pthread_kill(thread, signal.SIGUSR1)
    deliver(client, numbers)


def given(client: BatchClient) -> Any:
    received = client.next()
    assert isinstance(received, Received)
    return received.columns["i"]


def test_a_batch_whose_wait_was_ended_comes_with_the_next_call_and_is_not_used_before(client: BatchClient) -> None:
    main = threading.main_thread().ident
    assert main is not None
    client._happened(OrdersCame(Orders(number=1)))
    for number in range(0, 20, 2):
        helper = threading.Thread(target=when_it_waits, args=(main, client, [number, number + 1]))
        helper.start()
        with pytest.raises(PreemptedError):
            client.next()
        helper.join()
        assert client._for_loop.handed, "it was handed over to nobody"
        assert given(client) == number == given(client), "also where its conversion was interrupted"
        client.took()
        assert given(client) == number + 1
        client.took()
        assert client.state.yielded == number + 2 and not client._for_loop.handed
