"""The workers of a job: wanted, requested, running, draining and lost ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace

from pecan_ray.job.active_clock import LONGEST_GAP_S, TICK_S
from pecan_ray.job.events import LossCause, WorkerPending
from pecan_ray.job.hearing import LEAST_COUNTED, Hearing
from pecan_ray.job.instructions import DrainWorker, Instruction, KillWorker, LeaveEpochs, SilentWorker
from pecan_ray.job.losses import Losses
from pecan_ray.job.messages import Placement, ReceivedBatches, WorkerProgress
from pecan_ray.job.room import StorageLimits
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.placement.spread import spread_by_power
from pecan_ray.plan.windows import Deployment

LOOKS = 8
"""A worker that is late to speak is looked at so often within its deadline, which is after half of it for the first
time."""
LEAST_POWER = 1e-3
"""CPUs of a trainer's node that has none for Ray: it gets local workers last."""


STARTS_WITHIN_S = 30.0
"""A process that may have CPUs starts within so long, on a slow machine or from a cold disk; else others have them."""


@dataclass(frozen=True)
class DeliveredTotals:
    """What trainers have received from a worker."""

    elements: int = 0
    batches: int = 0
    sent_bytes: int = 0
    """As they travelled: before the operators that are left to the trainer."""


@dataclass(frozen=True)
class EndNotice:
    """An announcement that a worker's process will be ended from outside."""

    at: float
    to_process: bool = False
    """It came to the process itself (SIGTERM), and not to all of its node."""


@dataclass(frozen=True)
class PendingStart:
    """Why a worker's process does not run yet, as was said last."""

    reason: str = ""
    starting: bool = False
    """It has a place, or may have one, and is being started."""


@dataclass(frozen=True)
class WorkerPlace:
    """Where a worker runs."""

    node: str = ""
    """Empty as long as it has not found a place."""
    pid: int = 0
    price: float | None = None
    """$ per hour of a worker there; None: not known."""


@dataclass
class WorkerRecord:
    """A worker as the job sees it."""

    name: str
    placement: Placement
    host: str
    """The trainer's node that it was started for; empty for remote workers."""
    requested: float
    """When the worker was asked for."""
    reserved: bool = True
    """Whether CPUs are reserved for it."""
    place: WorkerPlace = WorkerPlace()
    running: bool = False
    draining: bool = False
    notice: EndNotice | None = None
    """None: nothing was announced."""
    hearing: Hearing = field(default_factory=Hearing)
    """When it told something last, and what is known of the time since."""
    pending: PendingStart = PendingStart()
    accelerator: bool = False
    """It leaves images to the trainer's accelerator."""
    own_progress: WorkerProgress = field(default_factory=WorkerProgress)
    """What the worker has told of itself."""
    delivered: DeliveredTotals = DeliveredTotals()
    """What trainers have received from it."""

    @property
    def node(self) -> str:
        """Where it runs; empty as long as it has not found a place."""
        return self.place.node

    @property
    def price(self) -> float | None:
        """$ per hour of a worker there; None: not known."""
        return self.place.price

    def is_starting(self, event: WorkerPending, now: float) -> bool:
        """Note why its process does not run yet; return whether it has a place, or may have one."""
        perhaps = event.has_place == "perhaps" and now - self.requested < STARTS_WITHIN_S
        self.pending = PendingStart(event.reason, event.has_place == "yes" or perhaps)
        return self.pending.starting

    @property
    def progress(self) -> WorkerProgress:
        """What it has done so far, as far as is known."""
        # Workers tell every ten seconds, trainers several times a second: whoever knows more is right.
        told, delivered = self.own_progress, self.delivered
        return replace(
            told,
            elements=max(told.elements, delivered.elements),
            batches=max(told.batches, delivered.batches),
        )


class WorkerTable:
    """Wanted, requested and running workers."""

    def __init__(
        self, job: str, cpus_per_worker: float = 1.0, remote_io: float | None = None, *, accelerator: bool = False
    ) -> None:
        self._job, self._cpus_per_worker = job, cpus_per_worker
        self.limits = StorageLimits(remote_io)
        self.workers: dict[str, WorkerRecord] = {}
        self.past: dict[str, WorkerRecord] = {}
        self.changes = 0
        """Grows whenever a worker begins to run, or is gone."""
        self.losses = Losses()
        self.target = Deployment(0, 0)
        self.accelerator = accelerator
        """Workers that are started leave images to the trainer's accelerator."""
        self.hosts: dict[str, float] = {}
        """The trainers' nodes and their CPUs."""
        self.draining_nodes: dict[str, float] = {}
        """Nodes that will be taken away, as was announced, and when."""
        self.taken_out: Counter[str] = Counter()
        """Workers that are not replaced since the last number was set, by trainer's node ("": remote ones)."""
        self._shares: dict[str, int] = {}
        """Local workers that are wanted on each of them."""
        self._created = {"local": 0, "remote": 0}

    def scale(self, target: Deployment, now: float) -> list[Instruction]:
        """Set the numbers of workers: request what lacks, and drain what is too many once that has come."""
        self.target = target
        # Decision 98: a worker that could open nothing is not replaced before somebody sets the numbers anew.
        self.taken_out.clear()
        power = [max(cpus, LEAST_POWER) for cpus in self.hosts.values()]
        self._shares = dict(zip(self.hosts, spread_by_power(target.local, power), strict=True)) if power else {}
        return self.fill(now)

    def fill(self, now: float) -> list[Instruction]:
        """Request what lacks, but for nodes that are about to go; nothing as long as losses are waited out."""
        if not self.losses.may_start(now):
            return []
        not_draining = self._not_draining_by_host()
        done: list[Instruction] = []
        for host, count in self._target_by_host():
            # Decision 45: Ray places nothing on a node that is about to go.
            for _ in range(0 if host in self.draining_nodes else count - len(not_draining.get(host, ()))):
                done.append(self.request(host, now))
        return done

    def _target_by_host(self) -> list[tuple[str, int]]:
        wanted = [*self._shares.items(), ("", self.target.remote)]
        return [(host, max(0, count - self.taken_out[host])) for host, count in wanted]

    def _not_draining_by_host(self) -> dict[str, list[WorkerRecord]]:
        """Return the workers of each trainer's node, and the remote ones (host "").

        First come those that run, the cheapest first, so that the dearest are drained first.
        """
        not_draining: dict[str, list[WorkerRecord]] = {}
        for worker in sorted(self.workers.values(), key=lambda worker: (not worker.running, worker.price or 0.0)):
            # Decision 45: a worker that will be ended does not count, so another one is asked for at once.
            if not worker.draining and worker.notice is None:
                not_draining.setdefault(worker.host, []).append(worker)
        return not_draining

    def too_many(self) -> list[WorkerRecord]:
        """Return the workers to drain; those that run only when none is awaited, or a job might have none."""
        not_draining = self._not_draining_by_host()
        surplus = [worker for host, count in self._target_by_host() for worker in not_draining.get(host, [])[count:]]
        surplus += [one for one in self.workers.values() if one.notice is not None and not one.draining]
        if all(worker.running or worker.draining for worker in self.workers.values()):
            return surplus
        return [worker for worker in surplus if not worker.running]

    def request(self, host: str, now: float, *, reserve: bool = True) -> StartWorker:
        """Request a worker on a trainer's node, or a remote one (host ""); `reserve`: CPUs, where it has enough."""
        placement: Placement = "local" if host else "remote"
        # Numbers are never used again, because late messages about a lost worker go by its name.
        name = f"pecan:{self._job}:{placement}-{self._created[placement]}"
        self._created[placement] += 1
        # A node that has too few CPUs for one worker in all would never give it a place.
        fits = self.hosts.get(host, self._cpus_per_worker) >= self._cpus_per_worker
        self.workers[name] = worker = WorkerRecord(
            name, placement, host, now, reserve and fits, accelerator=self.accelerator
        )
        return self.start(worker)

    def too_few_cpus(self) -> list[str]:
        """Return what to say of the trainers' nodes that have too few CPUs for a worker; a head node often has none."""
        return [
            f"node {host} has {cpus:g} CPU(s) for Ray, and a worker takes {self._cpus_per_worker:g} "
            "(Config(cpus_per_worker=...)): local workers run there without CPUs of their own"
            for host, cpus in self.hosts.items()
            if cpus < self._cpus_per_worker
        ]

    def start(self, worker: WorkerRecord) -> StartWorker:
        """Have a worker started that was requested."""
        sharing = max(1, self._shares.get(worker.host, 1))
        # Decision 51: it starts with the share that it has when all run, so that it never reads without a bound.
        quota = self.limits.remote_io
        share = None if quota is None else quota / max(1, self.target.workers)
        place = worker.name, worker.placement, worker.host, sharing, worker.reserved
        refused = self.losses.cut_refused
        return StartWorker(*place, share, self.limits.cache_limits, refused, worker.accelerator)

    def note_running(self, worker: WorkerRecord, now: float) -> None:
        """Note that a worker runs."""
        # Remote reads are shared anew, and silence counts, from here on.
        worker.running, worker.hearing = True, worker.hearing.heard(now)
        self.changes += 1

    def drain(self, worker: WorkerRecord) -> Instruction:
        """Let a worker go: at once if it does not run."""
        worker.draining = True
        if not worker.running:
            self.remove(worker.name)
            return KillWorker(worker.name)
        return DrainWorker(worker.name)

    def leave_epochs(self, *, before: int) -> list[Instruction]:
        """Let the workers drop what they have of epochs before one; those that drain have nothing under way."""
        return [LeaveEpochs(one.name, before) for one in self.workers.values() if one.running and not one.draining]

    def remove(self, name: str) -> None:
        """Take a worker off the job."""
        worker = self.workers.pop(name, None)
        self.changes += 1
        # Sums since the job began (the report, speeds, placement) hold what it has told.
        if worker is not None and worker.running:
            self.past[name] = worker

    def needs_worker(self, host: str) -> bool:
        """Tell whether fewer workers are requested or run for a host than are wanted."""
        if host in self.draining_nodes:
            return False  # nothing can be started there any more
        return len(self._not_draining_by_host().get(host, ())) < dict(self._target_by_host()).get(host, 0)

    def running(self, *, draining: bool = False) -> Deployment:
        """Count the workers that run; `draining`: with those that are about to go."""
        here = [w.placement for w in self.workers.values() if w.running and (draining or not w.draining)]
        return Deployment(here.count("local"), here.count("remote"))

    def uses_accelerator(self) -> bool:
        """Tell whether all workers that run, and are not about to go, leave images to the trainer's accelerator."""
        here = [one.accelerator for one in self.workers.values() if one.running and not one.draining]
        return all(here) if here else self.accelerator

    def remote_prices(self) -> tuple[float, ...]:
        """Return $ per hour of each remote worker that runs, and is not about to go, as far as it is known."""
        here = [one for one in self.workers.values() if one.running and not one.draining and one.placement == "remote"]
        return tuple(one.price for one in here if one.price is not None)

    def remote_per_hour(self) -> float | None:
        """Return $ per hour of the remote workers that run, also of those that drain; None: not known of all."""
        here = [worker.price for worker in self.workers.values() if worker.running and worker.placement == "remote"]
        prices = [price for price in here if price is not None]
        return sum(prices) if len(prices) == len(here) else None

    def has_none(self, besides: WorkerRecord) -> bool:
        """Tell whether no worker beside one has found a place, or is bound to find one."""
        others = (worker for worker in self.workers.values() if worker is not besides and not worker.draining)
        return not any(worker.node or not worker.reserved for worker in others)

    def deliver(self, ack: ReceivedBatches) -> bool:
        """Note what a worker has done; return whether these were its first batches."""
        self.losses.delivered()
        worker = self._known(ack.worker)
        if worker is None:
            return False
        before = worker.delivered
        worker.delivered = replace(before, elements=before.elements + ack.rows, batches=before.batches + ack.batches)
        return not before.batches

    def note_sent(self, name: str, nbytes: int) -> None:
        """Note that so many bytes of a worker have reached a trainer."""
        if (worker := self._known(name)) is not None:
            worker.delivered = replace(worker.delivered, sent_bytes=worker.delivered.sent_bytes + nbytes)

    def _known(self, name: str) -> WorkerRecord | None:
        # Reports of trainers may come after the worker is gone.
        return self.workers.get(name) or self.past.get(name)

    def timed_out(self, now: float, timeout_s: float) -> list[str]:
        """Return the workers that have a process and have not been heard for longer than a deadline."""
        # From the moment at which a worker has a process: it may freeze while it is being set up.
        lost = [w for w in self.workers.values() if w.node and w.hearing.is_lost(now, timeout_s)]
        # Decision 224: a controller that starves beside its workers may come to look only when the deadline is over.
        within_s = max(timeout_s / 2, LONGEST_GAP_S + TICK_S)
        return [w.name for w in lost if w.hearing.ended or w.hearing.was_looked_at(now, within_s)]

    def to_look_for(self, now: float, timeout_s: float) -> tuple[SilentWorker, ...]:
        """Return the workers that are late to speak, of which somebody should find out whether they get a CPU."""
        quiet = [
            self.workers[name]
            for name in self._quiet(now, timeout_s)
            if self.workers[name].hearing.should_look(now, timeout_s / LOOKS)
        ]
        looks = tuple(SilentWorker(one.name, one.node, one.place.pid, one.hearing.was_asked) for one in quiet)
        for worker in quiet:
            worker.hearing = worker.hearing.asked(now)
        return looks

    def _quiet(self, now: float, timeout_s: float) -> list[str]:
        """Return the workers that have said nothing for half of the deadline: one that works speaks twice meanwhile."""
        return [w.name for w in self.workers.values() if w.node and now - w.hearing.last_seen > timeout_s / 2]

    def waiting_for(self, now: float, lost_after_s: float) -> dict[Hashable, str]:
        """Return what workers wait for, what they have been doing for long, and who has said nothing for long."""
        waits = pending_workers_by_reason(self.workers.values())
        for key, worker in self._stuck().items():
            waits[key] = f"{worker.name}: {worker.own_progress.stuck}"
        for name in self._quiet(now, lost_after_s):
            waits["unheard", name] = _unheard(self.workers[name], lost_after_s)
        if text := self.losses.waiting():
            waits["losses"] = text
        if not self.workers and self.target.workers == 0 and self.hosts:
            waits["none"] = "no worker is wanted"
        leaving = [host for host in self.hosts if host in self.draining_nodes]
        if leaving and not self.workers:
            waits["leaving"] = f"no worker is started on node {', '.join(leaving)}, which is about to be taken away"
        return waits

    def waited_since(self) -> dict[Hashable, float]:
        """Return since when workers have been doing what they have been doing for long, or have said nothing."""
        since = {key: worker.hearing.last_seen - worker.own_progress.stuck_s for key, worker in self._stuck().items()}
        if (first := self.losses.waiting_since()) is not None:
            since["losses"] = first
        for one in self.workers.values():
            since["unheard", one.name] = one.hearing.last_seen
            if one.pending.reason and not one.node and not one.draining:
                key = "place", one.placement, one.pending.reason
                since[key] = min(one.requested, since.get(key, one.requested))
        return since

    def _stuck(self) -> dict[Hashable, WorkerRecord]:
        workers = self.workers.values()
        return {
            ("stuck", worker.name, worker.own_progress.stuck): worker for worker in workers if worker.own_progress.stuck
        }


def pending_workers_by_reason(workers: Iterable[WorkerRecord]) -> dict[Hashable, str]:
    """Return for what reasons workers have no node yet, with how many of them."""
    reasons: dict[tuple[str, bool, str], list[str]] = {}
    for worker in workers:
        if worker.pending.reason and not worker.node and not worker.draining:
            reasons.setdefault((worker.placement, worker.pending.starting, worker.pending.reason), []).append(
                worker.name
            )
    waits: dict[Hashable, str] = {}
    for (placement, starting, reason), names in reasons.items():
        more = f" and {len(names) - 1} more {placement} worker(s)" if len(names) > 1 else ""
        what = "start(s) for {seconds}" if starting else "wait(s) for a place"
        waits["place", placement, reason] = f"{names[0]}{more} {what}: {reason}"
    return waits


def silence_of(worker: WorkerRecord, now: float) -> tuple[LossCause, str]:
    """Return as what the silence of a worker counts that is lost, and how it is told."""
    text = f"it has said nothing for {now - worker.hearing.last_seen:.0f} s"
    if worker.hearing.had_cpu:
        return "silent", text
    if share := worker.hearing.starved_share:
        return "unheard", f"{text}, for {100 * share:.0f} % of which it stood in line for a CPU"
    return "unheard", f"{text}, and nobody can tell whether it had a CPU"


def _unheard(worker: WorkerRecord, lost_after_s: float) -> str:
    """Say why a worker may have said nothing for long, and what follows."""
    if (share := worker.hearing.starved_share) > 1 / LOOKS:
        return (
            f"{worker.name} has said nothing for {{seconds}}: other programs have the CPUs of its node, for one of "
            f"which it stands in line for {100 * share:.0f} % of the time; it is waited for as long as it does, up to "
            f"{lost_after_s / LEAST_COUNTED:.0f} s"
        )
    return (
        f"{worker.name} has said nothing for {{seconds}}: native code holds its GIL, its process stands still, or its "
        f"node cannot be reached; after {lost_after_s:.0f} s it is taken for lost"
    )
