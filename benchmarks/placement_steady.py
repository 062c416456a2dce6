"""Where AutoPlacement's controller ends beside the steady pace of workloads, over the cheapest deployment of each.

    python -m benchmarks.placement_steady [--count 40] [--first 10000] [--families papers plain ...] [--by-batch]

Nothing varies: supply, the trainer's step, and how both disturb each other are those of the simulator's model
(`pecan_ray.simulator.contention`), and rows flow as a fluid; with `--by-batch` workers hand on whole batches, as in
the simulator.  "papers" are the papers' workloads in the user's order of
operators and in AutoOrder's; the others are random workloads of the simulator's families, by their seeds.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from statistics import fmean

import numpy as np

from pecan_ray.placement import AutoPlacement
from pecan_ray.placement.looks import Observation
from pecan_ray.plan.windows import Deployment
from pecan_ray.simulator.cluster import simulate
from pecan_ray.simulator.contention import DeploymentTimes, epoch_costs, step_times, work_of
from pecan_ray.simulator.job import SimulatedJob
from pecan_ray.simulator.job_simulation import ROWS
from pecan_ray.simulator.policy_driver import placement
from pecan_ray.simulator.random_workloads import FAMILIES, draw
from pecan_ray.simulator.workload import Noise, Workload, load, names

TICK_S = 0.5
HOUR_S = 3600.0
LOCAL_START_S = 2.0
BATCHES = 8000
"""Of a job by the batch: workers that take a minute for one have told of hundreds each."""
PAPERS = "papers"


@dataclass(frozen=True)
class SteadyEnd:
    """Where the controller ends with a workload."""

    workload: str
    best: Deployment
    end: Deployment
    excess: float
    """Cost of an epoch over the cheapest, less 1."""
    changes: int


class SteadyJob:
    """A workload whose pace is known for each deployment."""

    def __init__(self, workload: Workload, ordered: bool) -> None:
        self.workload = workload
        self.deployments = [
            Deployment(local, remote)
            for local, remote in product(range(workload.max_local + 1), range(workload.max_remote + 1))
            if local + remote
        ]
        local, remote = [at.local for at in self.deployments], [at.remote for at in self.deployments]
        self.pace: DeploymentTimes = step_times(workload, local, remote, ordered)
        costs = epoch_costs(workload, local, remote, ordered)
        self.cost = dict(zip(self.deployments, costs.tolist(), strict=True))
        self.best = self.deployments[int(np.argmin(costs))]
        of_remote = work_of(workload.remote, ordered)
        self.row_s = work_of(workload.local, ordered) / ROWS
        self.threads = (workload.local.cpus, workload.remote.cpus * self.row_s * ROWS / of_remote)
        self._place = {at: place for place, at in enumerate(self.deployments)}
        self._queued = self._stepped = 0.0

    def look(self, running: Deployment, asked: Deployment) -> Observation:
        """Let half a second pass."""
        workload, found, place = self.workload, self.pace, self._place[running]
        step_s = float(found.step_s[place])
        of_local = running.local / float(found.local_s[place]) if running.local else 0.0
        of_remote = running.remote / float(found.remote_s[place])
        supply = (of_local + of_remote) / workload.clients
        taken = min(TICK_S / step_s, self._queued + supply * TICK_S)
        made = min(supply * TICK_S, workload.client_buffer - self._queued + taken)
        self._queued += made - taken
        self._stepped = self._stepped % 1 + taken
        busy, rows = made / supply, made * workload.clients * ROWS
        share = of_local / (of_local + of_remote)
        waited = TICK_S - taken * step_s
        return Observation(
            dt=TICK_S,
            running=running,
            requested=asked,
            room=Deployment(workload.max_local, workload.max_remote),
            waited=waited if waited > 1e-9 else 0.0,
            rows=taken * workload.clients * ROWS,
            steps=int(self._stepped),
            produced=(rows * share, rows * (1 - share)),
            work_done=(busy * running.local, busy * running.remote),
            blocked=((TICK_S - busy) * running.local, (TICK_S - busy) * running.remote),
            own_s=self.row_s,
            threads=self.threads,
            start_remote_s=workload.nodes.start_s,
        )

    def go(self, policy: AutoPlacement, seconds: float) -> tuple[Deployment, int]:
        """Run the controller; return where it ends and how often it asked for other workers."""
        workload = self.workload
        asked = running = policy.first(self.row_s, round(ROWS * workload.clients / self.threads[0]), workload.max_local)
        now, there, changes = 0.0, 0.0, 0
        while now < seconds:
            seen = self.look(running, asked)
            now += TICK_S
            target = policy.look(seen, now).target
            if target != asked:
                start_s = LOCAL_START_S if target.local > running.local else 0.0
                there = now + max(start_s, workload.nodes.start_s if target.remote > running.remote else 0.0)
                asked, changes = target, changes + 1
            running = asked if now >= there else running
        return asked, changes


def go_by_batch(workload: Workload, ordered: bool) -> tuple[Deployment, int]:
    """Simulate batches; return where the controller ends and how often it asked for other workers."""
    trainer, nodes = replace(workload.trainer, step_cv=0.0), replace(workload.nodes, speed_cv=0.0, start_spread=0.0)
    calm = replace(workload, noise=Noise(batch_cv=0.0), trainer=trainer, nodes=nodes)
    job = SimulatedJob(calm, placement(calm, "auto"), most_batches=BATCHES, after_convergence=None, ordered=ordered)
    outcome = simulate(job)
    targets = [turn.decision.target for turn in outcome.timeline]
    return outcome.final, sum(before != after for before, after in pairwise(targets))


def measure(family: str, key: str | int, ordered: bool, by_batch: bool = False) -> SteadyEnd:
    """Run a workload for an hour, or for BATCHES."""
    workload = load(str(key)) if family == PAPERS else draw(int(key), family)
    job = SteadyJob(workload, ordered)
    end, changes = go_by_batch(workload, ordered) if by_batch else job.go(placement(workload, "auto"), HOUR_S)
    label = f"{workload.name}, {'AutoOrder' if ordered else 'user'}'s order" if family == PAPERS else workload.name
    return SteadyEnd(label, job.best, end, job.cost[end] / job.cost[job.best] - 1, changes)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="workloads of each random family")
    parser.add_argument("--first", type=int, default=10_000, help="the first seed")
    parser.add_argument("--families", nargs="+", choices=(PAPERS, *FAMILIES), default=[PAPERS, *FAMILIES])
    parser.add_argument("--by-batch", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    everything: list[SteadyEnd] = []
    print("| family | workloads | within 1 % | within 5 % | worst | mean | changes | most |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with ProcessPoolExecutor(asked.processes) as pool:
        for family in asked.families:
            seeds = range(asked.first, asked.first + asked.count)
            todo = list(
                product((family,), names(), (False, True)) if family == PAPERS else product((family,), seeds, (False,))
            )
            found = list(pool.map(partial(measure, by_batch=asked.by_batch), *zip(*todo, strict=True)))
            everything += found
            print(row_of(family, found), flush=True)
    print(row_of("all", everything))
    for one in sorted(everything, key=lambda one: -one.excess)[:5]:
        print(f"{one.workload}: {one.end} cost {one.excess:.1%} more than {one.best}")


def row_of(label: str, found: list[SteadyEnd]) -> str:
    """Write workloads as a row of Markdown."""
    excess, changes = [one.excess for one in found], [one.changes for one in found]
    near = " | ".join(f"{fmean(one <= bound for one in excess):.1%}" for bound in (0.01, 0.05))
    figures = f"{max(excess):.1%} | {fmean(excess):.2%} | {fmean(changes):.1f} | {max(changes)}"
    return f"| {label} | {len(found)} | {near} | {figures} |"


if __name__ == "__main__":
    main()
