"""One job of the simulation: its trainers, its workers, its policy, and what they have cost so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from pecan_ray.placement import AutoPlacement
from pecan_ray.plan.windows import Decision, Deployment, Window
from pecan_ray.simulator.client import LIVE, ClientRule, SimulatedMeter
from pecan_ray.simulator.contention import DeploymentTimeTable
from pecan_ray.simulator.crew import Crew
from pecan_ray.simulator.flow import Flow, SimulatedFeed
from pecan_ray.simulator.job_simulation import SimulatedLooks
from pecan_ray.simulator.noise import Services, StepTimes, factors, generator
from pecan_ray.simulator.policy_driver import Driver
from pecan_ray.simulator.workload import Worker, Workload

LOOKAHEAD_S = 0.5
"""Shortest time from a node to its worker's first work: so far ahead a job that waits for nodes may be computed."""


@dataclass(frozen=True)
class JpegEngines:
    """Those of the trainers' accelerators, to which workers may leave decoding."""

    batches_per_s: float
    """Of each client: the images that they decode in a second, over those of a batch."""
    left: float = 0.1
    """Share of a batch's CPU seconds that workers still need."""
    slowdown: float = 0.0
    """Rise of the trainer's step beside them."""

    def changed(self, workload: Workload) -> Workload:
        """Return a workload whose workers leave decoding to them; their own speed is for the flow of batches."""
        return replace(
            workload,
            local=self._light(workload.local),
            remote=self._light(workload.remote),
            trainer=replace(workload.trainer, step_s=workload.trainer.step_s * (1 + self.slowdown)),
        )

    def _light(self, worker: Worker) -> Worker:
        return replace(worker, cpu_s=worker.cpu_s * self.left, ordered_cpu_s=worker.ordered_cpu_s * self.left)


@dataclass(frozen=True)
class SimulatedJob:
    """What to run."""

    workload: Workload
    driver: Driver
    ordered: bool = False
    """Operators are in AutoOrder's order."""
    seed: int = 0
    client: ClientRule = LIVE
    starts_s: float = 0.0
    most_batches: int = 1_000_000
    """The job ends after so many batches of each client."""
    after_convergence: int | None = 8000
    """The job ends so many batches after the policy has converged for the first time; None: it goes on."""
    engines: JpegEngines | None = None
    """None: workers may leave nothing to the accelerators."""


@dataclass(frozen=True)
class Turn:
    """A window, and what the policy made of it."""

    seconds: float
    """Since the job began."""
    batches: int
    window: Window
    deployment: Deployment
    decision: Decision


@dataclass(frozen=True)
class Snapshot:
    """Running sums at a moment."""

    seconds: float = 0.0
    batches: int = 0
    remote_seconds: float = 0.0
    starved: float = 0.0
    waited: float = 0.0
    """Of the first client."""
    paused: float = 0.0
    """What the trainer did beside training: checkpoints, evaluation."""
    received: int = 0
    """Batches that remote workers made."""


@dataclass(frozen=True)
class DecodingPlace:
    """Where photographs are decoded, and the pace of deployments beside it."""

    table: DeploymentTimeTable
    other_table: DeploymentTimeTable | None = None
    """The pace where the other place decodes; None: there is no other place."""
    accelerator: bool = False
    """Workers leave decoding to the accelerators."""

    def changed(self) -> DecodingPlace:
        """Return the other place."""
        assert self.other_table is not None
        return DecodingPlace(self.other_table, self.table, not self.accelerator)


@dataclass
class SimulatedJobState:
    """Everything about a job that changes."""

    spec: SimulatedJob
    flow: Flow
    meter: SimulatedMeter
    decoding: DecodingPlace
    wanted: Decision
    """What the policy has asked for last."""
    crew: Crew = field(default_factory=Crew)
    timeline: list[Turn] = field(default_factory=list)
    now: float = 0.0
    remote_seconds: float = 0.0
    converged: tuple[Snapshot, Deployment] | None = None
    """When the policy had converged for the first time, and to what."""
    settled: Deployment | None = None
    last_running: Deployment | None = None
    """What ran when the job ended; None: it goes on."""
    killed: int = 0
    looks: SimulatedLooks | None = None
    """Of a policy that looks at the job, and not at windows."""
    busy: float = 1.0
    """Share of the time in which the workers work: they stand still while their queues are full."""

    @property
    def target(self) -> Deployment:
        """The workers that the policy wants."""
        return self.wanted.target

    def running(self) -> Deployment:
        """Return what runs, in the eyes of the client."""
        return self.crew.running(self.spec.client.counts_draining)

    def account(self, now: float) -> None:
        """Pay for the time since the last change."""
        self.meter.account(now - max(self.now, self.meter.since), self.crew.working("remote"))
        self.remote_seconds += (now - self.now) * self.crew.paid()
        if self.looks is not None:
            local, remote = self.looks.present
            seconds = now - self.now
            self.looks.present = (
                local + seconds * self.crew.working("local"),
                remote + seconds * self.crew.working("remote"),
            )
        self.now = now

    def snapshot(self) -> Snapshot:
        """Return the sums as they are now."""
        return Snapshot(
            self.now - self.spec.starts_s,
            self.flow.consumed,
            self.remote_seconds,
            self.flow.starved,
            self.flow.clients[0].totals.waited,
            self.flow.paused,
            self.flow.feed.received,
        )

    def refresh(self) -> None:
        """Give every worker, and the trainer, the speed that they have in the present company."""
        local, remote = self.crew.working("local"), self.crew.working("remote")
        step_s, local_s, remote_s, self.busy = self.decoding.table.at(local, remote)
        self.flow.step_s = step_s
        workload = self.spec.workload
        at_work = [(n, m) for n, m in self.crew.members.items() if m.working]
        places = workload.clients * workload.client_buffer + sum(
            workload.worker(member.placement).buffer for _, member in at_work
        )
        times = {n: (local_s if m.placement == "local" else remote_s) * m.time_factor for n, m in at_work}
        self.flow.feed.service_s.update(times)
        self.flow.feed.resize(places)

    def use_accelerator(self, use: bool) -> None:
        """Have workers leave decoding to the accelerators, or decode: others take their places."""
        engines, workload = self.spec.engines, self.spec.workload
        assert engines is not None
        self.decoding = self.decoding.changed()
        self.refresh()
        decode_s = 1 / (engines.batches_per_s * workload.clients) if use else 0.0
        self.flow.feed.replace_workers(self.now, workload.nodes.local_start_s, decode_s)
        self.meter.touch(self.now)

    def begin(self, number: int) -> None:
        """Let a worker work."""
        member = self.crew.members[number]
        member.working = True
        self.refresh()
        feed = self.flow.feed
        feed.join(number, feed.service_s[number], self.now, member.placement == "remote")
        self.meter.touch(self.now)

    def end(self, number: int, *, killed: bool) -> None:
        """Take a worker away; a killed one loses what the client has not fetched."""
        member = self.crew.members.pop(number)
        if not member.working:
            return
        workload = self.spec.workload
        self.flow.feed.leave(number, workload.clients * workload.client_buffer if killed else None)
        self.refresh()
        self.meter.touch(self.now)

    def invalidates(self) -> bool:
        """Say whether what is measured now belongs to no deployment: workers drain, or may still come."""
        return self.crew.changes(self.now, self.spec.client.patience_s)

    def grant(self, number: int, time_factor: float, now: float) -> None:
        """Give a worker a node, from now on paid for."""
        self.account(now)
        self.crew.members[number].granted = True
        self.crew.members[number].time_factor = time_factor

    def is_over(self) -> bool:
        """Say whether the job has run as long as it was to."""
        after, done = self.spec.after_convergence, self.flow.consumed
        settled = self.converged is not None and after is not None and done >= self.converged[0].batches + after
        return settled or done >= self.spec.most_batches

    def finish(self) -> None:
        """End the job, with its last batches where they are."""
        self.last_running = self.running()


def new_job(spec: SimulatedJob, table: DeploymentTimeTable) -> SimulatedJobState:
    """Return a job that is about to begin."""
    workload = spec.workload
    noise = workload.noise
    rng = generator(spec.seed, workload.name, "services")
    services = Services(rng, noise.batch_cv, noise.drift_sd, noise.drift_batches)
    flow = Flow(
        workload.trainer,
        SimulatedFeed(services, workload.clients * workload.client_buffer, workload.client_buffer),
        StepTimes(generator(spec.seed, workload.name, "steps"), workload.trainer.step_cv),
        clients=workload.clients,
        begin=spec.starts_s,
        batches_per_epoch=workload.batches_per_epoch,
    )
    meter = SimulatedMeter(flow, spec.client, spec.driver.window_batches, workload.remote.busy_cpu)
    meter.restart(spec.starts_s)
    start, looks = spec.driver.start, None
    if isinstance(spec.driver, AutoPlacement) and spec.driver.mode == "auto":
        looks = SimulatedLooks(workload, flow, spec.starts_s, ordered=spec.ordered)
        start = spec.driver.first(looks.row_s, looks.batch, workload.max_local)
    wanted = Decision(start, "begin", "")
    other = None if spec.engines is None else DeploymentTimeTable(spec.engines.changed(workload), spec.ordered)
    place = DecodingPlace(table, other)
    return SimulatedJobState(spec, flow, meter, place, wanted, now=spec.starts_s, looks=looks)


def start_delay(workload: Workload, seed: int, number: int, placement: str) -> float:
    """Return how long a worker takes from its node to its first work."""
    if placement == "local":
        return workload.nodes.local_start_s
    drawn = factors(generator(seed, workload.name, "start", number), workload.nodes.start_spread, 1)
    return max(LOOKAHEAD_S, workload.nodes.start_s * float(drawn[0]))


def drain_time(state: SimulatedJobState, number: int) -> float:
    """Return how long a worker goes on until it has finished its split."""
    workload = state.spec.workload
    service = state.flow.feed.service_s[number]
    share = generator(state.spec.seed, workload.name, "drain", number).random()
    return math.ceil(workload.split_batches * share) * service / state.busy
