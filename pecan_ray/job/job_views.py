"""A job as pages show it: a few numbers for a list of jobs, and more for a page of its own, of a bounded size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pecan_ray.job.messages import DatasetRooms, Placement
from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.job.speed import JobSpeed
from pecan_ray.job.stats import JobStats
from pecan_ray.job.windows import ObservedWindow
from pecan_ray.plan.windows import Deployment, Window

if TYPE_CHECKING:
    from pecan_ray.job.state import JobState

NONE = Deployment(0, 0)
NOT_KNOWN = JobSpeed()
MOST_SEEN = 600
"""Windows of a view: of more every second one is left out, or every third, and so on."""
MOST_CHANGES = 200
"""Newest decisions of a view that have changed something: they are never left out for being between others."""
MOST_TOLD = 500
"""Newest events of a view."""


@dataclass(frozen=True)
class LiveJob:
    """A job at this moment, for lists and tables of jobs."""

    job: str
    pipeline: str = ""
    seconds: float = 0.0
    """Since it began."""
    epoch: int = 0
    batches: int = 0
    """Used by all trainers together."""
    elements: int = 0
    running: Deployment = NONE
    target: Deployment = NONE
    trainers: int = 1
    rate: float | None = None
    """Batches a second of all trainers in the newest window; None: none has ended yet."""
    waited: float | None = None
    """Share of that window in which they waited."""
    bad_elements: int = 0
    dollars: float | None = None
    """What it has cost so far; None: no prices were given."""
    error: str = ""
    """What ends it."""
    speed: JobSpeed = NOT_KNOWN
    remote_io: float | None = None
    """The bytes a second that it may read of object stores; None: as many as it can."""
    cache_limits: DatasetRooms = ()
    """What nodes may keep of the datasets that share the cluster's cache with its own, these among them;"""
    datasets: tuple[str, ...] = ()
    """its own."""
    pool_nodes: int = 1
    """Nodes that keep blocks together, each such a room; 1: each keeps its own."""

    @property
    def room(self) -> int | None:
        """What a node may keep of its datasets; None: nobody bounds that."""
        cache_limits = dict(self.cache_limits)
        return sum(cache_limits.get(name, 0) for name in self.datasets) if cache_limits else None


@dataclass(frozen=True)
class PlacedWorker:
    """A worker, and where it is."""

    name: str
    placement: Placement
    node: str
    """Empty as long as it has no place."""
    state: str
    """runs, drains, waits for a place, or starts."""


@dataclass(frozen=True)
class TrainerView:
    """How one rank is doing."""

    rank: int
    node: str
    batches: int
    rows: int
    waited_s: float
    elapsed_s: float
    queued: int


@dataclass(frozen=True)
class JobView:
    """All that a page about one job shows."""

    live: LiveJob
    stats: JobStats
    """With fewer windows and events where there are many."""
    placed: tuple[PlacedWorker, ...] = ()
    trainers: tuple[TrainerView, ...] = ()
    order_text: str = ""
    """What AutoOrder found, as `explain("json")` tells it; empty: the controller was not told."""


def live_job(
    job: JobState,
    now: float,
    pipeline: str,
    speed: JobSpeed = NOT_KNOWN,
    *,
    datasets: tuple[str, ...] = (),
) -> LiveJob:
    """Return a job at this moment."""
    steps, seen = job.placement.timeline(), job.placement.observed
    window = latest_window(steps, tuple(seen.windows) if seen is not None else ())
    size, cost = job.spec.shape.world_size, job.cost(now)
    return LiveJob(
        job=job.spec.name,
        pipeline=pipeline,
        seconds=now - job.started,
        epoch=job.ledger.epoch,
        batches=sum(job.trainers.used),
        elements=job.rows,
        running=job.worker_table.running(),
        target=job.worker_table.target,
        trainers=size,
        rate=None if window is None else size / window.batch_time,
        waited=None if window is None or window.wait_time is None else window.wait_time / window.batch_time,
        bad_elements=job.bad.count,
        dollars=None if cost is None else cost.total,
        error="" if job.error is None else f"{type(job.error).__name__}: {job.error}",
        speed=speed,
        remote_io=job.worker_table.remote_io,
        cache_limits=job.worker_table.cache_limits,
        pool_nodes=job.worker_table.pool_nodes,
        datasets=datasets,
    )


def latest_window(steps: tuple[PlacementStep, ...], observed: tuple[ObservedWindow, ...]) -> Window | None:
    """Return the newest window that can be used, of the policy's and those that are measured without one."""
    here = next((one for one in reversed(steps) if not one.window.invalid_reason()), None)
    there = observed[-1] if observed else None
    found = [one for one in (here, there) if one is not None]
    return max(found, key=lambda one: one.seconds).window if found else None


def job_view(job: JobState, now: float, live: LiveJob, order_text: str) -> JobView:
    """Return what a page about a job shows."""
    facts = job.stats(now)
    facts = replace(
        facts,
        timeline=sampled_steps(facts.timeline),
        windows=facts.windows[-MOST_SEEN:],
        events=facts.events[-MOST_TOLD:],
        # What was dropped has no bound, and a view has.
        dropped=(),
    )
    placed = tuple(
        PlacedWorker(
            *(one.name, one.placement, one.node),
            "drains" if one.draining else "runs" if one.running else "starts" if one.node else "waits for a place",
        )
        for one in job.worker_table.workers.values()
    )
    trainers = tuple(
        TrainerView(
            *(rank, one.registration.node, one.progress.yielded, one.progress.rows),
            *(one.progress.waited_s, one.progress.elapsed_s, one.progress.queued),
        )
        for rank, one in sorted(job.trainers.ranks.items())
    )
    return JobView(live, facts, placed, trainers, order_text)


def sampled_steps(timeline: tuple[PlacementStep, ...]) -> tuple[PlacementStep, ...]:
    """Return a timeline of at most so many steps, with its newest changes among them."""
    changes = [number for number in range(len(timeline)) if changes_something(timeline, number)]
    stride = -(-len(timeline) // MOST_SEEN) or 1
    kept = {*changes[-MOST_CHANGES:], *range(0, len(timeline), stride), max(0, len(timeline) - 1)}
    return tuple(timeline[number] for number in sorted(kept) if number < len(timeline))


def changes_something(timeline: tuple[PlacementStep, ...], number: int) -> bool:
    """Tell whether a step wants another deployment than the one before it, or is in another phase of the search."""
    if number == 0:
        return True
    before, here = timeline[number - 1].decision, timeline[number].decision
    return before.target != here.target or (before.phase != here.phase and here.phase != "discarded")
