"""What a worker tells of the CPU that it does not get."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from pecan_ray.job.messages import WorkerProgress
from pecan_ray.runtime import worker_reporter
from pecan_ray.runtime.worker_reporter import WorkerReporter


@pytest.fixture
def reporter(monkeypatch: pytest.MonkeyPatch) -> WorkerReporter:
    """One whose thread has begun, by a clock that stands at 100 s."""
    plan: Any = SimpleNamespace(engine=None, fallback_reason="")
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    made = WorkerReporter("worker", None, plan, threading.Event())
    monkeypatch.setattr(made, "_thread", threading.current_thread())
    return made


def test_the_share_of_the_time_since_the_last_report_in_which_it_stood_in_line_is_told(
    reporter: WorkerReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    for now, waited in ((110.0, 4.0), (120.0, 13.0), (130.0, 13.0)):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        monkeypatch.setattr(worker_reporter, "in_line_s", lambda _, waited=waited: waited)
        told.append(reporter.completed(WorkerProgress()).in_line_share)
    assert told == pytest.approx([0.4, 0.9, 0.0])


def test_where_the_kernel_does_not_count_it_nothing_is_told(
    reporter: WorkerReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_reporter, "in_line_s", lambda _: None)
    assert reporter.completed(WorkerProgress()).in_line_share == 0.0
