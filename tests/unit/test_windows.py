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
