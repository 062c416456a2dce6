"""What is waited for for long is said by name: once, and again when it is something else."""

from __future__ import annotations

import threading

import pytest

from pecan_ray.runtime import long_wait
from pecan_ray.runtime.long_wait import LongWait
from tests.ray.waiting import until


def test_it_is_said_as_it_is_by_then_once_and_again_when_it_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(long_wait, "SAY_AFTER_S", 0.01)
    wait = LongWait("for a place")
    wait.becomes("for the controller")
    with wait:
        until(lambda: caplog.messages, "nothing was said")
        for text in ("for the controller", "for another job", "for the controller", "for another job"):
            wait.becomes(text)
    assert caplog.messages == ["waiting: for the controller", "waiting: for another job"]


def test_nothing_is_said_of_what_does_not_take_long(caplog: pytest.LogCaptureFixture) -> None:
    before = threading.active_count()
    with LongWait("for the controller"):
        assert threading.active_count() == before + 1
    until(lambda: threading.active_count() == before, "the timer goes on")
    assert not caplog.messages
