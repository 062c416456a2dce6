"""What the sample is made of: curves, specs, equality, stopwatches, a call in another process."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from pecan_ray.autoorder.call_in_subprocess import call_in_subprocess
from pecan_ray.autoorder.element_spec import ElementSpec, equal
from pecan_ray.autoorder.op_accumulator import cost_points
from pecan_ray.engines.timers import ProcessTimer, ThreadTimer
from pecan_ray.errors import OpError


def test_noise_never_makes_more_bytes_cheaper() -> None:
    usual = [(100.0, 2.0)] * 16 + [(300.0, 1.0)] * 16
    assert cost_points(usual) == ((100.0, 2.0), (300.0, 2.0))
    assert cost_points(usual, [(50.0, 0.5)] * 16)[0] == (50.0, 0.5)


def test_a_spec_says_what_differs_and_equality_is_of_type_and_content() -> None:
    mine, other = ElementSpec(), ElementSpec()
    for side in (3, 4):
        mine.add({"x": np.zeros((side, 2), np.float32), "name": "a"})
    other.add({"x": np.zeros((5, 2), np.float32), "name": "b"})
    assert mine.difference(other) == ""
    for element, said in (
        ({"x": np.zeros((3, 2), np.float64), "name": "a"}, "dtype is float64 instead of float32"),
        ({"x": np.zeros((3, 3), np.float32), "name": "a"}, r"shape is [3, 3] instead of [?, 2]"),
        ({"x": np.zeros(3, np.float32), "name": "a"}, "1 dimensions instead of 2"),
        ({"x": np.zeros((3, 2), np.float32)}, "lacks 'name'"),
        ({"x": np.zeros((3, 2), np.float32), "name": b"a"}, "dtype is bytes instead of str"),
    ):
        found = ElementSpec()
        found.add(element)
        assert said in mine.difference(found)
    nan = np.array([np.nan, 1.0])
    assert equal({"a": nan, "b": ["x", b"y"]}, {"a": nan.copy(), "b": ["x", b"y"]})
    assert not equal(np.zeros(2, np.float32), np.zeros(2, np.float64))
    assert not equal({"a": 1}, {"a": 1, "b": 2})
    assert not equal([np.zeros(2)], [np.ones(2)])


@pytest.mark.parametrize("stopwatch", [ThreadTimer(), ProcessTimer()])
def test_a_stopwatch_counts_work(stopwatch: ThreadTimer | ProcessTimer) -> None:
    stopwatch.start()
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    assert stopwatch.stop() >= 0.019


def test_what_one_thread_waits_for_counts() -> None:
    stopwatch = ThreadTimer()
    stopwatch.start()
    threading.Event().wait(0.03)
    assert stopwatch.stop() >= 0.02


def test_a_call_apart_returns_and_raises_what_the_function_does() -> None:
    def fail(text: str) -> None:
        raise OpError(text, op="f", element=3)

    assert call_in_subprocess(sorted, [3, 1, 2], engine="python", seconds=10) == [1, 2, 3]
    with pytest.raises(OpError, match="nobody home") as caught:
        call_in_subprocess(fail, "nobody home", engine="python", seconds=10)
    assert caught.value.element == 3
