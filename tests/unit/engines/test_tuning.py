"""The threads of the python engine: the search for their number, which may change under way, and the CPUs there are."""

from __future__ import annotations

import contextlib
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.engines.autotune import (
    State,
    ThreadLimits,
    ThreadWindow,
    decide,
    most_threads,
)
from pecan_ray.engines.available_cpus import available_cpus, whole_cpus
from pecan_ray.engines.python import PythonEngine
from pecan_ray.engines.python.threads import Threads, Tuner
from tests.long_form import examples
from tests.ray.waiting import until
from tests.unit.engines.engine_leases import column, numbers, running

Workload = Callable[[int], ThreadWindow]
"""From a number of threads to what happens in one second."""


def on_cpus(cpus: int, taken: int = 0, rate: float = 200.0) -> Workload:
    """Functions that compute; `taken` threads of other processes want the CPUs too."""

    def window(threads: int) -> ThreadWindow:
        share = min(1.0, cpus / (threads + taken))
        used = threads * share
        return ThreadWindow(threads, round(rate * used), 1.0, threads, used, threads - used, used)

    return window


def waiting(cpus: int, wait_s: float = 0.005, cpu_s: float = 0.0001) -> Workload:
    """Functions that wait for a while and compute for a shorter one."""

    def window(threads: int) -> ThreadWindow:
        rate = min(threads / (wait_s + cpu_s), cpus / cpu_s)
        return ThreadWindow(threads, round(rate), 1.0, threads, rate * cpu_s, 0.0, rate * cpu_s)

    return window


def holding_the_gil(threads: int) -> ThreadWindow:
    return ThreadWindow(threads, round(1000 * 0.99**threads), 1.0, threads, 1.0, 0.0, 1.02)


def at_most(most: int) -> Workload:
    """So many at a time can work: a quota lets no more, or Python's lock."""

    def window(threads: int) -> ThreadWindow:
        used = min(threads, most)
        return ThreadWindow(threads, 100 * used, 1.0, threads, used, 0.0, used)

    return window


def remote_storage(threads: int) -> ThreadWindow:
    return ThreadWindow(threads, min(threads * 20, 250), 1.0, threads, 0.05, 0.0, 0.1)


def but(workload: Workload, **fields: Any) -> Workload:
    return lambda threads: replace(workload(threads), **fields)


def scaled(window: ThreadWindow, seconds: float, noise: float) -> ThreadWindow:
    """Return what happens in so many seconds; `noise` multiplies the elements."""
    times = ("seconds", "busy_s", "cpu_s", "queued_s", "process_cpu_s", "blocked_s")
    of_times = {name: getattr(window, name) * seconds for name in times}
    return replace(window, elements=max(1, round(window.elements * seconds * noise)), **of_times)


def simulated(
    limits: ThreadLimits, *phases: tuple[float, Workload], noise: float = 0.0, seed: int = 0
) -> tuple[State, list[str]]:
    """Run workloads, each for so many seconds; return the state at the end and each decision that is another one."""
    rng, now, end = random.Random(seed), 0.0, 0.0
    state, told = State(limits.cpus), list[str]()
    for seconds, workload in phases:
        end += seconds
        while now < end:
            seen = scaled(workload(state.threads), state.window_s, max(0.05, rng.gauss(1, noise)))
            now += state.window_s
            decision, state = decide(state, seen, limits)
            assert decision.threads == state.threads
            line = f"{decision.threads} threads, {state.phase}: {decision.reason}"
            if not told or not told[-1].endswith(line):
                told.append(f"{now:.1f} s: {line}")
    return state, told


def limits(cpus: int, memory_bytes: float = math.inf) -> ThreadLimits:
    return ThreadLimits(cpus, 16 * cpus, memory_bytes)


SEARCHES: dict[str, tuple[ThreadLimits, float, list[tuple[float, Workload]]]] = {
    "one that computes, on one CPU": (limits(1), 0.0, [(100, on_cpus(1))]),
    "they compute": (limits(8), 0.3, [(10, on_cpus(8))]),
    "they compute beside few others": (limits(4), 0.0, [(10, on_cpus(4, 2))]),
    "they compute beside many others": (limits(4), 0.3, [(10, on_cpus(4, 8))]),
    "a quota": (limits(64), 0.02, [(20, at_most(4))]),
    "a quota of five": (limits(16), 0.02, [(20, at_most(5))]),
    "a bound from elsewhere": (limits(4), 0.02, [(20, remote_storage)]),
    "they wait and compute": (limits(8), 0.02, [(20, waiting(8, 0.005, 0.005))]),
    "they have no work": (
        limits(4),
        0.0,
        [(20, but(lambda threads: replace(waiting(4)(4), threads=threads), busy_s=2.0))],
    ),
    "large elements": (limits(4, 200e6), 0.02, [(10, but(waiting(4), bytes_per_thread=10e6))]),
    "elements that turn out larger": (
        limits(4, 200e6),
        0.0,
        [(5, but(waiting(4), bytes_per_thread=10e6)), (5, but(waiting(4), bytes_per_thread=40e6))],
    ),
    "they wait": (limits(1), 0.1, [(5, waiting(1))]),
    "they wait, on eight CPUs": (limits(8), 0.1, [(5, waiting(8))]),
    "they hold the GIL": (limits(16), 0.005, [(10, holding_the_gil)]),
    "the trainer is slower": (limits(2), 0.0, [(30, but(waiting(2), blocked_s=0.5))]),
    "the trainer pauses": (
        limits(2),
        0.0,
        [(0.65, waiting(2)), (0.1, but(waiting(2), blocked_s=0.98, elements=2)), (5, waiting(2))],
    ),
    "half an hour": (limits(8), 0.05, [(1800, waiting(8, 0.005, 0.005))]),
    "it changes": (limits(4), 0.0, [(10, on_cpus(4)), (12, waiting(4, 0.01))]),
    "one strange window": (limits(4), 0.0, [(10, on_cpus(4)), (1, on_cpus(4, rate=40.0)), (10, on_cpus(4))]),
}
"""Limits, noise, and workloads with their seconds."""
WRITTEN = Path(__file__).with_name("threads.txt")
"""A paragraph for each search; `python -m tests.unit.engines.test_tuning` writes all anew."""


def told_of(name: str) -> str:
    bounds, noise, phases = SEARCHES[name]
    return "\n".join((name, *simulated(bounds, *phases, noise=noise)[1]))


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_for_the_number_of_threads_decides_what_is_written_down(name: str) -> None:
    written = WRITTEN.read_text().strip().split("\n\n")
    assert told_of(name) == written[list(SEARCHES).index(name)]


seconds = st.floats(0, 1000)
anything = st.builds(
    ThreadWindow,
    threads=st.just(1),
    elements=st.integers(1, 10**6),
    seconds=st.floats(0.01, 100),
    busy_s=seconds,
    cpu_s=seconds,
    queued_s=seconds,
    process_cpu_s=seconds,
    blocked_s=seconds,
    bytes_per_thread=st.floats(0, 1e9),
)


@given(st.integers(1, 64), st.integers(1, 200), st.floats(1e6, 1e10), st.lists(anything, max_size=40))
@examples(200)
def test_no_measurement_leads_out_of_the_bounds(
    cpus: int, most: int, memory_bytes: float, windows: list[ThreadWindow]
) -> None:
    bounds = ThreadLimits(cpus, most, memory_bytes)
    state = State(cpus)
    for window in windows:
        seen = replace(window, threads=state.threads)
        decision, state = decide(state, seen, bounds)
        assert 1 <= decision.threads <= max(1, most_threads(replace(seen, bytes_per_thread=0.0), bounds))
        assert decision.threads == 1 or decision.threads * seen.bytes_per_thread <= memory_bytes
        assert decision.threads == state.threads
        assert decision.reason


@given(
    cpus=st.integers(1, 32),
    wait_s=st.floats(0.0, 0.05),
    cpu_s=st.floats(0.0002, 0.01),
    noise=st.floats(0, 0.1),
    seed=st.integers(0, 99),
)
@examples(200)
def test_what_is_settled_for_is_never_much_slower_than_a_thread_per_cpu(
    cpus: int, wait_s: float, cpu_s: float, noise: float, seed: int
) -> None:
    workload = waiting(cpus, wait_s, cpu_s)
    state, _ = simulated(limits(cpus), (15, workload), noise=noise, seed=seed)
    assert workload(state.threads).elements >= 0.9 * workload(cpus).elements


HERE = 64
"""CPUs of the affinity."""


def v1(folder: str, quota_us: int) -> dict[str, str]:
    """The files of a cgroup of version 1."""
    return {f"{folder}/cpu.cfs_quota_us": str(quota_us), f"{folder}/cpu.cfs_period_us": "100000"}


CGROUPS: dict[str, tuple[str, dict[str, str], float]] = {
    "a container of version 2": ("0::/", {"cpu.max": "50000 100000\n"}, 0.5),
    "no quota": ("0::/", {"cpu.max": "max 100000"}, HERE),
    "the least of levels": ("0::/a/b", {"a/cpu.max": "25000 100000", "a/b/cpu.max": "75000 100000"}, 0.25),
    "version 1": ("5:memory:/m\n4:cpu,cpuacct:/docker/a\n0::/x", v1("cpu,cpuacct/docker/a", 40_000), 0.4),
    "version 1, no quota": ("4:cpu:/", v1("cpu", -1), HERE),
    "version 1, a folder of another name": ("4:cpuacct,cpu:/a/b", v1("cpu/a", 150_000) | v1("cpu/a/b", 800_000), 1.5),
    "no cgroups": ("", {}, HERE),
    "more than the affinity": ("0::/", {"cpu.max": "9600000 100000\n"}, HERE),
    "the outermost level alone": ("0::/pod/job", {"cpu.max": "200000 100000", "pod/job/x": ""}, 2),
    "version 1, its own cgroup is the top": ("4:cpu,cpuacct:/docker/a", v1("cpu,cpuacct", 30_000), 0.3),
    "both versions at once": ("9:name=systemd:/\n1:cpu:/job\n0::/", v1("cpu/job", 400_000), 4),
}


@pytest.mark.parametrize("case", CGROUPS)
def test_the_least_quota_counts(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(HERE)))
    own, files, cpus = CGROUPS[case]
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(own)
    assert available_cpus(tmp_path / "cgroup", tmp_path / "own") == pytest.approx(cpus)
    assert 1 <= whole_cpus() <= HERE, "there is always a thread"


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
    """Threads of which there may be up to eight, without a tuner that decides how many."""
    with contextlib.closing(Threads(8)) as threads:
        threads.resize(3)
        yield threads


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


def test_functions_that_wait_get_more_threads_and_a_fixed_number_of_threads_stays() -> None:
    def read_remotely(i: Any) -> Any:
        time.sleep(READ_S)
        return i

    pipe = numbers(1_000_000, 10_000).map(read_remotely, on="i").batch(8)
    with running(pipe, threads=2, most_threads=32) as (tuned, batches):
        assert any(tuned.threads > 2 for _ in batches)
    with running(pipe, threads=2) as (fixed, batches):
        assert {fixed.threads for _ in zip(range(40), batches, strict=False)} == {2}


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
        assert isinstance(engine, PythonEngine)
        engines.append(engine)
        found = pool.submit(lambda: column(list(batches), "x")).result(DEADLINE_S)
    assert sorted(found) == list(range(400))


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(map(told_of, SEARCHES)) + "\n")
