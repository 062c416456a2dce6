"""A thread that waits for a bell is woken by it, or by a signal's handler, and finds nothing broken."""

from __future__ import annotations

import signal
import threading

import pytest

from pecan_ray.runtime.bell import Bell


class Interruption(BaseException):
    """What a handler raises."""


def interrupt(*_: object) -> None:
    raise Interruption


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
            threading.Timer(0.001, signal.pthread_kill, (main, signal.SIGUSR1)).start()
            with pytest.raises(Interruption):
                bell.wait()
            with guard:
                bell.ring()
            bell.wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
