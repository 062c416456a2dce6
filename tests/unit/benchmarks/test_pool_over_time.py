"""Jobs with policies of their own on a small pool: `python -m benchmarks.pool_over_time` shows sixty-four."""

from __future__ import annotations

import math

import pytest

from benchmarks.pool_over_time import HEARD, PooledTraining, drawn, play

ROUNDS, LONG = 120, 240


def played(heard: str, jobs: int, rounds: int) -> tuple[list[PooledTraining], int]:
    run = drawn(1, jobs, rounds)
    pool = math.floor(0.5 * sum(job.wants for job in run))
    play(run, heard, pool, rounds)
    return run, pool


@pytest.mark.parametrize(
    ("jobs", "rounds"),
    [(6, ROUNDS), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((12, ROUNDS), (64, LONG)))],
)
def test_jobs_that_bid_by_what_they_have_measured_pay_less_than_those_that_come_first(jobs: int, rounds: int) -> None:
    """Twenty minutes for the 64, as in decision 26: who has measured nothing bids nothing, and the first window of the
    slowest takes more than six.  After ten minutes four of these pay more by bidding than all the others save."""
    plays = {heard: played(heard, jobs, rounds) for heard in HEARD}
    for heard in ("first come", "bids"):
        run, pool = plays[heard]
        assert sum(job.at.remote for job in run if job.goes == rounds) <= pool
        assert all(job.worked_s > 0 for job in run)
    runs = {heard: run for heard, (run, _) in plays.items()}
    bills = {heard: sum(job.bill for job in run) for heard, run in runs.items()}
    assert bills["enough for all"] < bills["bids"] < 0.92 * bills["first come"]
    worst = {
        heard: max(job.slowness / alone.slowness for job, alone in zip(run, runs["enough for all"], strict=True))
        for heard, run in runs.items()
    }
    assert worst["bids"] < worst["first come"]
