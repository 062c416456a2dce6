"""The plant of `benchmarks/placement_simulation.py`: trainers, a queue, workers beside them and on other nodes.

Rows flow as a fluid between events, and trainers take whole batches.  What a controller cannot know is seeded: how
long workers take to start, how their speed drifts, when storage stands still and nodes are lost.  Supply of n workers
on a host whose CPUs they share with the trainer and others:

    supply = n / (CPU s of a row * line + seconds that it waits)        line >= 1: runnable threads over CPUs

Hyper-threads add less than cores, and storage and links bound the sum smoothly.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

TICK_S = 0.5
"""Between two looks."""


@dataclass(frozen=True)
class PlantJob:
    """What is simulated; rates are rows a second."""

    name: str
    batch: int = 256
    demand: float = 4000.0
    """Of the accelerator, when nothing disturbs it."""
    ranks: tuple[float, ...] = (1.0,)
    """Demand of each trainer, over `demand`."""
    in_step: bool = False
    """Trainers wait for one another at the end of each step."""
    step_cv: float = 0.05
    ahead: int = 0
    """Batches that the program hands over before the accelerator is done."""
    dispatch_s: float = 0.002
    first_step_s: float = 0.0
    """Compiling."""
    pause: tuple[float, float] = (0.0, 0.0)
    """Every so many seconds, for so many."""
    cpus: float = 16.0
    cores: float = 8.0
    second_thread: float = 0.3
    """What the second thread of a core adds."""
    quota: float = 0.0
    """CPUs of a quota that nobody tells; 0: none."""
    memory_workers: int = 1000
    """Workers that the memory holds."""
    trainer_cpu: float = 1.0
    loop: float = 0.2
    """Share of a step that is the program's CPU time."""
    disturb: float = 0.0
    """By how much each local worker at work makes the step longer."""
    others: tuple[tuple[float, float, float], ...] = ()
    """CPUs of other programs: from, to, how many."""
    cpu_s: float = 0.002
    """CPU seconds of a row, and"""
    wait_s: float = 0.0
    """seconds of it that are none."""
    source: float = math.inf
    """What storage gives."""
    cv: float = 0.3
    """Of a row's time."""
    drift: float = 0.03
    """Of the workers' speed, slowly varying."""
    factors: tuple[tuple[float, float, float], ...] = ()
    """From when on, times so much work a row, and so much demand."""
    wave: tuple[float, float] = (0.0, 60.0)
    """By how much work varies, with which period: sorted lengths."""
    hiccup: tuple[float, float] = (0.0, 0.0)
    """Every so many seconds storage stands still, for so many."""
    bursts: tuple[int, float] = (0, 0.0)
    """After so many batches a step takes so much longer: accumulation."""
    queue: float = 6.0
    """Batches."""
    local_start_s: tuple[float, float] = (1.0, 3.0)
    remote_cpus: float = 4.0
    max_remote: int = 0
    remote_start_s: tuple[float, float] = (40.0, 180.0)
    remote_cv: float = 0.0
    link: float = math.inf
    """What comes into the host."""
    spot_s: float = 0.0
    """Mean life of a node."""
    prices: tuple[float, float] | None = None
    """$ an hour of the host, and of a remote worker."""
    seconds: float = 150.0
    steady: bool = True
    """Nothing changes after the start."""

    @property
    def own_s(self) -> float:
        """Seconds of a row, as a sample sees them."""
        return self.cpu_s + self.wait_s

    def mean_demand(self, demand: float) -> float:
        """Return the demand of all trainers, with its bursts."""
        steps, more_s = self.bursts
        each = steps * self.batch / (steps * self.batch / demand + more_s) if steps else demand
        return each * (len(self.ranks) * min(self.ranks) if self.in_step else sum(self.ranks))

    def speed(self, busy: float) -> float:
        """Return the speed of one of so many busy hyper-threads."""
        return 1.0 if busy <= self.cores else (self.cores + (busy - self.cores) * self.second_thread) / busy

    def scale(self, now: float) -> tuple[float, float]:
        """Return the factors of work and demand at a time."""
        work, demand = 1.0, 1.0
        for since, of_work, of_demand in self.factors:
            if now >= since:
                work, demand = of_work, of_demand
        if self.wave[0]:
            work *= 1 + self.wave[0] * math.sin(2 * math.pi * now / self.wave[1])
        return work, demand


@dataclass(frozen=True)
class PlantPace:
    """What workers give and the trainer takes, while all are at work; rates are rows a second."""

    local: float
    remote: float
    cpu_s: float
    """Of a row."""
    own_s: float
    """Of a row, when nobody is in a worker's way."""
    line: float
    """Threads that want a CPU over those that have one."""
    demand: float

    @property
    def supply(self) -> float:
        """Rows a second of all."""
        return self.local + self.remote


def pace_of(job: PlantJob, local: int, speeds: Sequence[float], now: float) -> PlantPace:
    """Return the pace of so many local workers, and of remote ones of these speeds."""
    work, demand = job.scale(now)
    cpu_s, wait_s = job.cpu_s * work, job.wait_s * work
    cpus = min(job.cpus, job.quota or job.cpus)
    rest = job.trainer_cpu + sum(count for since, until, count in job.others if since <= now < until)
    line, busy, each_s = 1.0, rest, cpu_s
    for _ in range(6):  # the line and the speed of a thread depend on each other
        each_s = cpu_s / job.speed(min(cpus, local * cpu_s / (cpu_s * line + wait_s) + rest))
        busy = local * each_s / (each_s * line + wait_s) + rest if local else rest
        line = 0.5 * line + 0.5 * max(1.0, busy / cpus * line if line > 1 else busy / cpus)
    each_s = cpu_s / job.speed(min(cpus, busy))
    of_local = local / (each_s * line + wait_s) if local else 0.0
    of_remote = _bounded(sum(speeds) * job.remote_cpus / (cpu_s + wait_s), job.link)
    alone = of_local + of_remote
    share = _bounded(alone, job.source) / alone if alone else 0.0
    program = job.loop * line / job.speed(min(cpus, busy)) * job.speed(1)
    slower = (1 - job.loop + program) * (1 + job.disturb * local)
    return PlantPace(of_local * share, of_remote * share, each_s, each_s + wait_s, line, job.demand * demand / slower)


def _bounded(rate: float, bound: float) -> float:
    return rate if bound == math.inf else rate * bound / (rate**6 + bound**6) ** (1 / 6)


@dataclass(frozen=True)
class PlantNode:
    """A remote worker's node."""

    up_s: float
    speed: float
    lost_s: float


@dataclass(frozen=True)
class PlantTick:
    """What is seen of half a second."""

    local: int
    remote: int
    waited: float
    """By the trainer that waited longest."""
    taken: float
    """Rows."""
    steps: int
    """Of the trainer that made most."""
    since_taken: float
    produced: float
    working: float
    """Seconds in which nothing held workers back, and"""
    blocked: float
    """in which the queue was full."""
    pace: PlantPace


class PlacementPlant:
    """A job on its cluster."""

    def __init__(self, job: PlantJob, seed: int) -> None:
        self.job, self.now = job, 0.0
        self._random = random.Random(f"{job.name} {seed}")
        self.local: list[float] = []
        """From when on each works."""
        self.remote: list[PlantNode] = []
        self._drift = 0.0
        self._stalls = (-1.0, self._next_hiccup())
        self.trainers = [PlantTrainer(job, self._random) for _ in job.ranks]
        self._queued = 0.0
        """Rows."""
        self._produced = self._working = 0.0
        self.remote_s = self.worker_s = 0.0
        self.capable: list[tuple[float, float]] = []
        """When, and which rate what ran then could give."""

    def _next_hiccup(self) -> float:
        every = self.job.hiccup[0]
        return self.now + self._random.expovariate(1 / every) if every else math.inf

    def order(self, local: int, remote: int) -> None:
        """Ask for so many workers; of those that are too many, the last ones go."""
        job, rng = self.job, self._random
        self.local += [self.now + rng.uniform(*job.local_start_s) for _ in range(local - len(self.local))]
        if len(self.local) > local:
            self.local = sorted(self.local)[:local]
        for _ in range(remote - len(self.remote)):
            speed = math.exp(rng.gauss(0, job.remote_cv)) if job.remote_cv else 1.0
            up_s = self.now + rng.uniform(*job.remote_start_s)
            self.remote.append(
                PlantNode(up_s, speed, up_s + rng.expovariate(1 / job.spot_s) if job.spot_s else math.inf)
            )
        if len(self.remote) > remote:  # those that have not come go first, then slow ones
            self.remote.sort(
                key=lambda node: (node.up_s > self.now, node.up_s if node.up_s > self.now else -node.speed)
            )
            del self.remote[remote:]

    def tick(self) -> PlantTick:
        """Let half a second pass."""
        job, trainers = self.job, self.trainers
        self.remote = [node for node in self.remote if node.lost_s > self.now]
        local = sum(up_s <= self.now for up_s in self.local)
        speeds = [node.speed for node in self.remote if node.up_s <= self.now]
        pace = pace_of(job, local, speeds, self.now)
        supply = self._supply(pace)
        self.capable.append((self.now, min(pace.supply, job.mean_demand(pace.demand))))
        before = [(one.rows, one.steps, one.waited) for one in trainers]
        self._produced = self._working = 0.0
        self._advance(self.now + TICK_S, supply, pace.demand, bool(local or speeds))
        self.worker_s += TICK_S * (len(self.local) + len(speeds))
        self.remote_s += TICK_S * len(speeds)
        waited = max(one.waited - then[2] for one, then in zip(trainers, before, strict=True))
        return PlantTick(
            local=local,
            remote=len(speeds),
            waited=waited,
            taken=sum(one.rows - then[0] for one, then in zip(trainers, before, strict=True)),
            steps=max(one.steps - then[1] for one, then in zip(trainers, before, strict=True)),
            since_taken=0.0 if waited else self.now - max(one.taken_at for one in trainers),
            produced=self._produced,
            working=self._working,
            blocked=TICK_S - self._working if local or speeds else 0.0,
            pace=pace,
        )

    def _supply(self, pace: PlantPace) -> float:
        job, rng = self.job, self._random
        self._drift = self._drift * (1 - TICK_S / 10) + rng.gauss(0, job.drift * math.sqrt(2 * TICK_S / 10))
        rate = pace.supply * math.exp(self._drift)
        supply = max(0.0, rate * (1 + rng.gauss(0, job.cv) / math.sqrt(max(1.0, rate * TICK_S))))
        until, following = self._stalls
        if self.now >= following:
            until = self.now + job.hiccup[1]
            self._stalls = until, self._next_hiccup()
        return 0.0 if self.now < until else supply

    def _advance(self, end: float, supply: float, demand: float, at_work: bool) -> None:
        while self.now < end - 1e-12:
            asking = self._asking()
            missing = self.job.batch - self._queued
            if asking and missing <= 1e-6:
                self._take(min(asking, key=lambda one: one.ready), demand)
                continue
            until = min([end, *(one.ready for one in self.trainers if one.ready > self.now)])
            if asking and supply:
                until = min(until, self.now + missing / supply)
            for one in asking:
                one.waited += until - self.now
            self._produce(until - self.now, supply, at_work)

    def _asking(self) -> list[PlantTrainer]:
        """Return the trainers that want a batch; in step, none asks for its next one before all have this one."""
        first = min(one.steps for one in self.trainers)
        return [one for one in self.trainers if one.ready <= self.now and (one.steps == first or not self.job.in_step)]

    def _take(self, trainer: PlantTrainer, demand: float) -> None:
        self._queued -= self.job.batch
        trainer.take(self.now, demand * self.job.ranks[self.trainers.index(trainer)])
        if self.job.in_step and len({one.steps for one in self.trainers}) == 1:
            together = max(one.ready for one in self.trainers)
            for one in self.trainers:
                one.ready = together

    def _produce(self, seconds: float, supply: float, at_work: bool) -> None:
        """Let workers work, until the queue is full."""
        self.now += seconds
        if not supply:
            self._working += seconds * at_work
            return
        room = len(self.trainers) * self.job.queue * self.job.batch - self._queued
        working = min(seconds, max(0.0, room) / supply)
        self._queued += working * supply
        self._produced += working * supply
        self._working += working


class PlantTrainer:
    """Takes batches, and does with them what a job says."""

    def __init__(self, job: PlantJob, rng: random.Random) -> None:
        self._job, self._random = job, rng
        self.rows = self.waited = self.paused = self.ready = self.taken_at = 0.0
        self.steps = 0
        self.first: float | None = None
        """When it took its first batch."""
        self._device = deque([0.0] * max(1, job.ahead), maxlen=max(1, job.ahead))
        """When the accelerator is done with the last batches."""
        self._next_pause = job.pause[0] or math.inf

    def take(self, now: float, demand: float) -> None:
        """Take a batch, and find out when it asks for the next one."""
        job, device = self._job, self._device
        self.rows += job.batch
        self.first = now if self.first is None else self.first
        self.taken_at = now
        step_s = job.batch / demand * max(0.2, 1 + self._random.gauss(0, job.step_cv))
        if job.bursts[0] and self.steps % job.bursts[0] == job.bursts[0] - 1:
            step_s += job.bursts[1]
        done = max(device[-1], now) + step_s + (job.first_step_s if self.steps == 0 else 0.0)
        compiles = job.first_step_s and not self.steps
        self.ready = done if compiles or not job.ahead else max(now + job.dispatch_s, device[0])
        device.append(done)
        self.steps += 1
        if now >= self._next_pause:
            self.ready += job.pause[1]
            self._next_pause += sum(job.pause)
            self.paused += job.pause[1]
