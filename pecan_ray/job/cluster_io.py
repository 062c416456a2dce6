"""What the jobs of a cluster may read of object stores, and keep: divided anew as they come, go and change speed.

The live part of SiloD as a state: reports of jobs in, quotas out.  What is not known of a job yet is assumed so that it
harms nobody: an equal part of the pipe, and no use for a cache.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from pecan_ray.cache import Allocation, ClusterResources, JobDemand, allocate
from pecan_ray.cache_options import SharingPolicy
from pecan_ray.errors import PlanError
from pecan_ray.job.messages import DatasetRooms

SILENT_S = 30.0
"""A job that was not heard for so long is gone, or does without: thirty reports, since each may be lost or late."""
REPORT_S = 1.0
"""Least seconds between two reports of a job: quotas follow a change by a second or two."""
JOBS_PER_S = 100
"""Most reports a second of all jobs together: with many jobs each reports more seldom."""
DECIDE_S = 0.5
"""Two decisions are so far apart at least, unless a job has come or gone."""
SAME = 0.1
"""A number that has changed by less than this share counts as unchanged."""
SAME_SIZE = 0.01
"""The same share for the size of a dataset, which is known the better the longer a job runs."""
SAME_HITS = 0.02
"""nor has a share of hits that has changed by less than this, and by less than half of what misses: of a fast job a
hundredth is a good part of a pipe."""
NO_HITS = 0.002
"""What a share of hits has changed by that is less than this is nothing."""
ROOM_TO_SPARE = 1.02
"""Sizes of datasets that were measured are taken for so many times larger: a room that is a little too small for one
that is to be kept whole costs a part of the pipe, and one that is a little too large next to nothing."""
LEAST_SHARE = 0.01
"""Of the pipe, what is dealt out in equal parts whatever a policy says: a quota of nothing would be for ever, since
nobody would see what the job could do."""
NO_USE = 1e18
"""The size of a dataset for which a cache is of no use."""
MIB = 1 << 20  # bytes


@dataclass(frozen=True)
class JobIo:
    """What a job tells of itself; numbers that are none (nan, not positive) are taken as not known."""

    job: str
    bytes_per_s: float | None = None
    """Bandwidth to remote storage, if the job says it."""
    cache_bytes: int | None = None
    """Bytes of each node's cache, if the job says so."""
    policy: SharingPolicy | None = None
    """How both are to be divided, if the job says so."""
    source_bytes: int = 0
    """What its nodes have room for (`Cache(source_bytes=...)`); 0: it keeps nothing."""
    datasets: tuple[str, ...] = ()
    """By their names; jobs that name the same share what is kept."""
    dataset_bytes: float | None = None
    size_measured: bool = False
    """Its size was not said, and may be some percent off."""
    ideal_bytes_per_s: float | None = None
    hit_share: float = 0.0
    remaining_bytes: float | None = None
    gpus: int = 1
    pool_nodes: int = 1
    """Nodes that keep its datasets together, each block on one of them (`Cache(spread=True)`); 1: each keeps all."""


@dataclass(frozen=True)
class IoQuota:
    """What a job is told."""

    bytes_per_s: float | None
    """None: as much as it can, since nobody has said what there is."""
    cache_limits: DatasetRooms = ()
    """What a node may keep of each dataset of all jobs; empty: nobody bounds that."""
    report_interval_s: float = REPORT_S
    """It reports again after so long."""


@dataclass(frozen=True)
class SharedIo:
    """What is divided, and how."""

    bytes_per_s: float | None = None
    cache_bytes: int | None = None
    policy: SharingPolicy | None = None


# Why the service decides and jobs ask: docs/decisions/shared-cache-and-pipe.md#57-pipe-and-cache-divided-live
class ClusterIoRegistry:
    """The jobs that take part, and what each may use."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobIo] = {}
        self.shared = SharedIo()
        self.given: dict[str, Allocation] = {}
        """What the policy gives."""
        self.last_error = ""
        """Why the last decision could not be made: quotas are then as they were."""
        self._quota_by_job: dict[str, IoQuota] = {}
        self._last_seen: dict[str, float] = {}
        self._last_decision = -math.inf
        self._changed = self._jobs_changed = False

    def update(self, report: JobIo, now: float) -> str:
        """Take what a job tells; return a line for the journal, empty if that is nearly what was known."""
        self._last_seen[report.job] = now
        known, report = self.jobs.get(report.job), _valid_report(report)
        # Decision 57: numbers are measured, and each decision may cost cached data. So a small change is none.
        if known is not None and _approx_equal(known, report):
            return ""
        self._changed = True
        self._jobs_changed |= known is None
        self.jobs[report.job] = report
        if known is None or (known.bytes_per_s, known.cache_bytes, known.policy) != (
            report.bytes_per_s,
            report.cache_bytes,
            report.policy,
        ):
            self._say_shared(report)
        return json.dumps({"io": asdict(report)})

    def remove(self, job: str) -> str:
        """Forget a job; return a line for the journal, empty if it is not known."""
        self._last_seen.pop(job, None)
        self._quota_by_job.pop(job, None)
        if self.jobs.pop(job, None) is None:
            return ""
        self._changed = self._jobs_changed = True
        return json.dumps({"io gone": job})

    def timed_out(self, now: float) -> list[str]:
        """Return the jobs that were not heard for long."""
        # Three reports may be lost, however seldom they are due.
        after = SILENT_S + 3 * self.report_interval_s
        return [job for job in self.jobs if now - self._last_seen[job] > after]

    @property
    def report_interval_s(self) -> float:
        """How often each job reports."""
        return max(REPORT_S, len(self.jobs) / JOBS_PER_S)

    def quota(self, job: str, now: float) -> IoQuota:
        """Return what a job may use; it is decided anew where something has changed."""
        if self._changed and (self._jobs_changed or now - self._last_decision >= DECIDE_S):
            self._decide(now)
        return replace(self._quota_by_job.get(job) or IoQuota(None), report_interval_s=self.report_interval_s)

    def replay(self, lines: Iterable[str], now: float) -> int:
        """Take over what a journal tells; return how many lines could not be read, which are left out."""
        unread = 0
        for line in lines:
            try:
                told = json.loads(line)
                if "io gone" in told:
                    self.remove(told["io gone"])
                elif "io" in told:
                    job = told["io"]
                    self.update(JobIo(**{**job, "datasets": tuple(job["datasets"])}), now)
                elif "io of" in told:
                    self.shared = SharedIo(**told["io of"])
            except (ValueError, TypeError, KeyError, AttributeError):  # the last one may have been written in part
                unread += 1
        return unread

    def written(self) -> str:
        """Return the shortest journal that brings this about."""
        told = [{"io": asdict(job)} for job in self.jobs.values()]
        # Behind the jobs: the replay of a job's line lets its words about the cluster hold, and
        # this line is the last word.
        return "".join(f"{json.dumps(one)}\n" for one in ([*told, {"io of": asdict(self.shared)}] if told else told))

    # --- inside --------------------------------------------------------------------------------------------

    def _say_shared(self, report: JobIo) -> None:
        """Let what a job says of the cluster hold from now on, where it says something."""
        # Words of jobs that are all gone do not hold for the first one that comes after them.
        shared = self.shared if len(self.jobs) > 1 else SharedIo()
        self.shared = SharedIo(
            shared.bytes_per_s if report.bytes_per_s is None else report.bytes_per_s,
            shared.cache_bytes if report.cache_bytes is None else report.cache_bytes,
            shared.policy if report.policy is None else report.policy,
        )

    def _decide(self, now: float) -> None:
        # Also where the policy fails below: with the same reports it would fail again.
        self._last_decision, self._changed, self._jobs_changed = now, False, False
        pipe = self.shared.bytes_per_s
        if pipe is None or not self.jobs:
            self._quota_by_job, self.given = {}, {}
            return
        cache = self.shared.cache_bytes
        if cache is None:
            # Nobody has said what nodes have room for, so it is taken to be what the largest job keeps.
            cache = max(job.source_bytes for job in self.jobs.values())
        nodes = max(job.pool_nodes for job in self.jobs.values())
        # Decision 42: a policy refuses fewer bytes than jobs, because it could give a job nothing.
        cluster = ClusterResources(max(nodes * cache, len(self.jobs)), pipe)
        demands = _resource_requests(list(self.jobs.values()), pipe, nodes)
        try:
            self.given = allocate(demands, cluster, self.shared.policy or "greedy")
        except PlanError as error:  # what nobody has foreseen shall stop no job
            self.last_error = error.message
            return
        self.last_error = ""
        cache_limits = _dataset_quota(self.jobs.values(), self.given, cache, nodes)
        quotas = _with_what_is_left([self.given[job].remote_io for job in self.jobs], pipe)
        self._quota_by_job = {job: IoQuota(quota, cache_limits) for job, quota in zip(self.jobs, quotas, strict=True)}


def _valid_report(report: JobIo) -> JobIo:
    """Return a report in which what is no number that can be used is not known."""

    def usable(value: float | None) -> float | None:
        return value if value is not None and 0 < value < math.inf else None

    # A number of one job that is none would spoil the quotas of all.
    hits = report.hit_share if 0 <= report.hit_share <= 1 else 0.0
    return replace(
        report,
        bytes_per_s=usable(report.bytes_per_s),
        dataset_bytes=usable(report.dataset_bytes),
        ideal_bytes_per_s=usable(report.ideal_bytes_per_s),
        remaining_bytes=usable(report.remaining_bytes),
        hit_share=hits,
        pool_nodes=max(1, report.pool_nodes) if _keeps(report) else 1,
        gpus=max(1, report.gpus),
    )


def _approx_equal(known: JobIo, report: JobIo) -> bool:
    """Tell whether nothing has changed by so much that it matters."""

    def same(before: float | None, after: float | None, share: float = SAME) -> bool:
        if before is None or after is None:
            return before == after
        return abs(after - before) <= share * before

    # What is measured may differ a little. All else was said, and counts as soon as it is another.
    measured = {"dataset_bytes": None, "ideal_bytes_per_s": None, "remaining_bytes": None, "hit_share": 0.0}
    return (
        replace(known, **measured) == replace(report, **measured)  # type: ignore[arg-type]  # by name
        and same(known.dataset_bytes, report.dataset_bytes, SAME_SIZE)
        and same(known.ideal_bytes_per_s, report.ideal_bytes_per_s)
        and same(known.remaining_bytes, report.remaining_bytes, 2 * SAME)
        and _same_hits(known.hit_share, report.hit_share)
    )


def _same_hits(before: float, after: float) -> bool:
    changed = abs(after - before)
    return changed <= NO_HITS or changed <= min(SAME_HITS, 0.5 * (1 - min(before, after)))


def _resource_requests(jobs: list[JobIo], pipe: float, nodes: int) -> list[JobDemand]:
    """Return what the jobs want, with assumptions where they do not know.

    The cache that is divided is that of `nodes` nodes.  A dataset whose blocks are spread over them takes its size of
    it; one of which each node keeps a copy takes so many times its size.
    """
    sizes: dict[tuple[str, ...], float] = {}
    for job in jobs:
        if _caches(job):
            size = (job.dataset_bytes or 0.0) * (ROOM_TO_SPARE if job.size_measured else 1.0)
            size *= nodes / job.pool_nodes
            # Each job measures its datasets by itself. The largest size counts: a room that is too
            # small costs a part of the pipe.
            sizes[job.datasets] = max(sizes.get(job.datasets, 0.0), size)
    demands = []
    for job in jobs:
        caches = _caches(job)
        # Decision 57: a new job has an equal part of the pipe and no cache. If it counted as efficient, it would drive
        # out the data of others; if as inefficient, its size would be known late.
        size = sizes[job.datasets] if caches else NO_USE
        demands.append(
            JobDemand(
                job.job,
                job.ideal_bytes_per_s or pipe / len(jobs),
                size,
                "\n".join(job.datasets) if caches else None,
                job.remaining_bytes or job.dataset_bytes,
                job.gpus,
                # Decision 57: bytes on disks spare the pipe only once they are found, so hits tell what is cached.
                job.hit_share * size,
            )
        )
    return demands


def _keeps(job: JobIo) -> bool:
    """Tell whether a job keeps what it reads."""
    return bool(job.source_bytes and job.datasets)


def _caches(job: JobIo) -> bool:
    """Tell whether a cache is known to be of use to a job."""
    return bool(_keeps(job) and job.dataset_bytes)


def _dataset_quota(jobs: Iterable[JobIo], given: dict[str, Allocation], cache: float, nodes: int) -> DatasetRooms:
    """Return what a node may keep of each dataset, in whole MiB; a job's own are given equal parts.

    What a policy gives to nobody is dealt out, too: sizes of datasets are estimates.
    """
    cache_limits: dict[str, float] = {}
    for job in jobs:
        for name in job.datasets if job.source_bytes else ():
            part = given[job.job].cache_bytes / nodes / len(job.datasets) if _caches(job) else 0.0
            cache_limits[name] = max(cache_limits.get(name, 0), part)
    more = max(1.0, cache / total) if (total := math.fsum(cache_limits.values())) > 0 else 0.0
    return tuple((name, int(more * room + 0.5) // MIB * MIB) for name, room in sorted(cache_limits.items()))


def _with_what_is_left(given: list[float], pipe: float) -> list[float]:
    """Deal out what a policy gives to nobody, as demands are estimates; and to everybody a little.

    Each gets more in the ratio of what it was given: who finds all that it reads would only leave an equal part unused.
    """
    count, total = len(given), math.fsum(given)
    if total <= 0:
        return [pipe / count] * count
    more = max(1.0, pipe / total)
    return [(1 - LEAST_SHARE) * more * quota + LEAST_SHARE * pipe / count for quota in given]
