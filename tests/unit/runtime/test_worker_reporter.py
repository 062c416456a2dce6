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


@pytest.mark.parametrize("counts", [True, False])
def test_the_share_of_the_time_since_the_last_report_in_which_it_stood_in_line_is_told_if_the_kernel_counts_it(
    monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    plan: Any = SimpleNamespace(engine=None, fallback_reason="")
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    reporter = WorkerReporter("worker", None, plan, threading.Event())
    monkeypatch.setattr(reporter, "_thread", threading.current_thread())
    told = []
    for now, waited in ((110.0, 4.0), (120.0, 13.0), (130.0, 13.0)):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        monkeypatch.setattr(worker_reporter, "in_line_s", lambda _, waited=waited: waited if counts else None)
        told.append(reporter.completed(WorkerProgress()).in_line_share)
    assert told == pytest.approx([0.4, 0.9, 0.0] if counts else [0.0] * 3)
