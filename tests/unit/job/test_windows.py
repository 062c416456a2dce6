"""Windows of batches: when they end, what they hold, and what is left out when workers come or go."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job.windows import StepTotals, WindowMeter, window_of
from pecan_ray.plan.windows import LEAST_BATCHES

STEPS = st.lists(st.tuples(st.floats(0.001, 10), st.floats(0, 1), st.integers(0, 50)), min_size=2, max_size=40)
NONE = StepTotals()


def totals(steps: list[tuple[float, float, int]], start: StepTotals = NONE) -> StepTotals:
    for seconds, share, queued in steps:
        start = start.step(seconds, seconds * share, queued)
    return start


@given(STEPS)
def test_a_window_holds_the_means_of_its_steps(steps: list[tuple[float, float, int]]) -> None:
    window = window_of([totals(steps)])
    assert window.batches == len(steps) and window.wait_time is not None
    times = [seconds for seconds, _, _ in steps]
    mean = sum(times) / len(times)
    assert math.isclose(window.batch_time, mean, rel_tol=1e-6)
    deviation = math.sqrt(sum((t - mean) ** 2 for t in times) / len(times) / len(times))
    assert math.isclose(window.stderr, deviation, rel_tol=1e-3, abs_tol=1e-4)
    assert 0 <= window.wait_time <= window.batch_time


def test_a_window_ends_when_every_trainer_has_its_batches() -> None:
    meter, before = WindowMeter(trainers=2, batches=20), totals([(9.0, 0.5, 7)] * 3)
    for rank in range(2):
        meter.add(rank, before)
    meter.add(0, totals([(0.1, 0.5, 2)] * 30, before))
    meter.add(1, totals([(0.3, 0.5, 4)] * 5, before))
    assert meter.close() is None and meter.still_missing == 15
    meter.add(1, totals([(0.3, 0.5, 4)] * 20, before))
    window = meter.close()
    assert window is not None and not window.invalid_reason()
    assert (round(window.batch_time, 6), round(window.queue_size, 6), window.batches) == (0.2, 3.0, 20)
    assert window.stderr == pytest.approx(0, abs=1e-6)
    assert meter.close() is None


def test_a_window_ends_for_its_age_if_it_was_given_one() -> None:
    for seconds, ends in ((5.0, True), (math.inf, False)):
        meter = WindowMeter(trainers=1, batches=500, seconds=seconds)
        meter.add(0, StepTotals())
        meter.add(0, totals([(6.0, 0.0, 0)] * (LEAST_BATCHES - 1)))
        assert meter.close() is None
        meter.add(0, totals([(3.0, 0.0, 0)] * LEAST_BATCHES))
        assert (meter.close() is not None) is ends


@pytest.mark.parametrize("discarded", [0, 150])
def test_what_is_measured_while_workers_come_or_go_is_thrown_away_and_the_papers_150_batches(discarded: int) -> None:
    meter, sums = WindowMeter(trainers=1, batches=20, discarded=discarded), totals([(0.1, 0.0, 2)] * 15)
    meter.add(0, NONE)
    meter.add(0, sums)
    meter.touch()
    found = []
    for number in range(1, discarded + 41):
        sums = totals([(0.3, 0.0, 2)], sums)
        meter.add(0, sums)
        if (window := meter.close()) is not None:
            found.append((number, window))
    assert [number for number, _ in found] == [discarded + 20, discarded + 40]
    assert all(math.isclose(window.batch_time, 0.3) for _, window in found)


def test_a_window_can_be_cut_short() -> None:
    meter = WindowMeter(trainers=1, batches=20)
    meter.add(0, NONE)
    assert meter.cut() is None, "nothing was measured"
    meter.add(0, totals([(0.1, 0.5, 2)] * 3))
    window = meter.cut()
    assert window is not None and window.batches == 3
    assert meter.still_missing == 20


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


def test_reports_of_trainers_that_overlap_in_part_are_laid_beside_one_another() -> None:
    meter = WindowMeter(trainers=2, batches=100, seconds=1e9)
    waits = [[0.9 * (rank == number % 2) for rank in range(2)] for number in range(200)]
    for rank in range(2):
        meter.add(rank, NONE)
    for upto in range(10, 200, 10):
        for rank, sums in enumerate(in_step(waits[:upto], [0.1] * 2)):
            meter.add(rank, sums)
    window = meter.close()
    assert window is not None and window.wait_time is not None
    assert window.wait_time / window.batch_time == pytest.approx(0.9, abs=0.02)
