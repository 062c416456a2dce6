"""AutoPlacement's controller on simulated jobs: its bill beside that of an oracle, and how often it changes its mind.

    python -m benchmarks.placement_simulation [--seeds 20] [--first 1000] [--jobs PART_OF_A_NAME ...] [--without-sample]

Each job is a fluid plant (`benchmarks/placement_plant.py`) with each seed.  The oracle knows demand and supply of each
moment, and not chance: without prices it runs the fewest workers beside which the trainer does not wait, with prices
those that make a row cheapest; it pays for starts as well.  Told are: $ of a row over the oracle's, worker seconds over
the oracle's, the trainer's wait, the share of CPU seconds that idled meanwhile, seconds from the first batch until
what runs can give 0.9 of the best rate, runs without a change after 30 s (with remote nodes: after twice the slowest of
them), and changes after that.  The hour with a drift of 10 % is run with two seeds.  `--without-sample`: AutoOrder has
looked at nothing, so a job begins with one worker, and nobody knows what a row takes alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import TypeAlias

from benchmarks.placement_plant import TICK_S, PlacementPlant, PlantJob, PlantTick, pace_of
from pecan_ray.placement.control import begin, control
from pecan_ray.placement.looks import Observation
from pecan_ray.placement.trial_history import ControlState
from pecan_ray.plan.windows import Deployment

OWNED = (4.96, 0.42)
"""$ an hour in which jobs without prices are compared."""
SETTLED_S = 30.0
"""After the first batch, compiling and the slowest nodes, a steady job is to change nothing more."""
BOTH = PlantJob(
    "remote nodes, prices",
    cpus=8,
    cores=4,
    cpu_s=0.004,
    demand=5000,
    max_remote=24,
    prices=(4.96, 0.2),
    seconds=900,
    queue=8,
    steady=False,
)
JOBS = (
    PlantJob("resnet50, small photographs"),
    PlantJob("small photographs, no accelerator", demand=60_000, loop=1.0),
    PlantJob("large photographs", cpu_s=0.0095),
    PlantJob("sleepers 8 ms", demand=12_800, cpu_s=0.00005, wait_s=0.008, cv=0.02, trainer_cpu=0.3),
    PlantJob("runs 8 batches ahead", ahead=8, demand=2500),
    PlantJob("compiles 45 s, evaluates 40 s", first_step_s=45, pause=(70, 40), seconds=300, demand=2500),
    PlantJob(
        "neighbours disturb, other job", disturb=0.012, others=((60, 120, 7),), seconds=200, steady=False, demand=2600
    ),
    PlantJob("storage gives 900 rows/s", source=900, cpu_s=0.001, wait_s=0.003, demand=2500),
    PlantJob("4 CPUs by quota, 64 seen", cpus=64, cores=32, quota=4, cpu_s=0.004, demand=3000, trainer_cpu=0.6),
    PlantJob(
        "demand and work step, cache",
        factors=((50, 1, 2.5), (100, 1, 1.0), (150, 0.1, 1.0), (200, 1, 1)),
        demand=1500,
        seconds=260,
        steady=False,
    ),
    PlantJob("accumulates 16 batches", batch=64, demand=8000, bursts=(16, 0.8), queue=12),
    PlantJob("elements of 5 s", batch=32, demand=2.4, cpu_s=4.0, wait_s=1.0, seconds=240, drift=0.05, cv=0.5),
    PlantJob(
        "sorted lengths, hiccups",
        wave=(0.35, 40.0),
        hiccup=(25, 2.0),
        demand=2200,
        seconds=240,
        cpu_s=0.0016,
        wait_s=0.0004,
        steady=False,
    ),
    BOTH,
    replace(BOTH, name="remote over a slow link", link=1600),
    replace(
        BOTH,
        name="remote, ahead, spot, uneven",
        demand=3500,
        ahead=6,
        prices=(4.96, 0.1),
        seconds=1200,
        spot_s=900,
        remote_cv=0.25,
        remote_start_s=(60, 200),
    ),
)
"""The sixteen jobs of the design, and"""
MORE = (
    PlantJob("64 CPUs with 16 GB", cpus=64, cores=32, memory_workers=26, demand=60_000, cpu_s=0.004),
    PlantJob("a pause of ten minutes", pause=(60, 600), seconds=700, demand=2500),
    PlantJob("one rank of two is half as fast", demand=1800, ranks=(1.0, 0.5), trainer_cpu=2.0),
    PlantJob("the same, in step", demand=3000, ranks=(1.0, 0.5), in_step=True, trainer_cpu=2.0),
)
"""four more, each to be within 10 % of the oracle."""
HOUR = PlantJob("an hour, drift of 10 %", drift=0.1, seconds=3600)


def room_of(job: PlantJob, used: float, share: float) -> int:
    """Return how many local workers CPUs and memory hold, where others use so many CPUs and a worker such a share."""
    return max(1, int(min(job.cpus, (job.cpus - used) / max(share, 0.05), job.memory_workers)))


def cheapest_at(job: PlantJob, now: float) -> tuple[Deployment, float]:
    """Return the best deployment of a moment, and its rate."""
    calm, most = replace(job, wave=(0.0, 60.0)), room_of(job, 0.0, 0.0)
    rates: dict[Deployment, float] = {}
    for local in range(most + 1):
        for remote in range(int(local == 0), job.max_remote + 1):
            found = pace_of(calm, local, [1.0] * remote, now)
            rates[Deployment(local, remote)] = min(job.mean_demand(found.demand), found.supply * 0.97)
    prices = job.prices
    if prices is not None:
        best = min(rates, key=lambda at: (prices[0] + prices[1] * at.remote) / rates[at] * (1 + 1e-4 * at.local))
    else:
        enough = 0.985 * max(rates.values())
        best = min((at for at in rates if rates[at] >= enough), key=lambda at: (at.workers, -rates[at]))
    return best, rates[best]


Decide: TypeAlias = Callable[[float, PlantTick, Deployment], Deployment]
"""What shall run, by the time, what was seen, and what was asked for."""


def oracle(job: PlantJob) -> tuple[Deployment, Decide]:
    """Return what knows demand and supply, and asks for workers in time; beside nodes that start it uses idle CPUs."""
    moments = {0.0, *(one[0] for one in job.factors), *(at for one in job.others for at in one[:2])}
    plan = sorted((max(0.0, at - job.local_start_s[1]), *cheapest_at(job, at + 1e-6)) for at in moments)
    most = room_of(job, 0.0, 0.0) - 1

    def decide(now: float, seen: PlantTick, _: Deployment) -> Deployment:
        target = max((step for step in plan if step[0] <= now), key=lambda step: step[0])[1]
        return Deployment(max(target.local, most), target.remote) if target.remote > seen.remote else target

    return plan[0][1], decide


def controlled(job: PlantJob, sampled: bool = True) -> tuple[Deployment, Decide]:
    """Return what AutoPlacement begins with, and what asks its controller; `sampled`: AutoOrder has seen rows."""
    state, prices = ControlState(), job.prices
    per_hour = None if prices is None else (lambda remote: prices[0] + prices[1] * remote)

    def decide(now: float, seen: PlantTick, asked: Deployment) -> Deployment:
        nonlocal state
        o = observed(job, seen, asked, now)
        decision, state = control(state, o if sampled else replace(o, own_s=None), now, per_hour)
        return decision.target

    room = room_of(job, job.trainer_cpu, job.cpu_s / job.own_s)
    return Deployment(begin(job.own_s if sampled else None, job.batch * len(job.ranks), room), 0), decide


def observed(job: PlantJob, seen: PlantTick, asked: Deployment, now: float) -> Observation:
    """Return half a second as a job measures it."""
    others = job.trainer_cpu + sum(count for since, until, count in job.others if since <= now < until)
    found = seen.pace
    of_local = found.local / found.supply if found.supply else 1.0
    own_s = found.cpu_s + job.wait_s
    return Observation(
        dt=TICK_S,
        running=Deployment(seen.local, seen.remote),
        requested=asked,
        room=Deployment(room_of(job, others, found.cpu_s / own_s), job.max_remote),
        waited=seen.waited,
        rows=seen.taken,
        steps=seen.steps,
        since_taken=seen.since_taken,
        produced=(seen.produced * of_local, seen.produced * (1 - of_local)),
        work_done=(seen.working * seen.local, seen.working * seen.remote),
        blocked=(seen.blocked * seen.local, seen.blocked * seen.remote),
        busy_waiting=1.0,
        own_s=own_s,
        threads=(1.0, job.remote_cpus),
        lag=1 - 1 / found.line,
        start_remote_s=sum(job.remote_start_s) / 2 if job.max_remote else 0.0,
    )


@dataclass(frozen=True)
class PlantOutcome:
    """A run."""

    usd: float
    """$ of a row."""
    wait: float
    """Share of the time, pauses left out."""
    worker_s: float
    onset_s: float
    """From the first batch on, until what runs can give 0.9 of the best rate."""
    changes: tuple[float, ...]
    """When other workers were asked for."""
    idle: float
    """Share of the seconds of the trainer's CPUs for workers that idled while it waited."""
    settled_s: float
    """From when on a steady job should change nothing."""


def run(job: PlantJob, seed: int, begins: Deployment, decide: Decide) -> PlantOutcome:
    """Run a job under a policy."""
    plant, target, changes, idle_s = PlacementPlant(job, seed), begins, list[float](), 0.0
    plant.order(target.local, target.remote)
    room = room_of(job, job.trainer_cpu, job.cpu_s / job.own_s)
    while plant.now < job.seconds - 1e-9:
        seen = plant.tick()
        idle_s += seen.waited * max(0, room - len(plant.local))
        new = decide(plant.now, seen, Deployment(len(plant.local), len(plant.remote)))
        if new != target:
            changes.append(plant.now)
        target = new
        plant.order(target.local, target.remote)
    trainers, (host, worker) = plant.trainers, job.prices or OWNED
    first, rate = trainers[0].first or job.seconds, 0.9 * cheapest_at(job, 0.0)[1]
    able = next((now for now, capable in plant.capable if capable >= rate), job.seconds)
    return PlantOutcome(
        usd=(host * job.seconds + worker * plant.remote_s) / max(sum(one.rows for one in trainers), 1.0),
        wait=max(one.waited for one in trainers) / max(1e-9, job.seconds - trainers[0].paused - job.first_step_s),
        worker_s=plant.worker_s,
        onset_s=max(0.0, able - first),
        changes=tuple(changes),
        idle=idle_s / (room * job.seconds),
        settled_s=SETTLED_S + job.first_step_s + first + 2 * job.remote_start_s[1] * bool(job.max_remote),
    )


@dataclass(frozen=True)
class BesideOracle:
    """The controller's run and the oracle's, with one seed."""

    job: PlantJob
    ours: PlantOutcome
    best: PlantOutcome

    @property
    def bill(self) -> float:
        """$ of a row over the oracle's."""
        return self.ours.usd / self.best.usd

    @property
    def late_changes(self) -> int:
        """Changes after the time in which a job settles."""
        return sum(at > self.ours.settled_s for at in self.ours.changes)


def compare(job: PlantJob, seed: int, sampled: bool = True) -> BesideOracle:
    """Run a job with the controller and with the oracle."""
    return BesideOracle(job, run(job, seed, *controlled(job, sampled)), run(job, seed, *oracle(job)))


def row_of(label: str, found: Sequence[BesideOracle]) -> str:
    """Write runs as a row of Markdown."""
    bills, waits = [one.bill for one in found], [one.ours.wait for one in found]
    near, calm = fmean(bill <= 1.05 for bill in bills), fmean(not one.late_changes for one in found)
    onset_s, idle = max(one.ours.onset_s for one in found), fmean(one.ours.idle for one in found)
    workers = fmean(one.ours.worker_s / one.best.worker_s for one in found)
    changes = fmean(one.late_changes for one in found)
    cells = f"{fmean(bills):.3f} | {max(bills):.3f} | {near:.1%} | {workers:.2f} | {fmean(waits):.3f} | {idle:.1%}"
    return f"| {label} | {cells} | {onset_s:.1f} | {calm:.0%} | {changes:.1f} |"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--jobs", nargs="+", default=[""], help="parts of names")
    parser.add_argument("--without-sample", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    jobs = [job for job in (*JOBS, *MORE, HOUR) if any(part in job.name for part in asked.jobs)]
    seeds = range(asked.first, asked.first + asked.seeds)
    todo = [(job, seed) for job in jobs for seed in (seeds if job is not HOUR else seeds[:2])]
    with ProcessPoolExecutor(asked.processes) as pool:
        found = list(pool.map(partial(compare, sampled=not asked.without_sample), *zip(*todo, strict=True)))
    print("| job | bill / oracle | worst | within 5 % | workers | wait | idle | 0.9 after (s) | calm | changes |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for job in jobs:
        print(row_of(job.name, [one for one in found if one.job == job]))
    sixteen = [one for one in found if one.job in JOBS]
    if sixteen:
        print(row_of("the sixteen", sixteen))
    if steady := [one for one in sixteen if one.job.steady]:
        print(row_of("of these, the steady ones", steady))


if __name__ == "__main__":
    main()
