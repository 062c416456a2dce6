"""Looks at a job for the placement controller: sums that trainers and workers tell become an observation.

Trainers measure rows, steps, waits (the one that is not over included) and what their processes use of their nodes;
workers measure the rows that they make, their time with work, and in which part of it finished batches were not taken.
All of them tell sums since they began, so that a report that is lost costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pecan_ray.job.messages import TrainerProgress
from pecan_ray.job.worker_table import WorkerRecord, WorkerTable
from pecan_ray.placement.looks import LOOK_S, Observation
from pecan_ray.plan.stage_seconds import StageSeconds
from pecan_ray.plan.windows import Deployment

TICK_S = LOOK_S / 2
"""Between two looks: two of them are the shortest stretch that a verdict rests on."""
WORKER_BYTES = 600 << 20
"""Memory that must be left for a worker: 300 MB for Python with NumPy, a decoder and batches, and as much again for the
trainer's first steps and the page cache."""


@dataclass(frozen=True)
class JobSums:
    """What trainers and workers have told since the job began."""

    elapsed_s: float
    """Of each trainer, on average."""
    waited_s: tuple[float, ...]
    """Of each trainer."""
    rows: int
    batches: int
    """Of the trainer that has most."""
    produced: tuple[int, int]
    """Rows of local and of remote workers."""
    observed_s: tuple[float, float]
    """Seconds of local and of remote workers with work."""
    blocked_s: tuple[float, float]
    """Of `observed_s`, those in which finished batches were not taken."""
    trainer_cpu_s: float
    in_line_s: float | None

    @classmethod
    def of(cls, trainers: Sequence[TrainerProgress], workers: Iterable[WorkerRecord]) -> JobSums:
        """Add up what was told."""
        made, watched, blocked = [0, 0], [0.0, 0.0], [0.0, 0.0]
        for worker in workers:
            side = int(worker.placement == "remote")
            made[side] += worker.own_progress.elements
            watched[side] += worker.own_progress.stages.observed_s
            blocked[side] += worker.own_progress.stages.blocked_s
        hosts = [one.host for one in trainers if one.host is not None]
        in_line = [one.in_line_s for one in hosts if one.in_line_s is not None]
        return cls(
            elapsed_s=sum(one.elapsed_s for one in trainers) / len(trainers),
            waited_s=tuple(one.waited_s for one in trainers),
            rows=sum(one.rows for one in trainers),
            batches=max(one.yielded for one in trainers),
            produced=(made[0], made[1]),
            observed_s=(watched[0], watched[1]),
            blocked_s=(blocked[0], blocked[1]),
            trainer_cpu_s=sum(one.cpu_s for one in hosts),
            # The trainer that stands longest in line holds up the others; one that cannot tell may be that one.
            in_line_s=max(in_line) if len(in_line) == len(trainers) else None,
        )


# Why the wait and the load, and no windows: docs/decisions/placement.md#126-steer-by-the-load
@dataclass
class JobSampler:
    """Looks at a job about twice a second."""

    trainers: int
    batch: int | None
    """Rows of a batch; None: batches differ."""
    row_s: float | None = None
    """Seconds of one thread for a row, by a sample."""
    before: JobSums | None = None
    first: JobSums | None = None
    taken_at_s: float = 0.0
    """When a trainer took a batch last, by its own clock."""
    starts_s: list[float] = field(default_factory=list)
    """How long the last remote workers took to start."""
    wait: float = 0.0
    """Share of the time in which a trainer waited, in the last look."""

    def look(
        self, trainers: Sequence[TrainerProgress], worker_table: WorkerTable, asked: Deployment
    ) -> Observation | None:
        """Return what has happened since the last look; None: that is too short ago, or not all trainers are there."""
        if len(trainers) < self.trainers:
            return None
        # With the workers that are gone, because their rows stay in the trainers' sums.
        sums = JobSums.of(trainers, (*worker_table.past.values(), *worker_table.workers.values()))
        before = self.before
        if before is None:
            self.before = self.first = sums
            self.taken_at_s = sums.elapsed_s
            return None
        dt = sums.elapsed_s - before.elapsed_s
        if dt < 0:  # another process is the trainer now
            self.before, self.taken_at_s = sums, sums.elapsed_s
        # Times are floats: a look that comes exactly in time must not be skipped for its last bit.
        if dt < TICK_S - 1e-6:
            return None
        self.before = sums
        if sums.batches > before.batches:
            self.taken_at_s = sums.elapsed_s
        # Of trainers in step, only the one that waits longest waits for no other trainer (`lockstep`).
        waited = max(_subtract(sums.waited_s, before.waited_s))
        self.wait = min(1.0, waited / dt)
        seen = [worker.own_progress.stages for worker in worker_table.workers.values() if worker.running]
        watched = _subtract(sums.observed_s, before.observed_s)
        blocked = _subtract(sums.blocked_s, before.blocked_s)
        return Observation(
            dt=dt,
            running=worker_table.running(),
            requested=asked,
            room=asked,
            waited=min(dt, waited),
            rows=sums.rows - before.rows,
            steps=sums.batches - before.batches,
            since_taken=sums.elapsed_s - self.taken_at_s,
            produced=(sums.produced[0] - before.produced[0], sums.produced[1] - before.produced[1]),
            work_done=(max(0.0, watched[0] - blocked[0]), max(0.0, watched[1] - blocked[1])),
            blocked=(max(0.0, blocked[0]), max(0.0, blocked[1])),
            busy_waiting=_busy_waiting(self.wait, sum(watched), sum(blocked)),
            own_s=self._own_s(seen, worker_table),
            threads=(_threads(worker_table, "local"), _threads(worker_table, "remote")),
            lag=_lag(sums, before, dt - waited),
            start_remote_s=sum(self.starts_s) / len(self.starts_s) if self.starts_s else 0.0,
            grain=self.batch or sums.rows / max(1, sums.batches * self.trainers),
            paid=worker_table.remote_prices(),
            remote_row_bytes=_remote_row_bytes(worker_table),
        )

    def _own_s(self, seen: Sequence[StageSeconds], worker_table: WorkerTable) -> float | None:
        """Return the seconds of a row alone: CPU time now, or what a sample saw, waiting included; None without one."""
        if self.row_s is None:
            return None
        rows = sum(worker.own_progress.elements for worker in worker_table.workers.values() if worker.running)
        return max(self.row_s, sum(one.cpu_s for one in seen) / rows if rows else 0.0)

    def trainer_cpus(self) -> float:
        """Return the CPUs that all trainers together have used so far."""
        first, last = self.first, self.before
        if first is None or last is None or last.elapsed_s - first.elapsed_s < LOOK_S or not last.trainer_cpu_s:
            return float(self.trainers)  # a training loop takes a CPU
        return (last.trainer_cpu_s - first.trainer_cpu_s) / (last.elapsed_s - first.elapsed_s)

    def room(self, trainers: Sequence[TrainerProgress], worker_table: WorkerTable, cpus_per_worker: float) -> int:
        """Return how many local workers the CPUs and the memory of the trainers' nodes hold.

        A quota bounds CPU seconds and not workers: those that sleep use little of it.
        """
        hosts = [one.host for one in trainers if one.host is not None]
        slots = sum(int(cpus / cpus_per_worker) for cpus in worker_table.hosts.values())
        nodes, usable = len(worker_table.hosts), available_cpus(trainers, worker_table)
        local = [one for one in worker_table.workers.values() if one.placement == "local" and one.running]
        each = _cpus_each(local, cpus_per_worker)
        # Workers that sleep use next to no CPU: twenty for each reserved one, so that their number is finite.
        by_cpu = round((usable - self.trainer_cpus()) / max(each, 0.05 * cpus_per_worker))
        memory = [one.memory_bytes for one in hosts if one.memory_bytes is not None]
        # Of free memory the running workers' share is taken out already; the node with the least bounds all.
        by_memory = len(local) + int(min(memory) / WORKER_BYTES) * nodes if memory else slots
        return max(1, min(slots, by_cpu, by_memory))

    def started(self, seconds: float) -> None:
        """Note how long a remote worker took from the request to its first work."""
        self.starts_s = [*self.starts_s[-9:], seconds]


def _subtract(now: Sequence[float], then: Sequence[float]) -> list[float]:
    return [later - earlier for later, earlier in zip(now, then, strict=True)]


def _cpus_each(workers: Sequence[WorkerRecord], reserved: float) -> float:
    """Return the CPUs that each of these workers has used while it was at work; those reserved if that is not known."""
    at_work_s = sum(one.own_progress.stages.observed_s - one.own_progress.stages.blocked_s for one in workers)
    # With a longer look, functions that sleep would have too few workers for that time.
    return sum(one.own_progress.stages.cpu_s for one in workers) / at_work_s if at_work_s >= TICK_S else reserved


def available_cpus(trainers: Iterable[TrainerProgress], worker_table: WorkerTable) -> float:
    """Return the CPUs of the trainers' nodes that their processes may use; Ray's count of them where none has said."""
    told = [one.host.cpus for one in trainers if one.host is not None and one.host.cpus is not None]
    return min(told) * len(worker_table.hosts) if told else sum(worker_table.hosts.values())


def _remote_row_bytes(worker_table: WorkerTable) -> float:
    """Return the bytes of a row as remote workers have sent it; 0 where none has come."""
    # Those that are gone only without others: workers that run may have another cut by now.
    for table in (worker_table.workers, worker_table.past):
        seen = [one.delivered for one in table.values() if one.placement == "remote"]
        if rows := sum(one.elements for one in seen):
            return sum(one.sent_bytes for one in seen) / rows
    return 0.0


def _threads(worker_table: WorkerTable, placement: str) -> float:
    """Return the threads of a worker of a side, one where none was seen."""
    stages = [
        one.own_progress.stages for one in worker_table.workers.values() if one.running and one.placement == placement
    ]
    watched = sum(one.observed_s for one in stages)
    return max(1.0, sum(one.threads_s for one in stages) / watched) if watched > 0 else 1.0


def _busy_waiting(wait: float, watched_s: float, blocked_s: float) -> float | None:
    """Return the share of the workers that had no finished batch while the trainer waited, at most; None: unknown.

    What they were held back beyond the time in which it did not wait, they were while it waited: for an order, for one
    of them that is late, or for the transport.
    """
    if wait <= 0 or watched_s <= 0:
        return None
    return 1.0 - min(1.0, max(0.0, blocked_s / watched_s - (1 - wait)) / wait)


def _lag(sums: JobSums, before: JobSums, own_s: float) -> float | None:
    """Return the share of the trainer's own time in which its thread stood in line for a CPU."""
    if sums.in_line_s is None or before.in_line_s is None:
        return None
    # Over a shorter time of its own the share would be chance.
    return min(1.0, (sums.in_line_s - before.in_line_s) / own_s) if own_s > 0.1 * TICK_S else 0.0
