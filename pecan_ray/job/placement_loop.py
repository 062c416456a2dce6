"""AutoPlacement on a job: what trainers measure goes in, numbers of workers come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pecan_ray.job.comparing import measured, usable
from pecan_ray.job.fleet import Fleet, FleetWorker
from pecan_ray.job.kept_share import KeptShare
from pecan_ray.job.messages import Placement, PlacingNow
from pecan_ray.job.observed import Observed
from pecan_ray.job.pacing import Pacing
from pecan_ray.job.placing import TRIES_BOTH_SIDES, PlacementStep, Placing, begin
from pecan_ray.job.room import Room
from pecan_ray.job.sharing import PoolBid
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.windows import StepTotals
from pecan_ray.options import AutoWorkers, Workers
from pecan_ray.placement import Objective, Prices
from pecan_ray.placement.pool import Demand, Worth, indispensable
from pecan_ray.plan.windows import Deployment


@dataclass
class PlacementLoop:
    """Asks the policy whenever a window has ended; without one the numbers are fixed."""

    spec: JobSpec
    began: float
    placing: Placing | None = None
    deployments: list[tuple[float, Deployment]] = field(default_factory=list)
    """What ran from when on."""
    fixed: Workers | None = None
    """The numbers that a trainer has asked for while the job ran."""
    fast_removal: bool = False
    pacing: Pacing | None = None
    """Of a job with a deadline."""
    observed: Observed | None = None
    """What is measured where nobody decides."""
    row_s: float | None = None
    """Seconds of one thread for a row of a batch, by AutoOrder's sample."""
    op_seconds: tuple[tuple[str, float], ...] = ()
    """Seconds of each operator for an element, by the same: what input costs is dealt to them by these."""
    kept: KeptShare = field(default_factory=KeptShare)
    """What caches spare the workers."""

    def begin(self, hosts: dict[str, float], remote_cpus: tuple[float, ...]) -> Deployment:
        """Return the numbers of workers to begin with."""
        workers = self.fixed or self.spec.workers
        if self.spec.shape.one_at_a_time and not isinstance(workers, Workers):
            workers = Workers(0, 1) if workers.max_local == 0 else Workers(1, 0)
        if isinstance(workers, Workers):
            self.observed = Observed(self.spec.shape.world_size)
            return Deployment(workers.local, workers.remote)
        if self.spec.deadline_s is not None and self.spec.shape.epochs is not None:
            self.pacing = Pacing(self.spec.deadline_s, self.spec.shape.epochs, self.spec.epoch_batches)
        shape, room = self.spec.shape, Room(tuple(hosts.values()), remote_cpus)
        self.placing = begin(workers, room, self.spec.cpus_per_worker, shape.visitation, shape.world_size)
        self.sampled(self.row_s)
        return self.placing.policy.start

    def sampled(self, row_s: float | None) -> None:
        """Note how long one thread takes for a row of a batch, by a sample; None: nothing was measured."""
        self.row_s = row_s
        rows = self.spec.shape.batch_size
        if row_s and rows and self.placing is not None and self.placing.policy.mode == "auto":
            self.placing.batch_s = row_s * rows / max(1.0, self.spec.cpus_per_worker)

    @property
    def decides(self) -> bool:
        """Whether AutoPlacement decides about the numbers of workers."""
        return self.placing is not None and not self.placing.stopped

    @property
    def now(self) -> PlacingNow:
        """What AutoPlacement does about the workers that are wanted."""
        if self.placing is None or self.placing.stopped:
            return ""
        return "keeps" if self.placing.policy.converged else "measures"

    def fix(self, workers: Workers) -> bool:
        """Let a trainer decide from now on; tell whether AutoPlacement did until now."""
        self.fixed, self.fast_removal = workers, False
        if self.placing is None or self.placing.stopped:
            return False
        self.placing.stopped = True
        self.observed = Observed(self.spec.shape.world_size)
        return True

    @property
    def prices(self) -> Prices | None:
        """What the user has said that things cost; None: nothing."""
        workers = self.spec.workers
        return workers.prices if isinstance(workers, AutoWorkers) else None

    def take_said(self) -> list[str]:
        """Return what must be told about a deadline, each thing once."""
        return self.pacing.take_said() if self.pacing is not None else []

    def reported(self, rank: int, totals: StepTotals, now: float) -> None:
        """Take over what a trainer has measured."""
        if self.pacing is not None:
            self.pacing.report(rank, totals, now - self.began)
        if self.observed is not None:
            self.observed.report(rank, totals)
        if self.placing is not None:
            self.placing.report(rank, totals)

    def shares_nodes(self, placement: Placement) -> bool:
        """Tell whether a share may bound its workers: where AutoPlacement decides, and the user has set no bound."""
        workers = self.spec.workers
        return self.decides and isinstance(workers, AutoWorkers) and getattr(workers, f"max_{placement}") is None

    def bids(self, fleet: Fleet, nodes: Mapping[Placement, tuple[str, ...]]) -> tuple[PoolBid, ...]:
        """Return what the job bids for workers; it needs those that it has where no share may bound them."""
        found = []
        for placement, where in nodes.items():
            holds = sum(w.placement == placement and bool(w.node) for w in fleet.workers.values())
            worth, least = self._worth(placement) if self.shares_nodes(placement) else (Worth(), holds)
            cpus = self.spec.cpus_per_worker
            demand = Demand(self.spec.name, worth.savings, holds, least, cpus, worth.slowness)
            if where and demand.wants:
                found.append(PoolBid(placement, where, demand))
        return tuple(found)

    def _worth(self, placement: Placement) -> tuple[Worth, int]:
        """Return what the first, second ... worker is worth, and how many the job cannot do without."""
        placing = self.placing
        assert placing is not None
        readings, here = list(measured(usable(placing.timeline)).values()), placing.target
        if not readings:
            return Worth(), getattr(here, placement)  # what it began with
        least = max(indispensable(readings, here, placement), getattr(placing.policy.limits, f"min_{placement}"))
        return placing.policy.worth(readings, here, placement), least

    def restrict(self, shares: Mapping[Placement, int | None], fleet: Fleet) -> Deployment | None:
        """Keep to shares of nodes; return what must run then at most, if that is less than what is wanted.

        The only worker moves to the other side once trainers have something from it: else shares that change faster
        than one element is done would move it again and again, and one that hangs would not be noticed.  Where each
        worker gives all data it stays, since another one begins the epoch anew.
        """
        if self.placing is None or self.placing.stopped:
            return None
        wanted, kept = self.placing.target, dict(shares)
        if wanted.workers == 1:
            side: Placement = "local" if wanted.local else "remote"
            here = [one for one in fleet.workers.values() if one.placement == side and not one.draining]
            moves = self.spec.shape.sharding != "off" and any(one.delivered.batches for one in here)
            if kept.get(side) == 0 and not moves:
                kept[side] = 1
        limits = self.placing.policy.restrict(kept.get("local"), kept.get("remote"))
        fewer = limits.clamp(wanted.local, wanted.remote)
        if fewer == wanted:
            return None
        self.placing.target = fewer
        return fewer

    def touched(self) -> None:
        """Note that what is measured now belongs to no deployment."""
        for one in (self.placing, self.observed):
            if one is not None:
                one.meter.touch()

    def changed(self, fleet: Fleet, now: float) -> None:
        """Note that workers came or went."""
        self.deployments.append((now - self.began, fleet.running(draining=True)))
        self.touched()

    def decide(self, fleet: Fleet, now: float, *, closing: bool, epochs: float = 0.0) -> PlacementStep | None:
        """Return a decision if a window has ended; `closing`: an epoch ends; `epochs`: so many are done."""
        placing = self.placing
        if self.observed is not None and self.observed.due(closing=closing):
            draining = any(worker.draining for worker in fleet.workers.values())
            self.observed.look(fleet.running(), now - self.began, closing=closing, draining=draining)
        if placing is None:
            return None
        if closing:
            placing.meter.disturb()
        if not placing.due():  # with every report: workers are counted only where somebody wants to know
            return None if placing.batch_s is None else placing.warm_start(fleet.running(), now - self.began)
        # A window in which workers began or ended to drain was touched by that.
        if any(worker.draining for worker in fleet.workers.values()):
            placing.meter.drain()
        longest_s = self.pacing.longest_s(now - self.began, epochs) if self.pacing is not None else None
        if longest_s is not None:
            placing.policy.aim(Objective(longest_s=longest_s))
        told = (worker.told for worker in (*fleet.past.values(), *fleet.workers.values()))
        awaited = self._awaited(placing, fleet, now)
        return placing.decide(fleet.running(), now - self.began, awaited, lambda: self.kept.lately(told))

    @staticmethod
    def _awaited(placing: Placing, fleet: Fleet, now: float) -> int:
        """Count the workers that were requested and may still come."""
        coming = [worker for worker in fleet.workers.values() if not worker.running and not worker.draining]
        return sum(bool(w.node) or now - w.requested < placing.patience(w.placement) for w in coming)

    def other_side(self, waiting: FleetWorker, fleet: Fleet) -> str | None:
        """Return the host ("" for remote) on which to try as well, where a job has not a single worker."""
        placing = self.placing
        others = any(w.running or w.host != waiting.host for w in fleet.workers.values() if not w.draining)
        if placing is None or placing.stopped or others or placing.policy.mode not in TRIES_BOTH_SIDES:
            return None
        host = "" if waiting.host else next(iter(fleet.hosts))
        limits = placing.policy.limits
        return host if (limits.max_local if host else limits.max_remote) > 0 else None

    def timeline(self) -> tuple[PlacementStep, ...]:
        """Return every window that AutoPlacement saw, and what it decided."""
        return tuple(self.placing.timeline) if self.placing is not None else ()
