"""AutoPlacement on a job: what trainers measure goes in, numbers of workers come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pecan_ray.job.deadline_budget import DeadlineBudget
from pecan_ray.job.messages import Placement, PlacingNow, TrainerProgress
from pecan_ray.job.observed import Observed
from pecan_ray.job.policy_runner import PlacementStep, PolicyRunner, begin
from pecan_ray.job.room import Room
from pecan_ray.job.sharing import PoolBid
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.windows import StepTotals
from pecan_ray.job.worker_table import WorkerRecord, WorkerTable
from pecan_ray.options import AutoWorkers, Workers
from pecan_ray.placement import Prices
from pecan_ray.placement.accelerator import refused
from pecan_ray.placement.objective import NO_WAIT_SHARE, Objective
from pecan_ray.placement.pool import Demand, WorkerValue, estimate_worker_value, min_required_workers
from pecan_ray.plan.windows import Deployment


@dataclass
class PlacementLoop:
    """Has the policy look at the job, or asks it when a window has ended; without one the numbers are fixed."""

    spec: JobSpec
    start_time: float
    policy_runner: PolicyRunner | None = None
    deployments: list[tuple[float, Deployment]] = field(default_factory=list)
    """What ran from when on."""
    remote_rates: list[float | None] = field(default_factory=list)
    """$ per hour of the remote workers of each, by the nodes that they were on; None: not known."""
    fixed: Workers | None = None
    """The numbers that a trainer has asked for while the job ran."""
    fast_removal: bool = False
    deadline_budget: DeadlineBudget | None = None
    """Of a job with a deadline."""
    observed: Observed | None = None
    """What is measured where nobody decides."""
    op_seconds: tuple[tuple[str, float], ...] = ()
    """Seconds of each operator for an element, by AutoOrder's sample: what input costs is dealt to them by these."""
    row_s: float | None = None
    """Seconds of one thread for a row of a batch, by the same."""
    last_started: dict[Placement, float] = field(default_factory=dict)
    """When the last worker of a side began to run."""

    def begin(self, hosts: dict[str, float], remote_cpus: tuple[float, ...]) -> Deployment:
        """Return the numbers of workers to begin with."""
        # `scale()` may have come before the nodes were known.
        workers = self.fixed or self.spec.workers
        if self.spec.shape.one_at_a_time and not isinstance(workers, Workers):
            # Decision 35: one worker at a time makes the sequence, and any other one would stand by.
            workers = Workers(0, 1) if workers.max_local == 0 else Workers(1, 0)
        if isinstance(workers, Workers):
            self.observed = Observed(self.spec.shape.world_size)
            return Deployment(workers.local, workers.remote)
        deadline = self.spec.deadline
        if deadline is not None and self.spec.shape.epochs is not None:
            self.deadline_budget = DeadlineBudget(deadline.seconds, self.spec.shape.epochs, deadline.epoch_batches)
        shape, room = self.spec.shape, Room(tuple(hosts.values()), remote_cpus)
        cpus = self.spec.cpus_per_worker
        self.policy_runner = begin(workers, room, cpus, shape.visitation, shape.world_size, shape.batch_size)
        self.policy_runner.offers_accelerator = self.spec.accelerator == "auto"
        return self.policy_runner.policy.start

    def sampled(
        self, row_s: float | None, trainers: Sequence[TrainerProgress], worker_table: WorkerTable
    ) -> Deployment | None:
        """Return what to begin with, by a sample's seconds of a row; None: as it is."""
        self.row_s = row_s
        args = row_s, trainers, worker_table, self.spec.cpus_per_worker
        return None if self.active is None else self.active.begin_with_sample(*args)

    @property
    def active(self) -> PolicyRunner | None:
        """What decides about the numbers of workers; None: they are fixed."""
        return self.policy_runner if self.fixed is None else None

    @property
    def now(self) -> PlacingNow:
        """What AutoPlacement does about the workers that are wanted."""
        if self.active is None:
            return ""
        return "keeps" if self.active.policy.converged else "measures"

    def fix(self, workers: Workers) -> bool:
        """Let a trainer decide from now on; tell whether AutoPlacement did until now."""
        decided, self.fixed, self.fast_removal = self.active is not None, workers, False
        if decided:
            self.observed = Observed(self.spec.shape.world_size)
        return decided

    @property
    def prices(self) -> Prices | None:
        """What the user has said that things cost; None: nothing."""
        workers = self.spec.workers
        return workers.prices if isinstance(workers, AutoWorkers) else None

    def reported(self, rank: int, totals: StepTotals, now: float) -> None:
        """Take over what a trainer has measured."""
        if self.deadline_budget is not None:
            self.deadline_budget.report(rank, totals, now - self.start_time)
        if self.observed is not None:
            self.observed.meter.add(rank, totals)
        if self.policy_runner is not None:
            self.policy_runner.meter.add(rank, totals)

    def shares_nodes(self, placement: Placement) -> bool:
        """Tell whether a share may bound its workers: where AutoPlacement decides, and the user has set no bound."""
        workers = self.spec.workers
        return (
            self.active is not None
            and isinstance(workers, AutoWorkers)
            and getattr(workers, f"max_{placement}") is None
        )

    def pool_requests(
        self, worker_table: WorkerTable, nodes: Mapping[Placement, tuple[str, ...]]
    ) -> tuple[PoolBid, ...]:
        """Return what the job bids for workers; it needs those that it has where no share may bound them."""
        found = []
        for placement, where in nodes.items():
            holds = sum(w.placement == placement and bool(w.node) for w in worker_table.workers.values())
            # Decision 26: where the user has set a number or a bound, the job needs what it has.
            worth, least = self._worker_value(placement) if self.shares_nodes(placement) else (WorkerValue(), holds)
            cpus = self.spec.cpus_per_worker
            demand = Demand(self.spec.name, worth.cost_reductions, holds, least, cpus, worth.time_factor)
            if where and demand.wants:
                found.append(PoolBid(placement, where, demand))
        return tuple(found)

    def _worker_value(self, placement: Placement) -> tuple[WorkerValue, int]:
        """Return what the first, second ... worker is worth, and how many the job cannot do without."""
        placing = self.policy_runner
        assert placing is not None
        known, here = placing.policy.state.known, placing.target
        if not any(known.each):
            return WorkerValue(), getattr(here, placement)  # what it began with
        batch = placing.job_sampler.batch or 1
        most = getattr(placing.policy.limits, f"max_{placement}")
        waits, unknown = placing.job_sampler.wait > NO_WAIT_SHARE, not known.each[placement == "remote"]
        # Decision 26: a job that has never measured a worker of the pool bids nothing, and would never find out.
        least = min_required_workers(here, placement, waits=waits, unknown=unknown)
        worth = estimate_worker_value(known, batch, placing.policy.setting, here, placement, most)
        return worth, max(least, getattr(placing.policy.limits, f"min_{placement}"))

    def restrict(self, shares: Mapping[Placement, int | None], worker_table: WorkerTable) -> Deployment | None:
        """Keep to shares of nodes; return what must run then at most, if that is less than what is wanted.

        The only worker moves to the other side once trainers have something from it: else shares that change faster
        than one element is done would move it again and again, and one that hangs would not be noticed.  Where each
        worker gives all data it stays, since another one begins the epoch anew.
        """
        runner = self.active
        if runner is None:
            return None
        wanted, kept = runner.target, dict(shares)
        if wanted.workers == 1:
            side: Placement = "local" if wanted.local else "remote"
            if kept.get(side) == 0 and not self._may_move_only_worker(side, worker_table):
                kept[side] = 1
        limits = runner.policy.restrict(kept.get("local"), kept.get("remote"))
        fewer = limits.clamp(wanted.local, wanted.remote)
        if fewer == wanted:
            return None
        runner.target = fewer
        return fewer

    def _may_move_only_worker(self, side: Placement, worker_table: WorkerTable) -> bool:
        here = [one for one in worker_table.workers.values() if one.placement == side and not one.draining]
        return self.spec.shape.sharding != "off" and any(one.delivered.batches for one in here)

    def started(self, worker: WorkerRecord, now: float) -> None:
        """Note that a worker runs, and how long it took."""
        self.last_started[worker.placement] = now
        if self.policy_runner is not None and worker.placement == "remote":
            self.policy_runner.job_sampler.started(now - worker.requested)

    def accelerator_refused(self, now: float) -> None:
        """Note that the trainer cannot decode an image that a worker has left to it."""
        if self.active is not None and self.active.offers_accelerator:
            self.active.policy.state = refused(self.active.policy.state, now - self.start_time)

    def touched(self) -> None:
        """Note that what is measured now belongs to no deployment."""
        for one in (self.policy_runner, self.observed):
            if one is not None:
                one.meter.touch()

    def changed(self, worker_table: WorkerTable, now: float) -> None:
        """Note that workers came or went."""
        # The bill is made from these, and workers that drain cost as much as others.
        self.deployments.append((now - self.start_time, worker_table.running(draining=True)))
        self.remote_rates.append(worker_table.remote_per_hour())
        # Decision 9: a window in which workers came or went is thrown away.
        self.touched()

    def decide(
        self, worker_table: WorkerTable, now: float, trainers: Sequence[TrainerProgress], epochs: float = 0.0
    ) -> PlacementStep | None:
        """Return what was decided or measured, if anything was; `epochs`: so many are done."""
        placing, seconds = self.active, now - self.start_time
        if self.observed is not None:
            self.observed.look(worker_table.running(), seconds)
        if placing is None:
            return None
        awaited = self._awaited(placing, worker_table, now)
        # Nodes take minutes and windows seconds, so the papers' modes decide nothing while workers are awaited.
        if placing.policy.mode != "auto":
            return placing.decide(worker_table.running(), seconds, awaited.workers)
        longest_s = self.deadline_budget.longest_s(seconds, epochs) if self.deadline_budget is not None else None
        if longest_s is not None:
            placing.policy.objective = Objective(longest_s=longest_s)
        return placing.look(trainers, worker_table, awaited, seconds, self.spec.cpus_per_worker, longest_s)

    def _awaited(self, placing: PolicyRunner, worker_table: WorkerTable, now: float) -> Deployment:
        """Count the workers that were requested and may still come: many that start at once come one by one."""

        def may_start(worker: WorkerRecord) -> bool:
            since = now - max(worker.requested, self.last_started.get(worker.placement, worker.requested))
            patience_s = placing.patience_s if worker.pending.starting else placing.patience(worker.placement)
            return bool(worker.node) or since < patience_s

        coming = [worker for worker in worker_table.workers.values() if not worker.running and not worker.draining]
        sides = [worker.placement for worker in coming if may_start(worker)]
        return Deployment(sides.count("local"), sides.count("remote"))

    def other_side(self, waiting: WorkerRecord, worker_table: WorkerTable) -> str | None:
        """Return the host ("" for remote) on which to try as well, where a job has not a single worker."""
        placing = self.active
        others = any(w.running or w.host != waiting.host for w in worker_table.workers.values() if not w.draining)
        # The other modes run workers of one side only, or begin with both.
        if placing is None or others or not placing.policy.mode.startswith(("auto", "pecan")):
            return None
        host = "" if waiting.host else next(iter(worker_table.hosts))
        limits = placing.policy.limits
        return host if (limits.max_local if host else limits.max_remote) > 0 else None

    def timeline(self) -> tuple[PlacementStep, ...]:
        """Return every window that AutoPlacement saw, and what it decided."""
        return tuple(self.policy_runner.timeline) if self.policy_runner is not None else ()
