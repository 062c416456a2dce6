"""A whole job with a deadline."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from pecan_ray.job.deadline_budget import DeadlineBudget
from pecan_ray.job.windows import StepTotals
from pecan_ray.placement import AutoPlacement, Prices
from pecan_ray.placement.objective import Objective
from pecan_ray.plan.prices import PriceTier
from pecan_ray.plan.windows import Deployment
from tests.unit.placement.plants import ROWS, Plant, seen


def hurried(plant: Plant, deadline_s: float, batches: int, known: bool) -> tuple[float, float]:
    """Run two epochs of so many batches in all; return when the job ended, and what it cost."""
    policy = AutoPlacement(prices=plant.prices, max_local=plant.max_local, max_remote=plant.max_remote)
    deadline_budget = DeadlineBudget(deadline_s, 2, batches // 2 if known else None)
    at, now, done, cost, room = policy.start, 0.0, 0.0, 0.0, Deployment(plant.max_local, plant.max_remote)
    while done < batches:
        longest_s = deadline_budget.longest_s(now, 2 * done / batches)
        if longest_s is not None:
            policy.objective = Objective(longest_s=longest_s)
        o = seen(plant, at, room, math.inf if longest_s is None else ROWS / longest_s)
        now, done = now + o.dt, done + o.rows / ROWS
        cost += o.dt * plant.prices.per_hour(1, at.remote)
        deadline_budget.report(0, StepTotals(int(done), now), now)
        at = policy.look(o, now).target
    return now, cost


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("pace", [0.12, 0.15, 0.2])
def test_a_job_ends_before_its_deadline_and_not_at_any_price(pace: float, known: bool) -> None:
    """Four workers are cheap, and each further one costs as much as three hosts: only a hurry pays for them."""
    plant = Plant(max_local=0, max_remote=10, prices=Prices(1.0, 3.0, (PriceTier("spot", 0.1, 4),)))
    ended, cost = hurried(plant, 100 * 120 * pace, 100 * 120, known)
    assert ended <= 100 * 120 * pace + 0.5
    assert cost <= 1.2 * ideal(plant, pace, 120)


def ideal(plant: Plant, pace: float, windows: int) -> float:
    """Cost of a job that mixes two numbers of workers so that it just ends in time."""
    times = {count: plant.batch_time(Deployment(0, count)) for count in range(1, plant.max_remote + 1)}
    costs = {count: time * plant.prices.per_hour(1, count) for count, time in times.items()}
    best = min(cost for count, cost in costs.items() if times[count] <= pace)
    for slow, fast in combinations(times, 2):
        if times[fast] < pace < times[slow]:
            share = (times[slow] - pace) / (times[slow] - times[fast])
            best = min(best, share * costs[fast] + (1 - share) * costs[slow])
    return 100 * windows * best
