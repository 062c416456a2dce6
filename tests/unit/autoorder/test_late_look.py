"""A look counts its waiting, and ends with its job."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder import job_order, order
from pecan_ray.autoorder.job_order import JobOrder
from pecan_ray.autoorder.late_look import JobEnd
from pecan_ray.autoorder.look_clock import WAITING_PER_CPU, LookClock
from pecan_ray.autoorder.order_request import JobSize
from pecan_ray.options import Config

Element = dict[str, Any]


def test_of_waiting_a_third_counts_and_of_work_all() -> None:
    waiting = LookClock()
    time.sleep(0.6)
    assert waiting() >= 0.6 / WAITING_PER_CPU and waiting.waited_s >= 0.55
    working, began = LookClock(), time.process_time()
    while time.process_time() - began < 0.3:
        pass
    spent = working()
    assert spent >= 0.3 and working.waited_s < 0.15, "also beside other programs, which have the CPU meanwhile"


def slow(element: Element) -> Element:
    time.sleep(1.0)
    return {**element, "x": element["x"].astype(np.float32)}


def crop(element: Element) -> Element:
    return {**element, "x": element["x"][:2]}


def plan_of(*functions: Callable[[Element], Element]) -> Any:
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(x=np.zeros((64, 100))))
    for function in functions:
        pipe = pipe.map(function)
    return pipe.plan


def test_a_look_ends_with_the_last_job_that_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "APART", True)
    monkeypatch.setattr(job_order, "WAITED_S", 0.0)
    config = Config(order_folder=tmp_path, sample_seconds=0.01, sample_elements=64)
    one = JobOrder(plan_of(slow, crop), name="slow", engine="python", seed=0, config=config)
    job = JobSize(3.0, 1.0, continues=True)
    first, second = (one.ordered(skip_bad=False, once=False, job=job) for _ in range(2))
    assert first.said == second.said == (job_order.STILL_LOOKING,)
    (look,) = one._looks.values()
    first.end.come()
    first.end.come()
    assert not look.found.done(), "the second job goes on"
    second.end.come()
    assert look.found.result(timeout=60).failed
    third = one.ordered(skip_bad=False, once=False, job=job)
    assert one._looks[False] is not look, "a later job looks anew"
    third.end.come()
    assert list(tmp_path.iterdir()) == [], "nothing is kept of what was not found"


def test_what_is_to_end_with_a_job_that_is_over_ends_at_once() -> None:
    end, ended = JobEnd(), []
    with end.ends(lambda: ended.append("in time")):
        pass
    end.when(lambda: ended.append("kept"))
    end.come()
    end.come()
    end.when(lambda: ended.append("late"))
    assert ended == ["kept", "late"] and end.over
