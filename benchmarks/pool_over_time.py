"""Many jobs, each with its own AutoPlacement, on a pool that holds half of the workers that they want: bills over time.

    python -m benchmarks.pool_over_time [--jobs 64] [--share 0.5] [--draws 3] [--rounds 240]

Random workloads come and go.  No job knows its own curve: each searches by the windows that it measures, every five
seconds bids by what it has measured, hears the others' bids and keeps to its share; a worker comes only while the pool
has one left.  "first come": the same jobs without bids.  Bills and slow-downs are those of all rounds, searches
included, over those of the same jobs with enough workers for all.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.pooled_jobs import naturals, pooled_job
from pecan_ray.job.sharing import PoolBid, Sharing
from pecan_ray.placement import AutoPlacement
from pecan_ray.placement.evidence import KEPT, pooled
from pecan_ray.placement.pool import Demand, Worth, indispensable
from pecan_ray.plan.windows import Deployment, Window
from pecan_ray.simulator.contention import pace
from pecan_ray.simulator.random_workloads import draw
from pecan_ray.simulator.workload import Workload

ROUND_S = 5.0
"""Seconds between two bids, and of a window at least."""
LEAST_BATCHES = 10
"""Of a window."""
NODE = "pool"
HEARD = ("first come", "bids", "enough for all")
"""How workers are dealt out."""


@dataclass
class PooledTraining:
    """A job that lives from one round to another, with its own policy and what it has heard."""

    workload: Workload
    wants: int
    """Workers of the pool with which it is cheapest."""
    comes: int
    goes: int
    at: Deployment = field(default_factory=lambda: Deployment(0, 0))
    paid: float = 0.0
    """$ so far,"""
    worked_s: float = 0.0
    """and the seconds of its trainer's own work."""
    lived_s: float = 0.0
    sharing: Sharing = field(default_factory=Sharing)
    windows: dict[Deployment, list[Window]] = field(default_factory=dict)
    _began: int = 0
    """Round in which the window began."""

    def __post_init__(self) -> None:
        one = self.workload
        self.policy = AutoPlacement(
            prices=one.prices, clients=one.clients, max_local=one.max_local, max_remote=one.max_remote, patience=1
        )
        self._chance = random.Random(one.name)
        self.target = self.policy.start
        self._known: dict[Deployment, tuple[float, float]] = {}

    def bid(self) -> PoolBid:
        """Bid for workers by what was measured; a job that has measured nothing keeps what it has."""
        readings = [pooled(at, windows[-KEPT:]) for at, windows in self.windows.items()]
        here = self.target
        worth = self.policy.worth(readings, here, "remote") if readings else Worth()
        least = indispensable(readings, here, "remote") if readings else here.remote
        demand = Demand(self.workload.name, worth.savings, self.at.remote, least, 1.0, worth.slowness)
        return PoolBid("remote", (NODE,), demand)

    def hear(self, bids: Sequence[PoolBid], gone: Sequence[str], now: float, pool: int) -> None:
        """Keep to the share that follows from all bids; `gone`: jobs that bid no more."""
        others = [one for one in bids if one.demand.job != self.workload.name]
        self.sharing.forget(gone)
        self.sharing.hear(others, {"remote": (NODE,)}, {NODE: float(pool)}, now)
        limits = self.policy.restrict(remote=self.sharing.shares([self.bid()])["remote"])
        self.target = limits.clamp(self.target.local, self.target.remote)

    def take(self, left: int, now: int) -> int:
        """Let workers come and go, as many as are left at most; return how many of the pool it has then."""
        runs = Deployment(self.target.local, min(self.target.remote, self.at.remote + left))
        if runs != self.at:
            self.at, self._began = runs, now
        return runs.remote

    def run(self, now: int) -> None:
        """Train for a round, and decide if a window has ended."""
        own_s, batch_s = self._pace(self.at)
        self.paid += ROUND_S / 3600 * self.workload.prices.per_hour(self.workload.clients, self.at.remote)
        self.worked_s += ROUND_S * self.workload.trainer.step_s / batch_s
        self.lived_s += ROUND_S
        seconds = (now + 1 - self._began) * ROUND_S
        batches = seconds / batch_s
        if batches < LEAST_BATCHES:
            return
        error = self.workload.trainer.step_cv / math.sqrt(batches)
        seen_s = batch_s * math.exp(self._chance.gauss(0, error))
        window = Window(seen_s, 0.0, int(batches), max(0.0, seen_s - own_s), error * seen_s)
        self.windows.setdefault(self.at, []).append(window)
        self.target, self._began = self.policy.decide(window, self.at).target, now + 1

    def _pace(self, at: Deployment) -> tuple[float, float]:
        """Return the trainer's own time of a batch, and the whole one; without a worker nothing goes on."""
        if not at.workers:
            return self.workload.trainer.step_s, math.inf
        if at not in self._known:
            found = pace(self.workload, at.local, at.remote)
            self._known[at] = float(found.step_s.item()), float(found.batch_s.item())
        return self._known[at]

    @property
    def slowness(self) -> float:
        """Time over the trainer's own work."""
        return self.lived_s / max(self.worked_s, 1e-9)

    @property
    def bill(self) -> float:
        """$ for an hour of the trainer's own work."""
        return 3600 * self.paid / max(self.worked_s, 1e-9)


def drawn(seed: int, count: int, rounds: int) -> list[PooledTraining]:
    """Draw jobs that want workers of the pool: they come within a third of the time, and some go before the end."""
    chance, found = random.Random(f"pool {seed}"), list[PooledTraining]()
    for number in naturals(1000 * seed):
        workload = draw(number)
        if wants := pooled_job(workload).wants:
            goes = chance.choice([rounds, chance.randint(2 * rounds // 3, rounds)])
            found.append(PooledTraining(workload, wants, chance.randint(0, rounds // 3), goes))
        if len(found) == count:
            break
    return found


def play(jobs: Sequence[PooledTraining], heard: str, pool: int, rounds: int) -> None:
    """Let jobs train side by side."""
    chance = random.Random(1)
    for now in range(rounds):
        here = [job for job in jobs if job.comes <= now < job.goes]
        if heard == "bids":
            bids, gone = [job.bid() for job in here], [job.workload.name for job in jobs if job.goes <= now]
            for job in here:
                job.hear(bids, gone, now * ROUND_S, pool)
        held = sum(job.at.remote for job in here)
        for job in chance.sample(here, len(here)):
            left = job.workload.max_remote if heard == "enough for all" else max(0, pool - held)
            held += -job.at.remote + job.take(left, now)
        for job in here:
            job.run(now)


def row(seed: int, heard: str, jobs: Sequence[PooledTraining], first: float, enough: Sequence[PooledTraining]) -> str:
    """Sum a run up."""
    bill, least = sum(job.bill for job in jobs), sum(job.bill for job in enough)
    worst = max(job.slowness / alone.slowness for job, alone in zip(jobs, enough, strict=True))
    return f"{seed:>4} {heard:16} {bill:>9.0f} {1 - bill / first:>6.0%} {bill / least - 1:>13.0%} {worst:>15.1f}x"


def table(jobs: int, share: float, draws: int, rounds: int) -> str:
    """Return the table."""
    lines = [f"{'draw':>4} {'how':16} {'bill $/h':>9} {'saved':>6} {'above enough':>13} {'worst slow-down':>16}"]
    for seed in range(1, draws + 1):
        runs = {}
        for heard in HEARD:
            runs[heard] = drawn(seed, jobs, rounds)
            play(runs[heard], heard, math.floor(share * sum(job.wants for job in runs[heard])), rounds)
        first = sum(job.bill for job in runs["first come"])
        lines += [row(seed, heard, run, first, runs["enough for all"]) for heard, run in runs.items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pool_over_time", description=__doc__)
    parser.add_argument("--jobs", type=int, default=64)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=240)
    options = parser.parse_args(arguments)
    print(table(options.jobs, options.share, options.draws, options.rounds))


if __name__ == "__main__":
    main()
