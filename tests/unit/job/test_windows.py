"""Windows of batches: what they hold, also of trainers that wait for each other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job.windows import StepTotals, window_of

STEPS = st.lists(st.tuples(st.floats(0.001, 10), st.floats(0, 1), st.integers(0, 50)), min_size=2, max_size=40)


@given(STEPS)
def test_a_window_holds_the_means_of_its_steps(steps: list[tuple[float, float, int]]) -> None:
    totals = StepTotals()
    for seconds, share, queued in steps:
        totals = totals.step(seconds, seconds * share, queued)
    window = window_of([totals])
    assert window.batches == len(steps) and window.wait_time is not None
    times = [seconds for seconds, _, _ in steps]
    mean = sum(times) / len(times)
    assert math.isclose(window.batch_time, mean, rel_tol=1e-6)
    deviation = math.sqrt(sum((t - mean) ** 2 for t in times) / len(times) / len(times))
    assert math.isclose(window.stderr, deviation, rel_tol=1e-3, abs_tol=1e-4)
    assert 0 <= window.wait_time <= window.batch_time


def in_step(waits: list[list[float]], works: list[float]) -> list[StepTotals]:
    """Return the totals of trainers that wait for the slowest of them at the end of each step, as each measures them.

    `waits`: of each step, how long each trainer waits for its batch; `works`: its own work.
    """
    sums = [StepTotals() for _ in works]
    before = [0.0] * len(works)
    for waited in waits:
        ends = max(wait + work for wait, work in zip(waited, works, strict=True))
        for rank, wait in enumerate(waited):
            own = before[rank]
            sums[rank] = sums[rank].step(own + wait, wait, 0)
            before[rank] = ends - wait
    return sums


@pytest.mark.parametrize("trainers", [2, 4, 8])
@pytest.mark.parametrize("step_s", [0.001, 0.1])
def test_waiting_for_a_trainer_that_waits_is_no_work(trainers: int, step_s: float) -> None:
    """One of them waits in each step, in turn: nine tenths of the time, all of them do nothing."""
    waits = [[9 * step_s * (rank == number % trainers) for rank in range(trainers)] for number in range(400)]
    window = window_of(in_step(waits, [step_s] * trainers))
    assert window.wait_time is not None
    assert math.isclose(window.wait_time / window.batch_time, 0.9, abs_tol=0.02)


def test_waiting_for_a_trainer_that_is_slow_is_work() -> None:
    """It never waits for a batch itself; the others wait for it, and not for workers."""
    sums = in_step([[0.0, 0.0, 0.0]] * 100, [0.1, 0.1, 0.3])
    window = window_of(sums)
    assert window.wait_time == pytest.approx(0, abs=1e-6) and window.batch_time == pytest.approx(0.3, rel=0.02)
