"""A job as pages show it: a few numbers for a list of jobs, and more for a page of its own, of a bounded size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pecan_ray.job.messages import Placement, TrainerProgress
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
"""Newest events of a view: more than a page shows."""


@dataclass(frozen=True)
class StorageShare:
    """What a job may have of what jobs share."""

    remote_io: float | None = None
    """The bytes a second that it may read of object stores; None: as many as it can."""
    room: int | None = None
    """What a node may keep of its datasets; None: nobody bounds that."""
    pool_nodes: int = 1
    """Nodes that keep blocks together, each such a room; 1: each keeps its own."""


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
    window: Window | None = None
    """The newest one; None: none has ended yet."""
    bad_elements: int = 0
    dollars: float | None = None
    """What it has cost so far; None: no prices were given."""
    error: str = ""
    """What ends it."""
    speed: JobSpeed = NOT_KNOWN
    storage: StorageShare = StorageShare()

    @property
    def rate(self) -> float | None:
        """Batches a second of all trainers in the newest window."""
        return None if self.window is None else self.trainers / self.window.batch_time

    @property
    def waited(self) -> float | None:
        """Share of that window in which they waited."""
        if self.window is None or self.window.wait_time is None:
            return None
        return self.window.wait_time / self.window.batch_time


@dataclass(frozen=True)
class PlacedWorker:
    """A worker, and where it is."""

    name: str
    placement: Placement
    node: str
    """Empty as long as it has no place."""
    state: str
    """"runs", "drains", "waits for a place" or "starts"."""


@dataclass(frozen=True)
class TrainerView:
    """How one rank is doing."""

    rank: int
    node: str
    progress: TrainerProgress


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
    cost, table = job.cost(now), job.worker_table
    cache_limits = dict(table.limits.cache_limits)
    room = sum(cache_limits.get(name, 0) for name in datasets) if cache_limits else None
    return LiveJob(
        job=job.spec.name,
        pipeline=pipeline,
        seconds=now - job.started,
        epoch=job.ledger.epoch,
        batches=sum(job.trainers.used),
        elements=job.received.elements,
        running=table.running(),
        target=table.target,
        trainers=job.spec.shape.world_size,
        window=latest_window(steps, tuple(seen.windows) if seen is not None else ()),
        bad_elements=job.bad.count,
        dollars=None if cost is None else cost.total,
        error="" if job.error is None else f"{type(job.error).__name__}: {job.error}",
        speed=speed,
        storage=StorageShare(table.limits.remote_io, room, table.limits.pool_nodes),
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
        TrainerView(rank, one.registration.node, one.progress) for rank, one in sorted(job.trainers.ranks.items())
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
