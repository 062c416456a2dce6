"""A thread that waits for a bell is woken by it, or by a signal's handler, and finds nothing broken."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from pecan_ray.runtime.bell import Bell
from tests.ray.waiting import until


class Interruption(BaseException):
    """What a handler raises."""


def interrupt(*_: object) -> None:
    raise Interruption


def kill_who_waits(thread: int) -> None:
    """Send a signal to a thread as soon as it waits for a bell."""
    until(lambda: sys._current_frames()[thread].f_code is Bell.wait.__code__, "it does not wait")
    signal.pthread_kill(thread, signal.SIGUSR1)


def test_a_bell_that_was_rung_before_is_heard_once() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    bell.wait()
    threading.Timer(0.01, bell.ring).start()
    bell.wait()


def test_a_handler_that_raises_ends_the_waiting_and_nothing_else() -> None:
    bell, guard = Bell(), threading.Lock()
    before = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.main_thread().ident
    assert main is not None
    try:
        for _ in range(20):
            threading.Thread(target=kill_who_waits, args=(main,)).start()
            with pytest.raises(Interruption):
                bell.wait()
            with guard:
                bell.ring()
            bell.wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
