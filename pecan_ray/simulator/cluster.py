"""Many jobs on one pool of nodes: the discrete-event engine.

A job is computed on its own, batch by batch, up to the end of its window or to the next thing that is known to happen
to its workers; one call per job waits in a heap.  Jobs meet only where one gives a node back that another waits for.
A job with an open wish is therefore computed no further than a node could be up: nothing that another job does can
then come too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from pecan_ray.errors import PlanError
from pecan_ray.placement import AutoPlacement
from pecan_ray.plan.windows import Decision, Window
from pecan_ray.simulator.contention import DeploymentTimeTable
from pecan_ray.simulator.flow import NEVER
from pecan_ray.simulator.job import SimulatedJob, Turn, drain_time, new_job, start_delay
from pecan_ray.simulator.job_simulation import SimulatedLooks
from pecan_ray.simulator.nodes import Node, Pool, PoolRule, Request
from pecan_ray.simulator.outcome import Outcome, outcome_of

ALL = 1 << 60
"""More batches than a job takes."""


@dataclass(frozen=True)
class Simulated:
    """What a simulation gives back."""

    jobs: tuple[Outcome, ...]
    events: int
    """Batches produced, queued and taken, workers' comings and goings, windows and decisions."""
    most_workers: int
    """Remote workers at once."""
    seconds: float
    """Simulated time of the last job's end."""


class Simulation:
    """The engine."""

    def __init__(self, specs: Sequence[SimulatedJob], pool: PoolRule, seed: int = 0) -> None:
        if not specs:
            raise PlanError("a simulation needs at least one job.")
        tables: dict[tuple[int, bool], DeploymentTimeTable] = {}
        for spec in specs:
            key = (id(spec.workload), spec.ordered)
            if key not in tables:
                tables[key] = DeploymentTimeTable(spec.workload, spec.ordered)
        self._pool = Pool(pool, seed)
        self._jobs = [new_job(spec, tables[id(spec.workload), spec.ordered]) for spec in specs]
        self._calls: list[tuple[float, int, int]] = []
        self._next = [NEVER] * len(specs)
        self._tokens = [0] * len(specs)
        self._pending_starts: list[dict[int, float]] = [{} for _ in specs]
        """Of each job, the workers that wait for a node, and how long each will take to start."""
        self._changes = 0
        self._most_workers = 0

    def run(self) -> Simulated:
        """Run until all jobs have ended, or wait for nodes that will never come."""
        for number, job in enumerate(self._jobs):
            self._call(number, job.spec.starts_s)
        while self._calls:
            now, number, token = heappop(self._calls)
            # A call that was replaced by another one stays in the heap, and has an old token.
            if token == self._tokens[number]:
                self._act(number, now)
        batches = sum(job.flow.feed.produced for job in self._jobs)
        turns = sum(len(job.timeline) for job in self._jobs)
        return Simulated(
            tuple(outcome_of(job) for job in self._jobs),
            events=3 * batches + self._changes + 2 * turns,
            most_workers=self._most_workers,
            seconds=max(job.now for job in self._jobs),
        )

    def _call(self, number: int, when: float) -> None:
        self._tokens[number] += 1
        self._next[number] = when
        heappush(self._calls, (when, number, self._tokens[number]))

    def _act(self, number: int, now: float) -> None:
        """Do what is due of a job, then compute it as far as is safe."""
        job = self._jobs[number]
        self._next[number] = NEVER
        # What ran until now is paid for before anything changes.
        job.account(now)
        if not job.crew.requested:
            self._fit(number)
        if job.looks is not None:
            if now >= job.looks.due:
                self._look(number, job.looks)
        elif (window := job.meter.close(now, job.invalidates())) is not None:
            self._decide(number, window)
        if job.last_running is not None:
            return
        if job.crew.due() <= now:
            job.flow.feed.produce_until(now)
        while (due := job.crew.pop_due(now)) is not None:
            self._handle_worker_event(number, *due)
        self._compute(number)

    def _compute(self, number: int) -> None:
        """Advance a job to the end of its window, or to what comes before."""
        job = self._jobs[number]
        horizon = job.crew.due()
        if self._pending_starts[number] and not job.flow.idle:
            horizon = min(horizon, job.now + min(self._pending_starts[number].values()))
        if job.looks is not None:
            horizon = min(horizon, job.looks.due)
            job.flow.advance(horizon, ALL)
            self._call(number, horizon)
            return
        deadline = job.meter.deadline()
        if job.flow.advance(min(horizon, deadline), job.meter.still_missing()):
            self._call(number, job.flow.latest)
        elif horizon <= deadline:
            if horizon < NEVER:
                self._call(number, horizon)
        elif job.flow.advance(horizon, job.meter.batches_missing_at_deadline()):
            self._call(number, max(deadline, job.flow.latest))
        elif horizon < NEVER:
            self._call(number, horizon)

    def _decide(self, number: int, window: Window) -> None:
        """Ask the policy, and do what it says."""
        job = self._jobs[number]
        running = job.running()
        decision = job.spec.driver.decide(window, running)
        job.timeline.append(Turn(job.now - job.spec.starts_s, job.flow.consumed, window, running, decision))
        self._apply_decision(number, decision)

    def _apply_decision(self, number: int, decision: Decision) -> None:
        """Do what a policy says."""
        job = self._jobs[number]
        if job.spec.driver.converged:
            job.settled = decision.target
            if job.converged is None:
                job.converged = job.snapshot(), decision.target
        if job.is_over():
            self._finish(number)
        elif decision.target != job.target:
            job.wanted = decision
            self._fit(number)

    def _look(self, number: int, looks: SimulatedLooks) -> None:
        """Let the policy look at the job, and do what it says."""
        job, driver = self._jobs[number], self._jobs[number].spec.driver
        assert isinstance(driver, AutoPlacement)
        running = job.running()
        accelerator = None if job.spec.engines is None else job.decoding.accelerator
        seen = replace(looks.look(job.now, running, job.target), accelerator=accelerator)
        decision = driver.look(seen, job.now - job.spec.starts_s)
        switches = accelerator is not None and decision.accelerator != accelerator
        changes = switches or decision.target != job.target
        settles = driver.converged and job.settled != decision.target
        if changes or settles:
            window = job.meter.cut(job.now)
            job.timeline.append(Turn(job.now - job.spec.starts_s, job.flow.consumed, window, running, decision))
        if switches:
            job.use_accelerator(decision.accelerator)
        self._apply_decision(number, decision)

    def _fit(self, number: int) -> None:
        """Start what lacks, let go what is too many."""
        job = self._jobs[number]
        job.flow.feed.produce_until(job.now)
        for placement, wanted in (("local", job.target.local), ("remote", job.target.remote)):
            surplus = job.crew.not_draining(placement) - wanted
            for _ in range(-surplus):
                self._start(number, placement)
        self._remove_excess_workers(number)

    def _remove_excess_workers(self, number: int) -> None:
        """Let go the workers that are too many; those that work only when none is awaited, or a job might have none."""
        job = self._jobs[number]
        for at_work in (False, True):
            if at_work and job.crew.coming():
                return
            for placement, wanted in (("local", job.target.local), ("remote", job.target.remote)):
                for member in job.crew.excess(placement, max(0, job.crew.not_draining(placement) - wanted)):
                    if job.crew.members[member].working == at_work:
                        self._let_go(number, member, job.wanted.removal == "fast")

    def _start(self, number: int, placement: str) -> None:
        job = self._jobs[number]
        member = job.crew.add(placement, job.now)
        delay = start_delay(job.spec.workload, job.spec.seed, member, placement)
        if placement == "local":
            job.crew.plan(job.now + delay, member, "ready")
            return
        node = self._pool.ask(Request(number, member), job.now)
        if node is not None:
            self._grant(number, member, node, job.now, delay)
        elif self._pool.is_waiting(Request(number, member)):
            self._pending_starts[number][member] = delay

    def _grant(self, number: int, member: int, node: Node, now: float, delay: float) -> None:
        """Give a worker its node."""
        job = self._jobs[number]
        job.grant(member, node.time_factor, now)
        job.crew.plan(now + delay, member, "ready")
        if node.death_time < NEVER:
            job.crew.plan(node.death_time, member, "dies")
        self._most_workers = max(self._most_workers, self._pool.used)

    def _let_go(self, number: int, member: int, fast: bool) -> None:
        job = self._jobs[number]
        if fast or not job.crew.members[member].working:
            self._remove(number, member, killed=fast)
        else:
            job.crew.members[member].draining = True
            job.crew.plan(job.now + drain_time(job, member), member, "gone")

    def _remove(self, number: int, member: int, killed: bool) -> None:
        """Take a worker away, and let others have its node."""
        job = self._jobs[number]
        job.end(member, killed=killed)
        self._changes += 1
        self._pending_starts[number].pop(member, None)
        for served, node in self._pool.release(Request(number, member), job.now):
            delay = self._pending_starts[served.job].pop(served.member)
            self._grant(served.job, served.member, node, job.now, delay)
            # Its next call would come too late.
            if job.now + delay < self._next[served.job] and served.job != number:
                self._call(served.job, job.now + delay)

    def _handle_worker_event(self, number: int, member: int, what: str) -> None:
        """A worker is ready, has finished its last split, or dies with its node."""
        job = self._jobs[number]
        if member not in job.crew.members:
            return
        self._changes += 1
        if what == "ready":
            job.begin(member)
            self._remove_excess_workers(number)
            return
        killed = what == "dies"
        replaced = killed and not job.crew.members[member].draining
        self._remove(number, member, killed=killed)
        if replaced:
            job.killed += 1
            self._start(number, "remote")

    def _finish(self, number: int) -> None:
        """End a job: all of its nodes go back."""
        job = self._jobs[number]
        job.finish()
        for member in list(job.crew.members):
            self._remove(number, member, killed=False)


def simulate(spec: SimulatedJob, pool: PoolRule | None = None) -> Outcome:
    """Run one job; the pool is what its workload says, if not given."""
    nodes = spec.workload.nodes
    rule = pool or PoolRule(nodes.available, speed_cv=nodes.speed_cv, life_s=nodes.life_s)
    return Simulation([spec], rule, spec.seed).run().jobs[0]
