"""The threads of the python engine: the search for their number, which may change under way, and the CPUs there are."""

from __future__ import annotations

import contextlib
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
    LOOK_AGAIN_S,
    State,
    ThreadDecision,
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


def scaled(window: ThreadWindow, seconds: float, noise: float) -> ThreadWindow:
    """Return what happens in so many seconds; `noise` multiplies the elements."""
    return replace(
        window,
        elements=max(1, round(window.elements * seconds * noise)),
        seconds=seconds,
        busy_s=window.busy_s * seconds,
        cpu_s=window.cpu_s * seconds,
        queued_s=window.queued_s * seconds,
        process_cpu_s=window.process_cpu_s * seconds,
        blocked_s=window.blocked_s * seconds,
    )


def simulated(
    workload: Workload,
    limits: ThreadLimits,
    *,
    seconds: float = 10.0,
    state: State | None = None,
    noise: float = 0.0,
    seed: int = 0,
) -> tuple[State, list[tuple[float, int, str]]]:
    """Run a workload for a while; return the state at the end and each change: when, to which number, and why."""
    rng, now = random.Random(seed), 0.0
    state = state or State(limits.cpus)
    changes = []
    while now < seconds:
        seen = scaled(workload(state.threads), state.window_s, max(0.05, rng.gauss(1, noise)))
        now += state.window_s
        decision, after = decide(state, seen, limits)
        assert decision.threads == after.threads
        if after.threads != state.threads:
            changes.append((now, after.threads, decision.reason))
        state = after
    return state, changes


def limits(cpus: int, **others: float) -> ThreadLimits:
    return ThreadLimits(cpus, 16 * cpus, **others)


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize(("cpus", "taken"), [(1, 0), (8, 0), (64, 0), (4, 2), (4, 8)])
def test_functions_that_compute_keep_one_thread_per_cpu_and_nothing_is_tried(
    cpus: int, taken: int, noise: float
) -> None:
    """No CPU time is taken from other processes by more threads."""
    state, changes = simulated(on_cpus(cpus, taken), limits(cpus), noise=noise)
    assert (state.threads, changes) == (cpus, [])


def at_most(most: int) -> Workload:
    """So many at a time can work: a quota lets no more, or Python's lock."""

    def window(threads: int) -> ThreadWindow:
        used = min(threads, most)
        return ThreadWindow(threads, 100 * used, 1.0, threads, used, 0.0, used)

    return window


def remote_storage(threads: int) -> ThreadWindow:
    rate = min(threads * 20, 250)
    return ThreadWindow(threads, rate, 1.0, threads, 0.05, 0.0, 0.1)


@pytest.mark.parametrize(
    ("workload", "cpus", "least", "most"),
    [
        (at_most(4), 64, 4, 16),
        (at_most(5), 16, 5, 8),
        (remote_storage, 4, 12, 32),  # a bound from elsewhere is left by no more than a step
        (waiting(8, 0.005, 0.005), 8, 16, 20),  # they wait and compute
        (lambda threads: replace(waiting(4)(4), threads=threads, busy_s=2.0), 4, 4, 4),  # they have no work
        (lambda threads: replace(waiting(4)(threads), bytes_per_thread=10e6), 4, 10, 10),  # half of the memory is left
    ],
)
def test_the_number_that_is_found_is_the_one_that_the_work_can_use(
    workload: Workload, cpus: int, least: int, most: int
) -> None:
    bounds = limits(cpus, memory_bytes=200e6)
    state, _ = simulated(workload, bounds, noise=0.02, seconds=20)
    assert least <= state.threads <= most
    decision, _ = decide(state, replace(workload(state.threads), bytes_per_thread=40e6), bounds)
    assert decision.threads == min(state.threads, 5), "elements that turn out larger take threads away"


@pytest.mark.parametrize("cpus", [1, 8])
def test_functions_that_wait_get_all_threads_in_three_seconds_and_those_that_hold_the_gil_one(cpus: int) -> None:
    state, changes = simulated(waiting(cpus), limits(cpus), seconds=3, noise=0.1)
    assert (state.threads, state.phase) == (16 * cpus, "settled")
    assert all("more" in reason for _, _, reason in changes)
    state, changes = simulated(holding_the_gil, limits(2 * cpus), noise=0.005)
    assert (state.threads, state.phase) == (1, "settled")
    assert "fewer" in changes[0][2]


def test_nothing_is_tried_while_the_trainer_is_slower_and_a_pause_of_it_does_not_end_a_search() -> None:
    def held_up(threads: int) -> ThreadWindow:
        return replace(waiting(2)(threads), blocked_s=0.5)

    bounds = limits(2)
    state, changes = simulated(held_up, bounds, seconds=30)
    assert (state.threads, state.phase, changes) == (2, "measuring", [])
    assert decide(state, held_up(2), bounds)[0].reason == "the trainer takes batches more slowly than they are made"
    state, _ = simulated(waiting(2), bounds, seconds=0.65)
    assert state.phase == "trying"
    pause = replace(scaled(waiting(2)(state.threads), 5.0, 0.01), blocked_s=4.9)
    decision, after = decide(replace(state, skip=0), pause, bounds)
    assert decision == ThreadDecision(state.threads, "the trainer paused")
    assert simulated(waiting(2), bounds, state=after, seconds=3)[0].threads == 32


def test_a_settled_number_stays_but_for_a_look_now_and_then() -> None:
    bounds = limits(8)
    state, _ = simulated(waiting(8, 0.005, 0.005), bounds, seconds=3)
    assert state.phase == "settled"
    _, changes = simulated(waiting(8, 0.005, 0.005), bounds, state=state, seconds=LOOK_AGAIN_S - 4, noise=0.05)
    assert changes == []
    _, changes = simulated(waiting(8, 0.005, 0.005), bounds, state=state, seconds=1800, noise=0.05)
    assert len(changes) <= 20, "half an hour may see few trials"


def test_another_throughput_that_lasts_begins_a_new_search_and_one_strange_window_none() -> None:
    bounds = limits(4)
    state, _ = simulated(on_cpus(4), bounds, seconds=10)
    assert (state.threads, state.phase) == (4, "settled")
    _, after = decide(state, scaled(on_cpus(4)(4), 1.0, 0.2), bounds)
    assert after.phase == simulated(on_cpus(4), bounds, state=after, seconds=10)[0].phase == "settled"
    state, changes = simulated(waiting(4, 0.01), bounds, state=state, seconds=12)
    assert state.threads == 64
    assert changes[0][0] < 6


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
    state, _ = simulated(workload, limits(cpus), seconds=15, noise=noise, seed=seed)
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
        engines.append(engine)
        found = pool.submit(lambda: column(list(batches), "x")).result(DEADLINE_S)
    assert sorted(found) == list(range(400))
