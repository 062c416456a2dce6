"""A job as a fluid, for the placement controller: rows flow from workers through a bounded queue to a trainer.

Time passes in steps of 50 ms and looks of half a second.  What a controller cannot know is seeded: how long workers
take to start, and how supply drifts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pecan_ray.placement.control import begin, control
from pecan_ray.placement.looks import Observation
from pecan_ray.placement.trial_history import ControlState
from pecan_ray.placement.trials import PerHour
from pecan_ray.plan.windows import Decision, Deployment

STEP_S = 0.05
STEPS_OF_LOOK = 10


@dataclass(frozen=True)
class Fluid:
    """A job: rates are rows a second."""

    demand: Callable[[float], float] = lambda _: 4000.0
    """Of the trainer, at a time; 0: it does something else."""
    disturbance: float = 0.0
    """Share by which each local worker slows the trainer down."""
    local: Callable[[int], float] = lambda count: 500.0 * count
    """What so many local workers supply, and"""
    remote: float = 500.0
    """a remote one."""
    shared: float = math.inf
    """What storage or a link gives to all of them."""
    room: Deployment = field(default_factory=lambda: Deployment(16, 0))
    batch: int = 256
    queue: float = 6.0
    """Batches."""
    row_s: float | None = 0.002
    """By a sample, which is right."""
    lag: Callable[[int], float | None] = lambda _: 0.0
    """Of the trainer's thread, beside so many local workers."""
    drift: float = 0.0
    """Standard deviation of the supply, slowly varying."""
    local_start_s: tuple[float, float] = (1.0, 3.0)
    remote_start_s: tuple[float, float] = (40.0, 80.0)
    per_hour: PerHour | None = None
    row_transfer: float = 0.0
    """$ an hour for a row a second of remote workers, known once one has sent some."""
    decodes: float | None = None
    """Rows a second that the trainer's accelerator decodes; None: it may not."""
    light: float = 8.0
    """So many times as fast workers are that leave decoding to it, and"""
    slower: Callable[[float], float] = lambda _: 0.0
    """by this share the trainer's step is longer then, at a time."""
    seen: Callable[[Observation, float], Observation] = lambda o, _: o
    """What is seen in place of the truth, at a time."""

    def supply(self, at: Deployment) -> float:
        """Return what workers supply when nothing holds them back."""
        return min(self.shared, self.local(at.local) + self.remote * at.remote)


@dataclass
class Run:
    """A controller beside a job."""

    job: Fluid
    seed: int = 0
    now: float = 0.0
    queued: float = 0.0
    state: ControlState = field(default_factory=ControlState)
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    changes: list[tuple[float, Deployment, Deployment]] = field(default_factory=list)
    waited: float = 0.0
    taken: float = 0.0
    accelerator: bool = False
    """Workers leave decoding to it."""
    switches: list[float] = field(default_factory=list)
    """When they began to, and ceased."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._drift, self._taken_at, self._steps = 0.0, 0.0, 0
        self._has_sent = False
        self._up: dict[str, list[float]] = {"local": [], "remote": []}
        self.requested = Deployment(begin(self.job.row_s, self.job.batch, self.job.room.local), 0)
        self._order()

    def _order(self) -> None:
        spans = {"local": self.job.local_start_s, "remote": self.job.remote_start_s}
        for side, up in self._up.items():
            wanted = getattr(self.requested, side)
            up.sort()
            del up[wanted:]
            up += [self.now + self._random.uniform(*spans[side]) for _ in range(wanted - len(up))]

    @property
    def running(self) -> Deployment:
        """What runs."""
        counts = {side: sum(at <= self.now for at in up) for side, up in self._up.items()}
        return Deployment(counts["local"], counts["remote"])

    def look(self) -> Observation:
        """Let half a second pass."""
        job, running = self.job, self.running
        self._drift += -0.05 * self._drift + self._random.gauss(0, job.drift * 0.3)
        supply = job.supply(running) * math.exp(self._drift)
        if self.accelerator:
            supply = min(supply * job.light, job.decodes or 0.0)
        waited = made = taken = 0.0
        steps = self._steps
        for _ in range(STEPS_OF_LOOK):
            demand = job.demand(self.now) / (1 + job.disturbance * running.local)
            demand /= 1 + job.slower(self.now) * self.accelerator
            free = job.queue * job.batch - self.queued
            takes = min(demand * STEP_S, self.queued + supply * STEP_S)
            makes = min(supply * STEP_S, free + takes)
            self.queued += makes - takes
            waited += STEP_S * (1 - takes / (demand * STEP_S)) if demand else 0.0
            made, taken, self.now = made + makes, taken + takes, self.now + STEP_S
            self._steps = int((self.taken + taken) / job.batch)
            if takes:
                self._taken_at = self.now
        dt, workers = STEPS_OF_LOOK * STEP_S, max(1, running.workers)
        busy = made / (supply * dt) if supply else 1.0
        self._has_sent = self._has_sent or bool(running.remote)
        of_local = job.local(running.local) / max(1e-9, job.local(running.local) + job.remote * running.remote)
        self.waited, self.taken = self.waited + waited, self.taken + taken
        seen = Observation(
            dt=dt,
            running=running,
            requested=self.requested,
            room=job.room,
            waited=waited if waited > 1e-9 else 0.0,
            rows=taken,
            steps=self._steps - steps,
            since_taken=self.now - self._taken_at,
            produced=(made * of_local, made * (1 - of_local)),
            work_done=(dt * busy * running.local, dt * busy * running.remote),
            blocked=(dt * (1 - busy) * running.local, dt * (1 - busy) * running.remote),
            busy_waiting=1.0,
            own_s=workers / max(1e-9, job.local(running.local) + job.remote * running.remote),
            lag=job.lag(running.local),
            start_remote_s=sum(job.remote_start_s) / 2,
            row_transfer=job.row_transfer if self._has_sent else 0.0,
            accelerator=None if job.decodes is None else self.accelerator,
        )
        return job.seen(seen, self.now)

    def go(self, seconds: float) -> Run:
        """Let so much time pass."""
        until = self.now + seconds
        while self.now < until - 1e-9:
            self.heed(self.look())
        return self

    def heed(self, o: Observation) -> Decision:
        """Ask the controller, and do what it says."""
        decision, self.state = control(self.state, o, self.now, self.job.per_hour)
        self.decisions.append((self.now, decision))
        if decision.accelerator != self.accelerator:
            self.accelerator = decision.accelerator
            self.switches.append(self.now)
            self._up = {"local": [], "remote": []}
            self._order()
        if decision.target != self.requested:
            self.changes.append((self.now, self.requested, decision.target))
            self.requested = decision.target
            self._order()
        return decision

    def late_changes(self, since: float = 30.0) -> int:
        """Count the changes after a time."""
        return sum(at > since for at, _, _ in self.changes)

    def meet(self, **changes: Any) -> Run:
        """Let the job be another one from now on."""
        self.job = replace(self.job, **changes)
        return self


def observed(running: Deployment, each: tuple[float, float], load: float = 1.0, **more: Any) -> Observation:
    """Return half a second of workers that make so many rows a second each while nothing holds them back."""
    dt = more.get("dt", 0.5)
    busy = dt * load * running.local, dt * load * running.remote
    made = busy[0] * each[0], busy[1] * each[1]
    blocked = dt * running.local - busy[0], dt * running.remote - busy[1]
    seen = Observation(dt, running, running, Deployment(16, 24), rows=sum(made), steps=1, produced=made)
    return replace(seen, **{"work_done": busy, "blocked": blocked, **more})
