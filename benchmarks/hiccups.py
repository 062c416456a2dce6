"""Whether AutoPlacement is fooled: random workloads whose windows lie, and how near the cheapest deployment it ends.

    python -m benchmarks.hiccups [--workloads 300] [--seed 0] [--mode auto] [--kinds calm,drift] [--json FILE]

Every workload is simulated step by step, each trainer's steps summed up and cut into windows as live ones are.  Of each
kind: the share that ends within 5 % of the cheapest deployment of the conditions that hold at the end, the worst,
the cost of the whole run over the cheapest deployment's, and the windows until the search was over (after a drift: from
the drift on).  A run ends with the deployment that it stays with, or, where it is still searching, with what ran in its
last twenty windows; the last line goes by what was settled on last, whatever runs.  Of the changes that make what runs
5 % dear or more: the windows until another deployment was asked for, from when the trainer felt it (median, 95th
percentile, most), apart from those that hardly show in windows (how many: median).  Kinds: see `KINDS`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Literal, TypeAlias

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pecan_ray.job.windows import StepTotals, WindowMeter
from pecan_ray.placement import AutoPlacement, Deployment, Prices
from pecan_ray.plan.windows import Decision, Window

KINDS = {
    "calm": "nothing happens",
    "slow window 2": "workers are three times slower during the second window",
    "hiccups": "5 to 15 % of the windows are disturbed, workers or trainer, by 1.5 to 5 times",
    "drift": "once, workers or trainer become 1.3 to 3 times slower or faster, for good",
    "pauses": "evaluations and checkpoints of seconds",
    "slower for good": "the trainer's steps become ten to four hundred times longer",
    "source": "workers beyond a certain rate bring nothing",
    "crowding": "the trainers' hosts have fewer cores than local workers are allowed",
    "lockstep": "2 to 8 trainers, each step waits for the slowest",
    "everything": "crowded, 1 to 8 trainers, with hiccups, pauses and a drift",
}
NEAR, FAR = 0.05, 0.20
WINDOWS = 120
"""Of each run,"""
LONGEST_S = 4 * 3600.0
"""or as many as there are in this time;"""
LAST = 20
"""so many of them count where the search is not over by then."""
WINDOW_S = 5.0
"""A window's age."""
LOOK_S = 0.25
"""Trainers report so often."""
SHOWS = 0.10
"""A change of the pace by less does not show in a few windows: most of all workers that become faster while the trainer
hardly waits."""
Change: TypeAlias = Literal["none", "shown", "hidden"]
QUEUED = 8
"""Batches that a trainer holds, and that a worker holds for it: the latter two."""
LOCAL_START_S, REMOTE_START_S = 1.0, 3.0


@dataclass(frozen=True)
class HiccupJob:
    """A random workload and what happens to it."""

    kind: str
    seed: int
    step_s: float
    step_cv: float
    work_s: float
    """CPU seconds of a batch."""
    speed_local: float
    speed_remote: float
    interference: float
    """Rise of the step by a local worker;"""
    crowd: float
    """and by one beyond the cores."""
    cores: float
    source: float
    """Batches per second that can be read at all."""
    prices: Prices
    trainers: int
    max_local: int
    max_remote: int
    hiccups: float = 0.0
    """Share of disturbed windows."""
    slow_window: bool = False
    pauses: float = 0.0
    """Pauses a step."""
    changes_at: int | None = None
    """Window from which on the next two hold."""
    trainer_factor: float = 1.0
    worker_factor: float = 1.0

    def step(self, at: Deployment) -> float:
        """Return the trainers' own step in seconds."""
        crowded = self.crowd * max(0.0, at.local - self.cores)
        return self.step_s * (1 + self.interference * at.local + crowded)

    def supply(self, at: Deployment) -> float:
        """Return what workers bring, in batches per second."""
        cpus = min(at.local, self.cores) * self.speed_local + at.remote * self.speed_remote
        return min(self.source, cpus / self.work_s)

    @cached_property
    def finally_so(self) -> HiccupJob:
        """The job as it is at the end."""
        if self.changes_at is None:
            return self
        longer = self.step_s * self.trainer_factor
        return replace(self, step_s=longer, work_s=self.work_s * self.worker_factor, changes_at=None)

    @cached_property
    def straggling(self) -> float:
        """Mean of the slowest trainer's step, in mean steps."""
        draw = random.Random(1)
        return fmean(max(draw.gauss(1, self.step_cv) for _ in range(self.trainers)) for _ in range(400))

    def pace(self, at: Deployment) -> float:
        """Return how long a step takes in the long run, in seconds."""
        return max(self.step(at) * self.straggling, self.trainers / self.supply(at))

    def cost(self, at: Deployment) -> float:
        """Return what a step costs in the long run, in $ an hour times seconds."""
        return self.pace(at) * self.prices.per_hour(self.trainers, at.remote)

    def excess(self, ran: Sequence[tuple[Deployment, int]]) -> float:
        """Return by which share deployments and their steps cost more than these steps beside the cheapest one."""
        steps = sum(count for _, count in ran)
        return sum(self.cost(at) * count for at, count in ran) / steps / self.cost(self.cheapest) - 1

    def asks_for(self, at: Deployment) -> Change:
        """Say whether its change asks for another deployment than the one that runs, and whether a window shows it."""
        after = self.finally_so
        if after.cost(at) <= (1 + NEAR) * after.cost(after.cheapest):
            return "none"
        return "hidden" if abs(after.pace(at) / self.pace(at) - 1) <= SHOWS else "shown"

    @cached_property
    def cheapest(self) -> Deployment:
        """Search all deployments."""
        every = (Deployment(n, m) for n in range(self.max_local + 1) for m in range(self.max_remote + 1) if n + m)
        hour = [self.prices.per_hour(self.trainers, remote) for remote in range(self.max_remote + 1)]
        return min(every, key=lambda at: (self.pace(at) * hour[at.remote], at.workers))


def draw_job(kind: str, seed: int) -> HiccupJob:
    """Draw a workload of a kind: from trivial to one that needs forty workers, cheap and dear hosts."""
    draw = random.Random(f"{kind} {seed}")
    step = 10 ** draw.uniform(-2, 0)
    trainers = draw.randint(2, 8) if kind == "lockstep" else draw.randint(1, 8) if kind == "everything" else 1
    max_local = draw.choice([4, 8, 16])
    job = HiccupJob(
        kind,
        seed,
        step_s=step,
        step_cv=draw.uniform(0.0, 0.1),
        work_s=step * 10 ** draw.uniform(-0.3, 1.6) / trainers,
        speed_local=draw.uniform(0.4, 1.6),
        speed_remote=draw.uniform(0.6, 1.4),
        interference=draw.choice([0.0, 10 ** draw.uniform(-3, -1)]),
        crowd=draw.choice([0.0, draw.uniform(0.01, 0.1)]),
        cores=math.inf,
        source=math.inf,
        prices=Prices(draw.uniform(1, 12), draw.uniform(0.1, 1.0)),
        trainers=trainers,
        max_local=max_local * trainers,
        max_remote=64,
    )
    crowded = replace(job, cores=draw.uniform(0.2, 0.9) * job.max_local)
    changes = replace(job, changes_at=draw.randint(4, 50))
    factor = draw.uniform(1.3, 3.0) ** draw.choice([-1, 1])
    drifting = (
        replace(changes, trainer_factor=factor) if draw.random() < 0.5 else replace(changes, worker_factor=factor)
    )
    hiccups, pauses = draw.uniform(0.05, 0.15), 1 / draw.uniform(500, 2000)
    longer = min(draw.choice([10, 40, 400]), 3.0 / step)
    made = {
        "calm": job,
        "lockstep": job,
        "slow window 2": replace(job, slow_window=True),
        "hiccups": replace(job, hiccups=hiccups),
        "drift": drifting,
        "pauses": replace(job, pauses=pauses),
        "slower for good": replace(changes, trainer_factor=max(1.0, longer)),
        "source": replace(job, source=draw.uniform(0.2, 1.2) * trainers / step),
        "crowding": crowded,
        "everything": replace(drifting, cores=crowded.cores, hiccups=hiccups / 2, pauses=pauses),
    }
    return made[kind]


@dataclass
class Lockstep:
    """Trainers that take of one queue and step together; workers are one server of their summed rate."""

    job: HiccupJob
    draw: random.Random
    at: Deployment
    slow_workers: float = 1.0
    slow_trainer: float = 1.0
    now: float = 0.0
    steps: int = 0

    def __post_init__(self) -> None:
        self.totals = [StepTotals() for _ in range(self.job.trainers)]
        self._got = [0.0] * self.job.trainers
        self._made = 0.0
        """When the workers will have made the next batch."""
        self._ready: deque[float] = deque()
        self._taken: deque[float] = deque()

    def _places(self) -> int:
        return QUEUED * self.job.trainers + 2 * self.at.workers

    def _make(self, until: float) -> None:
        """Make what is finished by then and finds a place."""
        gap = self.slow_workers / self.job.supply(self.at)
        places = self._places()
        while len(self._ready) < places and self._made <= until:
            self._ready.append(self._made)
            freed = self._taken[-places] if len(self._taken) >= places else 0.0
            self._made = max(self._made, freed) + gap * self.draw.uniform(0.7, 1.3)

    def _take(self, asked: float) -> tuple[float, int]:
        """Return when the next batch is there, and how many are when it is asked for."""
        self._made = max(self._made, self._taken[-1] if len(self._ready) >= self._places() else 0.0)
        self._make(asked)
        there = len(self._ready)
        if not self._ready:
            self._make(self._made)
        entered = max(asked, self._ready.popleft())
        self._taken.append(entered)
        while len(self._taken) > self._places():
            self._taken.popleft()
        return entered, there

    def step(self) -> None:
        """Take one step, all trainers together."""
        job, count = self.job, self.job.trainers
        own = job.step(self.at) * self.slow_trainer
        if job.pauses and self.draw.random() < job.pauses:
            own = max(2.5, own * self.draw.uniform(25, 100))
        done = self.now
        for place in range(count):
            rank = (self.steps + place) % count
            got, there = self._take(self.now)
            spent = got - self._got[rank]
            if self.steps:  # a step is from one batch in hand to the next
                self.totals[rank] = self.totals[rank].step(spent, got - self.now, min(QUEUED, there / count))
            else:
                self.totals[rank] = self.totals[rank].uncounted(got - self.now)
            self._got[rank] = got
            done = max(done, got + own * max(0.3, self.draw.gauss(1, job.step_cv)))
        self.now, self.steps = done, self.steps + 1

    def run_for(self, seconds: float) -> None:
        """Step until so much time has passed."""
        until = self.now + seconds
        while self.now < until:
            self.step()


@dataclass
class ChangeAnswer:
    """How soon a policy moves after a change that asks for it."""

    job: HiccupJob
    """As it was before;"""
    at: Deployment
    """what ran then,"""
    number: int
    """and the first window after it."""
    felt: int | None = None
    """The first window that is nearer to what the trainer's pace becomes: before that it lives on a stock."""
    moved: int | None = None

    def __post_init__(self) -> None:
        self.change = self.job.asks_for(self.at)

    def see(self, number: int, window: Window, target: Deployment) -> None:
        """Look at a window and at what was decided by it."""
        before, after = self.job.pace(self.at), self.job.finally_so.pace(self.at)
        if self.felt is None and abs(window.batch_time - after) < abs(window.batch_time - before):
            self.felt = number
        if self.moved is None and number > self.number and target != self.at:
            self.moved = number

    def windows(self, last: int) -> int | None:
        """Return the windows from when it was felt, or could not be, to the first move, or to the end."""
        if self.change == "none":
            return None
        moved = self.moved or last
        since = self.felt if self.change == "shown" and self.felt is not None else self.number
        return moved - min(since, moved)


@dataclass
class HiccupVerdict:
    """What came of a workload."""

    kind: str
    seed: int
    final: str
    cheapest: str
    excess: float
    """Of the deployment that it stays with, over the cheapest one; where it still searches at the end, of what ran in
    the last windows: it is paid for."""
    settled_excess: float
    """Of the deployment that it settled on last, or began with, whatever runs at the end."""
    paid: float
    """Of the whole run, over the cheapest deployment's."""
    windows: int
    """Until the search was over, after a change from that on."""
    seconds: float
    """The same."""
    answered: int | None
    """Windows until a change that asks for another deployment was answered: see `ChangeAnswer`."""
    change: Change
    """Whether there was such a change, and whether windows could show it."""
    settled_s: float | None
    """Seconds from the start to the first deployment that it stayed with."""
    decisions: list[Decision] = field(default_factory=list, repr=False)


def run(job: HiccupJob, mode: str = "auto", windows: int = WINDOWS) -> HiccupVerdict:
    """Let a policy place a workload."""
    draw = random.Random(f"run {job.kind} {job.seed}")
    policy = AutoPlacement(
        mode, job.prices, job.trainers, max_local=job.max_local, max_remote=job.max_remote, patience=1
    )
    rig = Lockstep(job, draw, policy.start)
    meter = WindowMeter(job.trainers, policy.window_batches, WINDOW_S)
    meter.hurried = mode == "auto"
    settled, converged_at, paid, ideal = policy.start, None, 0.0, 0.0
    began, stepped, change_s, decisions = 0.0, 0, 0.0, list[Decision]()
    used, fresh, settled_s, ran = 0, True, None, list[tuple[Deployment, int]]()
    answer: ChangeAnswer | None = None
    for number in range(1, windows + 1):
        if number == job.changes_at:
            rig.job, answer = job.finally_so, ChangeAnswer(job, rig.at, number)
            change_s, converged_at = rig.now, None
        if fresh:
            used += 1
            disturb(job, used, rig)
        window = None
        while window is None and rig.now < LONGEST_S:
            for rank, totals in enumerate(rig.totals):
                meter.add(rank, totals)
            window = meter.close()
            if window is None:
                rig.run_for(LOOK_S)
        if window is None:
            break
        if meter.spoilt_by:
            window = replace(window, touched=True)
        decision = policy.decide(window, rig.at)
        meter.hurried = mode == "auto" and not policy.converged
        decisions.append(decision)
        fresh = decision.phase != "discarded"
        if answer is not None:
            answer.see(number, window, decision.target)
        if decision.target != rig.at:
            slow = decision.target.remote > rig.at.remote
            rig.run_for(REMOTE_START_S if slow else LOCAL_START_S)
        paid += (rig.now - began) * job.prices.per_hour(job.trainers, rig.at.remote)
        ideal += (rig.steps - stepped) * rig.job.cost(rig.job.cheapest)
        ran.append((rig.at, rig.steps - stepped))
        began, stepped = rig.now, rig.steps
        if decision.target != rig.at:
            rig.at = decision.target
            meter.touch()
            converged_at = None
        if policy.converged:
            settled, settled_s = decision.target, settled_s or rig.now
            converged_at = converged_at or (number, rig.now)
    final, changed_at = job.finally_so, job.changes_at or 0
    end = converged_at or (windows, rig.now)
    return HiccupVerdict(
        job.kind,
        job.seed,
        str(settled),
        str(final.cheapest),
        excess=final.excess([(settled, 1)] if policy.converged else ran[-LAST:] or [(rig.at, 1)]),
        settled_excess=final.excess([(settled, 1)]),
        paid=paid / ideal - 1,
        windows=end[0] - changed_at,
        seconds=end[1] - change_s,
        answered=None if answer is None else answer.windows(windows),
        change="none" if answer is None else answer.change,
        settled_s=settled_s,
        decisions=decisions,
    )


def disturb(job: HiccupJob, number: int, rig: Lockstep) -> None:
    """Say how slow workers and trainer are during a window that is used, and those before it that are thrown away."""
    rig.slow_workers = rig.slow_trainer = 1.0
    if job.slow_window and number == 2:
        rig.slow_workers = 3.0
    elif rig.draw.random() < job.hiccups:
        factor = rig.draw.uniform(1.5, 5.0)
        if rig.draw.random() < 0.5:
            rig.slow_workers = factor
        else:
            rig.slow_trainer = factor


def jobs(kinds: Sequence[str], workloads: int, seed: int) -> Iterator[HiccupJob]:
    """Draw workloads, the kinds in turn."""
    for number in range(workloads):
        yield draw_job(kinds[number % len(kinds)], seed + number // len(kinds))


def answers(verdicts: Sequence[HiccupVerdict], change: Change) -> list[int]:
    """Return after how many windows changes were answered that windows show, or do not."""
    return [one.answered for one in verdicts if one.answered is not None and one.change == change]


def percentile_95(counts: Sequence[int]) -> int:
    """Return the 95th percentile by nearest rank."""
    return sorted(counts)[math.ceil(0.95 * len(counts)) - 1]


def table(verdicts: Sequence[HiccupVerdict]) -> str:
    """Sum verdicts up, a line for each kind and one for all."""
    row = "{:<16} {:>5} {:>10} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6} {:>6} {:>8}"
    head = ("kind", "jobs", "within 5%", "20%", "mean", "worst", "paid", "windows", "answer", "p95", "most", "hidden")
    lines = [row.format(*head)]
    for kind in (*dict.fromkeys(verdict.kind for verdict in verdicts), "all"):
        mine = [verdict for verdict in verdicts if kind in (verdict.kind, "all")]
        shown, hidden = answers(mine, "shown"), answers(mine, "hidden")
        cells = (
            f"{fmean(verdict.excess <= NEAR for verdict in mine):.1%}",
            f"{fmean(verdict.excess <= FAR for verdict in mine):.1%}",
            f"{fmean(verdict.excess for verdict in mine):.2%}",
            f"{max(verdict.excess for verdict in mine):.1%}",
            f"{median(verdict.paid for verdict in mine):.1%}",
            f"{median(verdict.windows for verdict in mine):.0f}",
            *((f"{median(shown):.0f}", f"{percentile_95(shown)}", f"{max(shown)}") if shown else ("", "", "")),
            f"{len(hidden)}: {median(hidden):.0f}" if hidden else "",
        )
        lines.append(row.format(kind, len(mine), *cells))
    settled = [verdict.settled_excess for verdict in verdicts]
    within = f"{fmean(excess <= NEAR for excess in settled):.1%} within 5 %, worst {max(settled):.1%}"
    return "\n".join([*lines, f"by what was settled on last: {within}"])


def main() -> int:
    """Simulate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first workload of each kind")
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    began, verdicts = time.perf_counter(), list[HiccupVerdict]()
    for job in jobs(kinds, options.workloads, options.seed):
        verdicts.append(run(job, options.mode))
        if verdicts[-1].excess > NEAR:
            print(replace(verdicts[-1], decisions=[]), flush=True)
    print(table(verdicts))
    print(f"{len(verdicts)} workloads in {time.perf_counter() - began:.0f} s")
    if options.json:
        kept = [{name: value for name, value in asdict(one).items() if name != "decisions"} for one in verdicts]
        options.json.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
