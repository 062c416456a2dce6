"""Many jobs, one pool: a worker goes where it saves most."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.pooled_jobs import distribute, jobs_of
from pecan_ray.placement.pool import (
    Demand,
    WorkerValue,
    allocate,
    estimate_worker_value,
    min_required_workers,
    relative_times,
    shares,
)
from pecan_ray.placement.setting import Setting
from pecan_ray.placement.trial_history import Known
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment
from tests.long_form import examples

DEAR, CHEAP = Demand("dear", (8.0, 4.0, 2.0, 1.0)), Demand("cheap", (3.0, 1.5, 0.75))
HERE = Demand("here", (1.0, 1.0), holds=2)
LARGE, SMALL = Demand("large", (3.0, 3.0), cpus=4.0), Demand("small", (1.0,) * 4)


@pytest.mark.parametrize(
    ("demands", "cpus", "given_"),
    [
        ([CHEAP, DEAR], 3, {"dear": 2, "cheap": 1}),
        ([CHEAP, DEAR], 100, {"dear": 4, "cheap": 3}),
        ([HERE, Demand("a", (1.1, 1.1))], 2, {"here": 2, "a": 0}),  # of equals the one that holds it keeps it
        ([HERE, Demand("a", (1.2, 1.2))], 2, {"here": 0, "a": 2}),
        ([Demand("rich", (100.0,) * 4, holds=4), Demand("poor", (), least=1)], 4, {"rich": 3, "poor": 1}),
        ([LARGE, SMALL], 4, {"small": 4, "large": 0}),  # large workers must save more
        ([LARGE, SMALL], 9, {"small": 4, "large": 1}),
    ],
)
def test_a_worker_goes_to_the_highest_bid(demands: list[Demand], cpus: int, given_: dict[str, int]) -> None:
    assert allocate(demands, cpus) == given_


def test_the_slowest_job_is_helped_before_savings_count() -> None:
    """A cheap job that saves little is six times slower without a worker, and three times with one."""
    dear = Demand("dear", (9.0,) * 4, time_factor=(2.9, 2.0, 1.5, 1.2))
    cheap = Demand("cheap", (0.1,) * 3, time_factor=(6.0, 3.0, 1.5))
    assert allocate([dear, cheap], 4) == {"dear": 3, "cheap": 1}
    slower = Demand("slower", (0.1,) * 3, time_factor=(9.0, 6.5, 3.5))
    assert allocate([cheap, slower], 2) == {"cheap": 0, "slower": 2}, "the slowest one first"
    assert relative_times([math.inf, 6.0, 3.0, 2.0], 3) == (math.inf, 3.0, 1.5)
    assert relative_times([2.0], 0) == ()


SAVINGS = st.lists(st.floats(0.01, 10.0), max_size=4).map(lambda each: tuple(sorted(each, reverse=True)))


@given(st.lists(SAVINGS, min_size=1, max_size=4), st.integers(0, 10))
@examples(100)
def test_no_other_distribution_saves_more(plot_series: list[tuple[float, ...]], cpus: int) -> None:
    demands = [Demand(str(number), curve) for number, curve in enumerate(plot_series)]
    given_ = allocate(demands, cpus)
    assert sum(given_.values()) == min(cpus, sum(map(len, plot_series)))
    assert (sum(map(len, plot_series)) > cpus) == (None not in shares({one.job: one for one in demands}, cpus).values())
    saved = sum(sum(curve[: given_[str(number)]]) for number, curve in enumerate(plot_series))
    others = itertools.product(*(range(len(curve) + 1) for curve in plot_series))
    best = max(
        sum(sum(curve[:count]) for curve, count in zip(plot_series, counts, strict=True))
        for counts in others
        if sum(counts) <= cpus
    )
    assert saved == pytest.approx(best)


def test_in_a_model_of_many_jobs_bills_fall_and_nobody_starves() -> None:
    """Twenty random jobs on half of what they want; `python -m benchmarks.shared_pool` shows sixty-four."""
    jobs = jobs_of(1, 20)
    first = [distribute(jobs, "first come", 0.5, order) for order in range(3)]
    best = distribute(jobs, "where it saves most", 0.5, 0)
    assert best.workers == first[0].workers
    assert best.bill < 0.84 * fmean(one.bill for one in first)
    assert best.worst < 3.5 < max(one.worst for one in first)
    assert best.bill <= distribute(jobs, "in proportion", 0.5, 0).bill


@pytest.mark.parametrize(
    ("here", "side", "waits", "unknown", "needed"),
    [
        (Deployment(4, 0), "remote", True, True, 1),
        (Deployment(4, 0), "remote", False, True, 0),
        (Deployment(4, 0), "remote", True, False, 0),
        (Deployment(0, 4), "remote", False, False, 1),
        (Deployment(4, 0), "local", False, False, 1),
        (Deployment(2, 2), "local", False, False, 1),  # one of two equal sides is all that the job has
        (Deployment(2, 2), "remote", False, False, 0),
    ],
)
def test_a_job_that_waits_and_has_never_seen_a_remote_worker_needs_one(
    here: Deployment, side: str, waits: bool, unknown: bool, needed: int
) -> None:
    """It would bid by what local workers bring, get no share, and never find out that remote ones are faster."""
    assert min_required_workers(here, side, waits=waits, unknown=unknown) == needed


def test_workers_are_worth_what_the_known_rates_say() -> None:
    """A step of 0.1 s needs 1000 rows a second; two local workers give 400, each remote one 200."""
    setting, known, here = Setting(Prices(10.0, 0.1), 1, 0.03), Known(each=(200.0, 200.0), step_s=0.1), Deployment(2, 0)
    worth = estimate_worker_value(known, 100, setting, here, "remote", 10)
    assert len(worth.cost_reductions) == 3 and worth.time_factor == pytest.approx((2.5, 5 / 3, 1.25))
    unseen = replace(known, each=(200.0, 0.0))
    assert estimate_worker_value(unseen, 100, setting, here, "remote", 10) == worth, "it counts as the other side"
    assert estimate_worker_value(replace(known, each=(0.0, 0.0)), 100, setting, here, "remote", 10) == WorkerValue()
    sent = replace(setting, batch_transfer=0.5)
    assert sent.with_transfer(Deployment(1, 3), 0.25, (100.0, 100.0)) == pytest.approx(10.0 + 0.3 + 0.75 * 0.5 / 0.25)
