"""The threads of the python engine: their number can be changed, and is, by what they do with their time."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.contract import Slots
from pecan_ray.engines.inprocess import AllLeases
from pecan_ray.engines.python import PythonEngine, feed, ordered_results
from pecan_ray.engines.python.threads import Threads, Tuner
from pecan_ray.engines.thread_times import cpu_times, wait_and_probe_lock
from pecan_ray.engines.tuning import ThreadLimits
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays
from tests.ray.waiting import until
from tests.unit.engines.engine_leases import FewSlots, column, run_engine, running

DEADLINE_S = 60.0
SEARCH_S = 600.0
"""For a search that goes by throughput: where others use the CPUs, it waits for calm."""
READ_S = 0.005
"""What stands for a remote read in a function,"""
STEP_S = 0.05
"""and for a trainer's step."""


class Busy:
    """Calls that stay at work until they are let go."""

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
        """Wait until so many run, and so many are done."""
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


def test_a_future_carries_what_a_function_returns_or_raises(three: Threads) -> None:
    assert three.submit(divmod, 7, 4).result(DEADLINE_S) == (1, 3)
    assert isinstance(three.submit(divmod, 7, 0).exception(DEADLINE_S), ZeroDivisionError)


def test_closing_wakes_who_waits_for_what_has_not_begun() -> None:
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


def compute_in_python() -> None:
    sum(i * i for i in range(10_000))


def compute_without_the_lock() -> None:
    zlib.compress(bytes(1 << 20))


@pytest.mark.parametrize(("function", "locked"), [(compute_in_python, True), (compute_without_the_lock, False)])
def test_a_thread_knows_whether_it_waited_for_pythons_lock(function: Callable[[], None], locked: bool) -> None:
    over, never = threading.Event(), threading.Event()

    def keep_computing() -> None:
        while not over.is_set():
            function()

    busy = [threading.Thread(target=keep_computing) for _ in range(2)]
    for thread in busy:
        thread.start()
    try:
        waits = sum(wait_and_probe_lock(never, 0.01) for _ in range(20))
    finally:
        over.set()
        for thread in busy:
            thread.join()
    assert waits >= 14 if locked else waits <= 6


def read_remotely(i: Any) -> Any:
    time.sleep(READ_S)
    return i


def endless(function: Callable[..., Any], batch: int = 8) -> PecanPipeline:
    return PecanPipeline(Arrays(i=np.arange(10_000_000), split_rows=10_000)).map(function, on="i").batch(batch)


def run_until(
    pipe: PecanPipeline, ended: Callable[[PythonEngine], bool], slots: Slots | None = None, **options: Any
) -> int:
    """Run an engine until something is so, at most for `SEARCH_S`; return how many threads it had then."""
    began = time.monotonic()
    leases = AllLeases(tuple(pipe.plan.sources()), 0, 1)
    with running(pipe, leases, slots, **options) as (engine, batches):
        for produced in batches:
            if produced.slot is not None:
                produced.slot.release()
            if ended(engine):
                return engine.threads
            assert time.monotonic() - began < SEARCH_S, f"still at {engine.threads} threads"
    raise AssertionError("the data is not endless")


@pytest.fixture
def search(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is said of the search for a number of threads."""
    caplog.set_level(logging.DEBUG, "pecan_ray.engines.python.threads")
    return caplog


@pytest.mark.parametrize("shape", ["into the batch", "before a shuffle"])
def test_functions_that_wait_get_many_threads(shape: str, search: pytest.LogCaptureFixture) -> None:
    rows = PecanPipeline(Arrays(i=np.arange(10_000_000), split_rows=10_000)).map(read_remotely, on="i")
    pipe = (rows.shuffle(10) if shape == "before a shuffle" else rows).batch(8)
    run_until(pipe, lambda engine: engine.threads >= 8, threads=2, most_threads=32)
    assert "trying more" in search.text


def test_elements_in_progress_stay_within_the_memory(search: pytest.LogCaptureFixture) -> None:
    def large(i: Any) -> Any:
        time.sleep(READ_S)
        return np.zeros(500_000, np.uint8)

    seen = set()

    def limited(engine: PythonEngine) -> bool:
        seen.add(engine.threads)
        return "settled" in search.text or "elements hold" in search.text

    run_until(endless(large, 2), limited, FewSlots(2), threads=2, most_threads=32, memory_bytes=5_000_000)
    assert max(seen) <= 10


@pytest.mark.parametrize("fixed", [True, False])
def test_a_fixed_number_of_threads_stays_and_so_does_that_for_a_trainer_that_is_slower(fixed: bool) -> None:
    seen = []

    def trained(engine: PythonEngine) -> bool:
        if not fixed:
            time.sleep(STEP_S)
        seen.append(engine.threads)
        return len(seen) == 40

    options: dict[str, Any] = {} if fixed else {"slots": FewSlots(2), "most_threads": 32}
    assert run_until(endless(read_remotely, 4), trained, threads=2, **options) == 2
    assert set(seen) == {2}


def noisy(i: Any, rng: np.random.Generator) -> Any:
    time.sleep(READ_S)
    return np.array([i, rng.integers(1 << 40)])


def test_another_number_of_threads_changes_neither_the_sequence_nor_the_random_numbers() -> None:
    pipe, tuned = PecanPipeline(Arrays(i=np.arange(600), split_rows=100)).map(noisy, on="i").batch(4), list[Any]()
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

    pipe = PecanPipeline(Arrays(x=np.arange(400))).map(with_others_behind, on="x").batch(4)
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
    pipe = behind(PecanPipeline(Arrays(x=np.arange(8000))).map(straggler, on="x"))
    found = column(run_engine(pipe, order="strict", threads=4), "x")
    assert sorted(found) == list(range(8000))
    assert (straggler.seen < 6000) == limited, straggler.seen
