"""What a job has cost, from the deployments that ran and from when on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from pecan_ray.job.messages import TrainerProgress
from pecan_ray.placement import Prices
from pecan_ray.placement.costs import Cost
from pecan_ray.plan.prices import HOUR_S
from pecan_ray.plan.windows import Deployment


def cost_between(
    deployments: Sequence[tuple[float, Deployment]],
    prices: Prices,
    hosts: int,
    rates: Sequence[float | None] = (),
    *,
    since: float = 0.0,
    until: float,
    waiting: float = 0.0,
) -> Cost:
    """Return the cost of a stretch of a job.

    Args:
        deployments: What ran, with the seconds since the job began; before the first one the hosts stood alone.
        prices: What things cost.
        hosts: The trainers' nodes.
        rates: $ per hour of the remote workers of each deployment; None, or none: as if they filled the cheapest tiers.
        since: Seconds since the job began;
        until: and to these.
        waiting: The share of the stretch in which the trainers waited.
    """
    started = [(0.0, Deployment(0, 0)), *deployments]
    # Nothing remote ran before the first deployment.
    known = [0.0, *rates, *[None] * (len(deployments) - len(rates))]
    # `until` may lie before the last deployment, of which nothing counts then.
    ends = [start for start, _ in started[1:]] + [max(until, started[-1][0])]
    host = remote = 0.0
    for (start, deployment), end, rate in zip(started, ends, known, strict=True):
        hours = max(0.0, min(end, until) - max(start, since)) / HOUR_S
        host += hours * prices.accelerator_host * hosts
        remote += hours * (prices.remote_per_hour(deployment.remote) if rate is None else rate)
    # The wait is known for the stretch as a whole, and counts as spread evenly over its deployments.
    return Cost(host, remote, waiting * (host + remote))


def cost_by_epoch(
    deployments: Sequence[tuple[float, Deployment]],
    prices: Prices,
    hosts: int,
    ends: Sequence[float],
    waiting: float = 0.0,
    before: float = 0.0,
    rates: Sequence[float | None] = (),
) -> tuple[Cost, ...]:
    """Return the cost of each epoch that has ended, and when it did; the first one includes the start.

    `before`: when those were over that came before them; all else as `cost_between` takes it.
    """
    return tuple(
        cost_between(deployments, prices, hosts, rates, since=begin, until=end, waiting=waiting)
        for begin, end in pairwise([before, *ends])
    )


def cost_by_operator(cost: Cost, seconds: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Deal what input has cost to operators, by the time that each takes of an element.

    Input costs the remote workers, and the hosts for as long as their trainers waited; local workers are free.
    """
    whole = sum(taken for _, taken in seconds)
    if whole <= 0:
        return {}
    waited = cost.host * cost.wasted_share
    return {name: (cost.remote + waited) * taken / whole for name, taken in seconds}


def wait_share(trainers: Iterable[TrainerProgress]) -> float:
    """Return the share of the job in which its trainers waited, the start included: it is paid for as well."""
    shares = [min(1.0, one.waited_s / max(one.elapsed_s, 1e-9)) for one in trainers]
    return fmean(shares) if shares else 0.0
