from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job.windows import LEAST_BATCHES, StepTotals, WindowMeter, window_of

Step = tuple[float, float, int]
STEPS = st.lists(st.tuples(st.floats(0.001, 10), st.floats(0, 1), st.integers(0, 50)), min_size=2, max_size=40)


NONE = StepTotals()


def totals(steps: list[tuple[float, float, int]], start: StepTotals = NONE) -> StepTotals:
    for seconds, share, queued in steps:
        start = start.step(seconds, seconds * share, queued)
    return start


@given(STEPS)
def test_a_window_holds_the_means_of_its_steps(steps: list[tuple[float, float, int]]) -> None:
    sums = totals(steps)
    window = window_of([sums], [0], touched=False)
    kept = sums.batches
    assert window.batches == kept and window.wait_time is not None
    if not sums.pauses:
        times = [seconds for seconds, _, _ in steps]
        mean = sum(times) / len(times)
        assert math.isclose(window.batch_time, mean, rel_tol=1e-6)
        deviation = math.sqrt(sum((t - mean) ** 2 for t in times) / len(times) / len(times))
        assert math.isclose(window.stderr, deviation, rel_tol=1e-3, abs_tol=1e-4)
    assert 0 <= window.wait_time <= window.batch_time


def test_a_window_ends_when_every_trainer_has_its_batches() -> None:
    meter = WindowMeter(trainers=2, batches=20, seconds=1e9)
    for rank in range(2):
        meter.add(rank, StepTotals())
    meter.add(0, totals([(0.1, 0.5, 2)] * 30))
    assert meter.close() is None
    meter.add(1, totals([(0.3, 0.5, 4)] * 20))
    window = meter.close()
    assert window is not None and not window.defect()
    assert (round(window.batch_time, 6), round(window.queue_size, 6), window.batches) == (0.2, 3.0, 20)
    assert meter.close() is None


def test_an_old_window_ends_with_fewer_batches() -> None:
    meter = WindowMeter(trainers=1, batches=500, seconds=5.0)
    meter.add(0, StepTotals())
    meter.add(0, totals([(1.0, 0.0, 0)] * 9))
    assert meter.close() is None
    meter.add(0, totals([(1.0, 0.0, 0)] * 10))
    assert meter.close() is not None


@pytest.mark.parametrize("why", ["workers changed", "the trainer paused"])
def test_a_disturbed_window_is_marked(why: str) -> None:
    meter = WindowMeter(trainers=1, batches=20, seconds=1e9)
    meter.add(0, StepTotals())
    steps = [(0.1, 0.5, 2)] * 25
    if why == "workers changed":
        meter.touch()
    else:
        steps.insert(15, (180.0, 0.0, 9))
    meter.add(0, totals(steps))
    window = meter.close()
    assert window is not None and window.touched and "came or went" in window.defect()
    meter.add(0, totals([(0.1, 0.5, 2)] * 25, totals(steps)))
    following = meter.close()
    assert following is not None and not following.touched
    assert math.isclose(following.batch_time, 0.1)


def test_what_a_trainer_takes_from_stock_was_not_supplied() -> None:
    """Workers bring 8 batches a second to a trainer that takes 10 and has 40 in stock."""
    meter = WindowMeter(trainers=1, batches=20, seconds=1e9)
    before = totals([(0.1, 0.0, 40)])
    meter.add(0, before)
    meter.add(0, totals([(0.1, 0.0, 40 - number // 5) for number in range(1, 21)], before))
    window = meter.close()
    assert window is not None and window.wait_time is not None
    assert math.isclose(window.batch_time, 1 / 8) and math.isclose(window.wait_time, 1 / 8 - 0.1)
    small = totals([(0.1, 0.0, 5)])
    emptied = totals([(0.1, 0.0, 5 - number // 5) for number in range(1, 21)], small).since(small)
    assert math.isclose(window_of([emptied], [5], touched=False).batch_time, 1 / 8)
    steady = totals([(0.1, 0.0, 40 - number % 2) for number in range(20)], before).since(before)
    assert math.isclose(window_of([steady], [40], touched=False).batch_time, 0.1)


def test_a_change_of_workers_ends_the_window_at_once() -> None:
    meter = WindowMeter(trainers=1, batches=20, seconds=1e9)
    meter.add(0, StepTotals())
    meter.touch()
    assert meter.close() is None
    meter.add(0, totals([(0.1, 0.5, 2)] * 3))
    assert meter.close() is None
    meter.touch()
    window = meter.close()
    assert window is not None and window.batches == 3 and window.touched
    assert meter.spoilt_by == "workers came or went during it"


def test_windows_while_workers_drain_are_marked() -> None:
    meter = WindowMeter(trainers=1, batches=20, seconds=1e9)
    meter.add(0, StepTotals())
    meter.drain()
    meter.add(0, totals([(0.1, 0.5, 2)] * 3))
    assert meter.close() is None
    meter.add(0, totals([(0.1, 0.5, 2)] * 20))
    window = meter.close()
    assert window is not None and window.batches == 20 and window.touched


def test_ends_of_epochs_spoil_a_few_windows_but_not_all() -> None:
    meter = WindowMeter(trainers=1, batches=10, seconds=1e9)
    meter.add(0, StepTotals())
    marked = []
    for number in range(1, 9):
        meter.disturb()
        meter.add(0, totals([(0.1, 0.5, 2)] * 10 * number))
        window = meter.close()
        assert window is not None
        marked.append(window.touched)
    assert marked == [True, True, True, False, True, True, True, False]


def test_waiting_long_for_data_is_no_pause() -> None:
    sums = totals([(0.1, 0.5, 2)] * 20 + [(60.0, 0.999, 0)])
    assert sums.pauses == 0 and sums.batches == 21


@given(st.lists(st.tuples(st.integers(0, 2), STEPS), min_size=3, max_size=12))
def test_a_window_is_due_when_all_trainers_are_done_or_one_has_paused(reports: list[tuple[int, list[Step]]]) -> None:
    """What the meter keeps count of, against the sums of all trainers."""
    meter = WindowMeter(trainers=3, batches=30, seconds=40.0)
    begun = dict.fromkeys(range(3), NONE)
    latest = dict(begun)
    for rank in range(3):
        meter.add(rank, NONE)
    for rank, steps in reports:
        latest[rank] = totals(steps, latest[rank])
        meter.add(rank, latest[rank])
        parts = [latest[r].since(begun[r]) for r in range(3)]
        full = all(part.batches >= 30 for part in parts)
        old = all(part.batches >= LEAST_BATCHES and part.seconds >= 40.0 for part in parts)
        assert meter.due() == (full or old or any(part.pauses for part in parts))
        if meter.due():
            meter.close()
            begun = dict(latest)


# --- several trainers in step -------------------------------------------------------------------------------


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
    window = window_of(in_step(waits, [step_s] * trainers), [0] * trainers, touched=False)
    assert window.wait_time is not None
    assert math.isclose(window.wait_time / window.batch_time, 0.9, abs_tol=0.02)


def test_waiting_for_a_trainer_that_is_slow_is_work() -> None:
    """It never waits for a batch itself; the others wait for it, and not for workers."""
    sums = in_step([[0.0, 0.0, 0.0]] * 100, [0.1, 0.1, 0.3])
    window = window_of(sums, [0] * 3, touched=False)
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


def test_a_trainer_that_has_become_slow_does_not_pause_for_ever() -> None:
    """Steps of 5 ms become 400 times as long: the first ones may be a pause, the others are the job."""
    meter = WindowMeter(trainers=1, batches=100, seconds=5.0)
    sums = totals([(0.005, 0.1, 2)] * 500)
    meter.add(0, sums)
    for _ in range(30):
        sums = sums.step(2.2, 0.0, 2)
    assert (sums.batches, sums.pauses) == (528, 2)
    meter.add(0, sums)
    meter.close()
    for _ in range(10):
        sums = sums.step(2.2, 0.0, 2)
    meter.add(0, sums)
    window = meter.close()
    assert window is not None and not window.touched and window.batch_time == pytest.approx(2.2)


def test_pauses_that_are_rare_stay_pauses() -> None:
    sums = totals(([(0.1, 0.0, 2)] * 100 + [(30.0, 0.0, 2)]) * 6)
    assert (sums.batches, sums.pauses) == (600, 6)


def test_windows_that_all_hold_a_pause_are_used_in_the_end() -> None:
    meter = WindowMeter(trainers=1, batches=100, seconds=1e9)
    sums, marked = NONE, []
    meter.add(0, sums)
    for _ in range(8):
        sums = totals([(0.1, 0.0, 2)] * 60 + [(30.0, 0.0, 2)], sums)
        meter.add(0, sums)
        window = meter.close()
        marked.append(window is not None and window.touched)
    assert marked == [True, True, True, False] * 2


@pytest.mark.parametrize(("waits", "at_once"), [(0.0, True), (1e-6, True), (0.1, False)])
def test_the_first_window_of_a_trainer_that_does_not_wait_ends_at_once(waits: float, at_once: bool) -> None:
    meter = WindowMeter(trainers=1, batches=100, seconds=5.0)
    meter.hurried = True
    sums = totals([(1.0, waits, 2)] * 2)
    meter.add(0, NONE)
    meter.add(0, sums)
    assert not meter.due(), "two batches are not enough"
    meter.add(0, sums := totals([(1.0, waits, 2)], sums))
    assert meter.due() is at_once
    if at_once:
        meter.close()
        meter.add(0, totals([(1.0, waits, 2)] * 5, sums))
        assert not meter.due(), "it was the first one alone"


def test_a_starving_trainer_need_not_wait_for_the_end_of_a_window_while_the_search_goes_on() -> None:
    for hurried in (False, True):
        meter = WindowMeter(trainers=1, batches=100, seconds=5.0)
        meter.hurried = hurried
        meter.add(0, NONE)
        meter.add(0, totals([(0.2, 0.9, 0)] * 12))
        assert meter.due() is hurried
