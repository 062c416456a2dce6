"""Many jobs on one cluster that share its GPUs, its cache, and its pipe to remote storage, as fluids.

Between two events (a job comes, ends, or begins an epoch) every job reads at a constant speed.  At each event the very
policies of `pecan_ray.cache`, or those that they are compared with, divide cache and pipe anew.  What a job reads from
remote storage is kept as far as its part of the cache goes, and is found from its next epoch on; of a cache that is
cut, what is dropped is drawn by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.reproduction.cache_policies import POLICIES, ComparedPolicy
from pecan_ray.cache import ClusterResources
from pecan_ray.cache.allocation import sjf_scores
from pecan_ray.cache.checked import checked_amount, checked_count
from pecan_ray.cache.division import Demands, Division
from pecan_ray.cache.pipe import evenly
from pecan_ray.cache.store_model import Numbers
from pecan_ray.errors import PlanError

Places: TypeAlias = NDArray[np.intp]
GpuSchedule: TypeAlias = Literal["fifo", "sjf", "gavel"]
"""Who gets GPUs: in the order in which they came, the shortest first, or all at once a fair part of the time."""
SILOD: dict[GpuSchedule, ComparedPolicy] = {"fifo": "greedy", "sjf": "sjf", "gavel": "max_min"}
"""SiloD's policy under each schedule."""
SAME = 1e-9
"""Shares of a job that are nothing but rounding."""


@dataclass(frozen=True)
class ReadingJob:
    """A training that reads one dataset, which no other one reads, so many times."""

    name: str
    ideal_bytes_per_s: float
    """With all its GPUs and all of its data at hand."""
    dataset_bytes: float
    epochs: float
    gpus: int = 1
    starts_s: float = 0.0

    def __post_init__(self) -> None:
        for field in ("ideal_bytes_per_s", "dataset_bytes", "epochs"):
            checked_amount(f"job {self.name!r}: {field}", getattr(self, field), positive=True)
        checked_amount(f"job {self.name!r}: starts_s", self.starts_s)
        checked_count(f"job {self.name!r}: gpus", self.gpus)


@dataclass(frozen=True)
class CacheMoment:
    """What the whole cluster did from a moment on."""

    seconds: float
    running: int
    bytes_per_s: float
    """That all jobs read together,"""
    ideal_bytes_per_s: float
    """that they would read if they never waited for data,"""
    remote_io: float
    """and that came from remote storage."""
    fairness: float
    """The least of the jobs' speeds over what an equal part of cache and pipe would let them read."""


@dataclass(frozen=True)
class CacheRun:
    """What became of the jobs."""

    ended_s: dict[str, float]
    completion_s: dict[str, float]
    """From a job's arrival to its end."""
    timeline: tuple[CacheMoment, ...]

    @property
    def mean_completion_s(self) -> float:
        """Average job completion time."""
        return sum(self.completion_s.values()) / len(self.completion_s)

    @property
    def fairness(self) -> float:
        """Return the mean over time of the least job's speed, in units of what an equal part would let it read."""
        ends = [moment.seconds for moment in self.timeline[1:]] + [self.makespan_s]
        spans = [end - moment.seconds for moment, end in zip(self.timeline, ends, strict=True)]
        return sum(span * moment.fairness for span, moment in zip(spans, self.timeline, strict=True)) / sum(spans)

    @property
    def makespan_s(self) -> float:
        """When the last job ended."""
        return max(self.ended_s.values())


def simulate_cache(
    jobs: Sequence[ReadingJob],
    cluster: ClusterResources,
    policy: ComparedPolicy,
    schedule: GpuSchedule = "fifo",
) -> CacheRun:
    """Run jobs to their end under a policy for cache and pipe, and a schedule for GPUs (without preemption)."""
    if policy not in POLICIES or schedule not in SILOD:
        raise PlanError(
            f"simulate_cache knows policies {', '.join(POLICIES)} and schedules {', '.join(SILOD)}, but got policy "
            f"{policy!r} and schedule {schedule!r}."
        )
    gpus = cluster.gpus
    if gpus is None or any(job.gpus > gpus for job in jobs):
        raise PlanError(f"simulate_cache: ClusterResources(gpus={gpus}) must hold each of the jobs.")
    return CacheClusterSimulation(jobs, cluster, policy, schedule).run()


class _Jobs:
    """What is known of the jobs, one place in each array for each."""

    def __init__(self, jobs: Sequence[ReadingJob]) -> None:
        self.names = [job.name for job in jobs]
        self.ideal = np.array([job.ideal_bytes_per_s for job in jobs])
        self.size = np.array([job.dataset_bytes for job in jobs])
        self.gpus = np.array([float(job.gpus) for job in jobs])
        self.starts = np.array([job.starts_s for job in jobs])
        self.to_read = np.array([job.epochs * job.dataset_bytes for job in jobs])


class CacheClusterSimulation:
    """The state of a run, one place in each array for each job."""

    def __init__(
        self, jobs: Sequence[ReadingJob], cluster: ClusterResources, policy: ComparedPolicy, schedule: GpuSchedule
    ) -> None:
        """Let all jobs be to come."""
        self.jobs, self.cluster, self.policy, self.schedule = _Jobs(jobs), cluster, policy, schedule
        self.left, self.epoch_left = self.jobs.to_read.copy(), self.jobs.size.copy()
        self.stored, self.found = np.zeros(len(jobs)), np.zeros(len(jobs))
        """Bytes of the dataset that are cached, and those of them that the job finds in this epoch."""
        self.epochs = np.zeros(len(jobs))
        self.running = np.zeros(len(jobs), bool)
        self.ended = np.full(len(jobs), np.inf)
        self.now_s = 0.0
        self.timeline: list[CacheMoment] = []
        self.inputs: tuple[NDArray[np.generic], ...] = ()
        self.response: Division | None = None

    def run(self) -> CacheRun:
        """Go from event to event."""
        while np.isinf(self.ended).any():
            self._start_jobs()
            mine = np.flatnonzero(self.running)
            coming = self.jobs.starts[self.jobs.starts > self.now_s]
            next_s = float(coming.min()) if coming.size else np.inf
            if not mine.size:
                self.timeline.append(CacheMoment(self.now_s, 0, 0.0, 0.0, 0.0, 1.0))
                self.now_s = next_s
                continue
            demands = self._resource_requests(mine)
            given = self._divide(mine, demands)
            self._cut(mine, given)
            given = Division(given.cache, np.minimum(given.hits, self._hits(mine)), given.io)
            speeds = demands.throughput(given.hits, given.io)
            self._note(demands, given, speeds)
            pace = np.minimum(self.left[mine], self.epoch_left[mine]) / speeds
            self._advance(mine, given, speeds, min(float(pace.min()), next_s - self.now_s))
        names = self.jobs.names
        ended = dict(zip(names, self.ended.tolist(), strict=True))
        took = dict(zip(names, (self.ended - self.jobs.starts).tolist(), strict=True))
        return CacheRun(ended, took, tuple(self.timeline))

    def _divide(self, mine: Places, demands: Demands) -> Division:
        """Ask the policy, unless it has been asked just this: an epoch that begins often changes nothing."""
        asked = (mine, demands.ideal, demands.cached, demands.remaining)
        # Only this policy asks how much a job has left, which changes with each event.
        looked_at = len(asked) if self.policy == SILOD["sjf"] else len(asked) - 1
        if self.response is None or not all(map(np.array_equal, asked[:looked_at], self.inputs)):
            self.inputs, self.response = asked, POLICIES[self.policy](demands, self.cluster)
        return self.response

    def _start_jobs(self) -> None:
        """Give free GPUs to jobs that wait; under Gavel all run, each with a part of the time."""
        waiting = np.flatnonzero((self.jobs.starts <= self.now_s) & ~self.running & np.isinf(self.ended))
        if self.schedule == "gavel":
            self.running[waiting] = True
            return
        free = float(self.cluster.gpus or 0) - float(self.jobs.gpus[self.running].sum())
        for job in self._queue(waiting):
            # Nobody overtakes: a large job would wait for ever behind small ones.
            if self.jobs.gpus[job] > free:
                break
            self.running[job] = True
            free -= self.jobs.gpus[job]

    def _queue(self, waiting: Places) -> list[int]:
        """Return who waits, in the order in which they are started."""
        if self.schedule == "fifo":
            rank = self.jobs.starts[waiting]
        elif self.policy == SILOD["sjf"]:
            rank = sjf_scores(self._resource_requests(waiting), self.cluster)
        else:
            rank = self.jobs.gpus[waiting] * self.left[waiting] / self.jobs.ideal[waiting]
        order: list[int] = waiting[np.argsort(rank, kind="stable")].tolist()
        return order

    def _resource_requests(self, mine: Places) -> Demands:
        """Say what the running jobs want: under Gavel as fast as their part of the GPUs' time lets them be."""
        ideal, gpus = self.jobs.ideal[mine], self.jobs.gpus[mine]
        if self.schedule == "gavel":
            ideal = ideal * evenly(gpus, float(self.cluster.gpus or 0)) / gpus
        found = self.found[mine]
        if self.policy == "alluxio":
            found = np.where(self.epochs[mine] > 0, np.inf, 0.0)
        return Demands(ideal, self.jobs.size[mine], np.arange(len(mine)), self.left[mine], gpus, found)

    def _hits(self, mine: Places) -> Numbers:
        return np.ones(len(mine)) if self.policy == "alluxio" else self.found[mine] / self.jobs.size[mine]

    def _cut(self, mine: Places, given: Division) -> None:
        """Drop what is cached above what may be."""
        stored = self.stored[mine]
        kept = np.divide(given.cache, stored, out=np.ones_like(stored), where=stored > given.cache)
        self.stored[mine] *= kept
        self.found[mine] *= kept

    def _note(self, demands: Demands, given: Division, speeds: Numbers) -> None:
        count = len(speeds)
        hits = np.minimum(1.0, self.cluster.cache_bytes / count / demands.size)
        fair = demands.throughput(hits, np.full(count, self.cluster.remote_io / count))
        remote = float((speeds * (1 - given.hits)).sum())
        total, ideal = float(speeds.sum()), float(demands.ideal.sum())
        self.timeline.append(CacheMoment(self.now_s, count, total, ideal, remote, float((speeds / fair).min())))

    def _advance(self, mine: Places, given: Division, speeds: Numbers, seconds: float) -> None:
        """Let time pass, then end jobs and begin epochs."""
        self.now_s += seconds
        read = speeds * seconds
        self.left[mine] -= read
        self.epoch_left[mine] -= read
        self.stored[mine] = np.minimum(given.cache, self.stored[mine] + read * (1 - given.hits))
        ended = mine[self.left[mine] <= SAME * self.jobs.size[mine]]
        self.ended[ended] = self.now_s
        self.running[ended] = False
        turned = mine[self.epoch_left[mine] <= SAME * self.jobs.size[mine]]
        self.epoch_left[turned] = self.jobs.size[turned]
        self.epochs[turned] += 1
        self.found[turned] = self.stored[turned]
