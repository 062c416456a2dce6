"""Trainers whose programs run ahead of their accelerators: a wait hides their step (decision 39)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pecan_ray.placement import Deployment, Prices, Window
from pecan_ray.placement.departures import other_trainer, ran_dry, sudden_departure
from pecan_ray.placement.doubts import another_step, busy_apart
from pecan_ray.placement.evidence import pooled
from pecan_ray.placement.knowledge import Knowledge
from pecan_ray.placement.running_ahead import may_be_one_step, shows_its_step
from pecan_ray.placement.setting import Setting
from pecan_ray.simulator.random_workloads import NEAR, draw, judge, score

SETTING = Setting(Prices(4.96, 0.42), clients=1, threshold=0.03)
STEP, HANDING_OVER = 0.4, 0.008
FEW, MANY = Deployment(2, 6), Deployment(2, 30)


def window(own: float, wait: float = 0.0, queue: float = 0.0) -> Window:
    return Window(own + wait, queue, 100, wait_time=wait, stderr=0.001 * (own + wait))


def starved(batch_s: float) -> Window:
    """What a program that runs ahead measures beside too few workers."""
    return window(HANDING_OVER, batch_s - HANDING_OVER)


def known(measured: Mapping[Deployment, Sequence[Window]]) -> Knowledge:
    job = Knowledge(SETTING)
    for at, windows in measured.items():
        for one in windows:
            job.note(at, one)
    return job


def test_a_wait_may_hide_a_step_up_to_the_whole_batch() -> None:
    assert may_be_one_step(window(STEP), starved(0.5), 0.01)
    assert may_be_one_step(starved(0.5), window(STEP), 0.01)
    assert not may_be_one_step(window(STEP), starved(0.3), 0.01), "a batch is shorter than the step"
    assert not may_be_one_step(window(STEP), window(0.2), 0.01), "nobody waits"


@pytest.mark.parametrize(
    ("beside", "shown"),
    [
        ([window(STEP, 1.0), window(STEP, 0.3)], True),
        ([window(STEP, 1.0)], False),
        ([starved(1.4), starved(0.7)], False),
        ([window(STEP, 1.0, queue=5.0), window(STEP, 0.3, queue=5.0)], False),
    ],
    ids=["the same step", "seen once", "a program that runs ahead", "a stock that runs out"],
)
def test_a_trainer_shows_that_it_does_not_run_ahead(beside: list[Window], shown: bool) -> None:
    assert not shows_its_step(beside), "nothing to compare with"
    assert shows_its_step([*beside, window(STEP)]) is shown


def test_that_a_trainer_does_not_run_ahead_is_remembered() -> None:
    job = known({Deployment(0, 1): [window(STEP, 1.0)] * 2, Deployment(0, 8): [window(STEP)]})
    job.start_over(Deployment(0, 8), [window(STEP)], 0.5)
    assert job.shows_its_step


def test_the_step_that_a_wait_hid_is_not_what_the_model_hopes_for() -> None:
    job = known({Deployment(0, 8): [starved(1.6)] * 3, Deployment(0, 32): [window(STEP)] * 3})
    told = job.foreseen(Deployment(0, 31))
    assert told is not None and told.own == pytest.approx(STEP, rel=0.05)


def test_a_step_that_a_wait_hid_is_no_other_trainers() -> None:
    for there, seen in ((MANY, window(STEP)), (FEW, starved(0.5))):
        here = FEW if there == MANY else MANY
        job = known({here: [starved(0.5) if here == FEW else window(STEP)] * 3, there: [seen] * 2})
        assert not another_step(job, job.reading(there), [seen] * 2)
    before = pooled(FEW, [window(STEP)] * 5)
    late = [starved(0.45)] * 3
    assert sudden_departure(before, late, 0.03, of=("step",), whole=True)[0]
    assert not sudden_departure(before, late, 0.03, of=("step",), whole=False)[0]
    assert other_trainer(FEW, [*[window(STEP)] * 3, *late], 0.03) == late[:2]
    assert other_trainer(FEW, [*[window(STEP)] * 3, *late], 0.03, whole=False) == ()
    assert ran_dry(before, late, batches=200, most=100, threshold=0.03, whole=False)
    assert not ran_dry(before, late, batches=200, most=100, threshold=0.03, whole=True)


def test_a_step_that_another_one_without_a_wait_contradicts_is_another_trainers() -> None:
    """The nearest deployment was measured beside a wait that could hide it."""
    slow, nearest = window(3.0), Deployment(1, 0)
    job = known({nearest: [window(STEP, 4.5)], Deployment(0, 8): [window(STEP)] * 3, FEW: [slow] * 3})
    assert job.may_be_one_step(job.reading(FEW), job.reading(nearest))
    assert another_step(job, job.reading(FEW), [slow] * 3)


@pytest.mark.parametrize(("step", "changed"), [(1.14, False), (1.3, True)])
def test_local_workers_that_stand_still_disturb_nobody(step: float, changed: bool) -> None:
    """Two local workers beside thirty remote ones have little to do, beside six a lot."""
    assert busy_apart(FEW, MANY) == busy_apart(MANY, FEW) == pytest.approx(1.5)
    job = known({MANY: [window(STEP)] * 3, FEW: [window(step * STEP)] * 2})
    assert another_step(job, job.reading(FEW), [window(step * STEP)] * 2) is changed


@pytest.mark.parametrize("workloads", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_trainers_that_run_ahead_end_near_the_cheapest_deployment(workloads: int) -> None:
    seeds = range(50_000, 50_000 + workloads)
    found = [verdict for seed in seeds for verdict in judge(draw(seed, "running ahead"), ["auto"], seed)]
    one = score(found)["auto"]
    assert one.near >= 0.95 and one.worst_excess <= 0.2, [verdict for verdict in found if verdict.excess > NEAR]
