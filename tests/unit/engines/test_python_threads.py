"""The threads of the python engine: their number can be changed, and is, by what they do with their time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.autotune import ThreadLimits
from pecan_ray.engines.python import PythonEngine, feed, ordered_results
from pecan_ray.engines.python.threads import Threads, Tuner
from pecan_ray.engines.thread_times import cpu_times
from pecan_ray.pipeline import PecanPipeline
from tests.ray.waiting import until
from tests.unit.engines.engine_leases import column, numbers, run_engine, running

DEADLINE_S = 60.0
READ_S = 0.005
"""What stands for a remote read in a function."""


class Busy:
    def __init__(self) -> None:
        self.now = self.most = self.done = 0
        self._changed = threading.Condition()
        self._allowed = 0

    def __call__(self) -> None:
        with self._changed:
            self.now += 1
            self.most = max(self.most, self.now)
            assert self._changed.wait_for(lambda: self._allowed > 0, DEADLINE_S)
            self._allowed -= 1
            self.now -= 1
            self.done += 1

    def let_go(self, calls: int) -> None:
        with self._changed:
            self._allowed += calls
            self._changed.notify_all()

    def are_at_work(self, count: int, done: int = 0) -> None:
        until(lambda: (self.now, self.done) == (count, done), lambda: f"{self.now} calls run, {self.done} are done")


@pytest.fixture
def three() -> Iterator[Threads]:
    with contextlib.closing(Wide(3)) as threads:
        yield threads


class Wide(Threads):
    """Threads of which there may be up to eight, without a tuner that decides how many."""

    def __init__(self, count: int) -> None:
        super().__init__(8)
        self.resize(count)


@pytest.mark.parametrize("count", [3, 7, 1])
def test_no_more_threads_are_at_work_than_there_shall_be_now(count: int, three: Threads) -> None:
    busy = Busy()
    for _ in range(20):
        three.start(busy)
    busy.are_at_work(3)
    three.resize(count)
    left = max(0, 3 - count)  # calls that run in threads which leave behind them
    busy.let_go(left)
    busy.are_at_work(count, left)
    busy.most = 0 if left else busy.most
    busy.let_go(20 - left)
    busy.are_at_work(0, 20)
    assert busy.most <= count


def test_a_future_carries_what_a_function_returns_or_raises_and_closing_wakes_who_waits(three: Threads) -> None:
    assert three.submit(divmod, 7, 4).result(DEADLINE_S) == (1, 3)
    assert isinstance(three.submit(divmod, 7, 0).exception(DEADLINE_S), ZeroDivisionError)
    threads, busy = Threads(1), Busy()
    threads.start(busy)
    busy.are_at_work(1)
    waiting = threads.submit(divmod, 7, 4)
    threads.close()
    with pytest.raises(CancelledError):
        waiting.result(DEADLINE_S)
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit(divmod, 7, 4)
    busy.let_go(1)


def test_a_thread_knows_how_long_it_was_on_a_cpu() -> None:
    before, began = cpu_times(), time.thread_time()
    while time.thread_time() - began < 0.1:
        pass
    after = cpu_times()
    assert after[0] - before[0] == pytest.approx(0.1, abs=0.05)
    assert after[1] >= before[1]


def test_functions_that_wait_get_more_threads_and_a_fixed_number_of_threads_stays() -> None:
    def read_remotely(i: Any) -> Any:
        time.sleep(READ_S)
        return i

    pipe = numbers(1_000_000, 10_000).map(read_remotely, on="i").batch(8)
    with running(pipe, threads=2, most_threads=32) as (tuned, batches):
        assert any(tuned.threads > 2 for _ in batches)
    with running(pipe, threads=2) as (fixed, batches):
        assert {fixed.threads for _ in zip(range(40), batches, strict=False)} == {2}


def noisy(i: Any, rng: np.random.Generator) -> Any:
    time.sleep(READ_S)
    return np.array([i, rng.integers(1 << 40)])


def test_another_number_of_threads_changes_neither_the_sequence_nor_the_random_numbers() -> None:
    pipe, tuned = numbers(600, 100).map(noisy, on="i").batch(4), list[Any]()
    with running(pipe, order="strict", threads=2, most_threads=32) as (engine, batches):
        for number, produced in enumerate(batches):
            tuned += list(produced.columns["i"])
            engine._threads.resize(1 + number % 7)  # as the tuner does
    fixed = column(run_engine(pipe, order="strict", threads=16), "i")
    assert np.array_equal(tuned, fixed) and [one[0] for one in tuned] == list(range(600))


def test_time_in_which_the_process_was_stopped_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    tuner = Tuner(2, ThreadLimits(2, 32, 1e9))
    tuner.go_on()
    tuner.begin()

    def work(seconds: float) -> None:
        clock[0] += seconds
        tuner.finished(1)

    for _ in range(20):
        work(0.002)
    before = tuner.state
    work(40.0)
    assert tuner.state == before, "40 s in which nothing moved are no window"
    for _ in range(200):
        work(0.002)
    assert tuner.state != before, "what comes behind it is"
    for _ in range(20):
        work(40.0)
    before = tuner.state
    for _ in range(20):
        work(40.0)
    assert tuner.state != before, "work that always takes so long counts"


def test_other_work_in_line_does_not_keep_the_reader_waiting() -> None:
    engines: list[PythonEngine] = []

    def with_others_behind(x: Any) -> Any:
        for _ in range(50):
            engines[0]._threads.start(lambda: None)  # as operators before a shuffle do
        return x

    pipe = numbers(400, 400, "x").map(with_others_behind, on="x").batch(4)
    with running(pipe, threads=2) as (engine, batches), ThreadPoolExecutor(1) as pool:
        engines.append(engine)
        found = pool.submit(lambda: column(list(batches), "x")).result(DEADLINE_S)
    assert sorted(found) == list(range(400))


class Straggler:
    """A function that is done with element 0 once others have been begun, or when none begins any more."""

    def __init__(self, others: int) -> None:
        self._others, self.begun = others, 0
        self._changed = threading.Condition()

    def __call__(self, x: Any) -> Any:
        with self._changed:
            if x:
                self.begun += 1
                self._changed.notify()
            else:
                before = -1
                while self.begun < self._others and before != self.begun:
                    before = self.begun
                    self._changed.wait_for(lambda: self.begun >= self._others, 1.0)
                self.seen = self.begun
        return x


@pytest.mark.parametrize("behind", [lambda pipe: pipe.batch(50), lambda pipe: pipe.shuffle(2).batch(50)])
@pytest.mark.parametrize("limited", [False, True])
def test_a_slow_element_stops_no_thread_while_memory_lasts(
    behind: Callable[[PecanPipeline], PecanPipeline], limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limited:
        for module in (feed, ordered_results):
            monkeypatch.setattr(module, "EARLY_BYTES", 50_000)
    straggler = Straggler(others=6000)  # chunks that have begun are finished: 4 threads may have 16 of 256 elements
    pipe = behind(numbers(8000, 8000, "x").map(straggler, on="x"))
    found = column(run_engine(pipe, order="strict", threads=4), "x")
    assert sorted(found) == list(range(8000))
    assert (straggler.seen < 6000) == limited, straggler.seen
