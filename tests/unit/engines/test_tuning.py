"""The search for the number of threads, on simulated workloads, and the CPUs that a container may use."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
from tests.long_form import examples

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
    state, changes = simulated(on_cpus(cpus, taken), limits(cpus), noise=0.0 if taken else noise)
    assert (state.threads, changes) == (cpus, [])


def throttled(threads: int) -> ThreadWindow:
    used = min(threads, 4)
    return ThreadWindow(threads, 100 * used, 1.0, threads, used, 0.0, used)


def needing_the_lock_for_a_fifth(threads: int) -> ThreadWindow:
    """Five at a time can work; others wait for Python's lock."""
    used = min(threads, 5)
    return ThreadWindow(threads, 100 * used, 1.0, threads, used, 0.0, used)


def remote_storage(threads: int) -> ThreadWindow:
    rate = min(threads * 20, 250)
    return ThreadWindow(threads, rate, 1.0, threads, 0.05, 0.0, 0.1)


@pytest.mark.parametrize(
    ("workload", "cpus", "least", "most"),
    [
        (throttled, 64, 4, 16),
        (needing_the_lock_for_a_fifth, 16, 5, 8),
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
@pytest.mark.parametrize("seed", range(3))
def test_functions_that_wait_get_as_many_threads_as_there_may_be_within_three_seconds(cpus: int, seed: int) -> None:
    state, changes = simulated(waiting(cpus), limits(cpus), seconds=3, noise=0.1, seed=seed)
    assert (state.threads, state.phase) == (16 * cpus, "settled")
    assert all("more" in reason for _, _, reason in changes)


@pytest.mark.parametrize("cpus", [2, 16])
@pytest.mark.parametrize("seed", range(3))
def test_functions_that_hold_the_gil_get_few_threads(cpus: int, seed: int) -> None:
    state, changes = simulated(holding_the_gil, limits(cpus), noise=0.005, seed=seed)
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


def cpus_of(folder: Path, own: str, files: dict[str, str]) -> float:
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "own").write_text(own)
    return available_cpus(folder / "cgroup", folder / "own")


@pytest.mark.parametrize(
    ("own", "files", "cpus"),
    [
        pytest.param("0::/", {"cpu.max": "50000 100000\n"}, 0.5, id="a container of version 2"),
        pytest.param("0::/", {"cpu.max": "max 100000"}, HERE, id="no quota"),
        pytest.param("0::/", {"cpu.max": "400000 100000\n"}, 4, id="docker run --cpus 4"),
        pytest.param("0::/", {"cpu.max": "9600000 100000\n"}, HERE, id="more than the affinity"),
        pytest.param("0::/pod/job", {"cpu.max": "200000 100000", "pod/job/x": ""}, 2, id="the outermost level alone"),
        pytest.param(
            "0::/pod/job",
            {"pod/cpu.max": "25000 100000", "pod/job/cpu.max": "75000 100000"},
            0.25,
            id="the least of all levels",
        ),
        pytest.param(
            "5:memory:/m\n4:cpu,cpuacct:/docker/a\n0::/x",
            {"cpu,cpuacct/docker/a/cpu.cfs_quota_us": "40000", "cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000"},
            0.4,
            id="version 1",
        ),
        pytest.param(
            "4:cpu,cpuacct:/docker/a",
            {"cpu,cpuacct/cpu.cfs_quota_us": "30000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            0.3,
            id="a container of version 1 that sees its own cgroup as the top",
        ),
        pytest.param(
            "4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, HERE, id="version 1, no quota"
        ),
        pytest.param(
            "4:cpuacct,cpu:/pod/a",
            {
                "cpu/pod/cpu.cfs_quota_us": "150000",
                "cpu/pod/cpu.cfs_period_us": "100000",
                "cpu/pod/a/cpu.cfs_quota_us": "800000",
                "cpu/pod/a/cpu.cfs_period_us": "100000",
            },
            1.5,
            id="version 1, in a folder of another name, the least of all levels",
        ),
        pytest.param(
            "9:name=systemd:/\n1:cpu:/job\n0::/",
            {"cpu/job/cpu.cfs_quota_us": "400000", "cpu/job/cpu.cfs_period_us": "100000"},
            4,
            id="both versions at once",
        ),
        pytest.param("", {}, HERE, id="no cgroups"),
    ],
)
def test_the_least_quota_counts(
    tmp_path: Path, own: str, files: dict[str, str], cpus: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(HERE)))
    assert cpus_of(tmp_path, own, files) == pytest.approx(cpus)


def test_there_is_always_a_thread() -> None:
    assert 1 <= whole_cpus() <= len(os.sched_getaffinity(0))
