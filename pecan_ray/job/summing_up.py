"""What can be told about a job so far."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pecan_ray.job.comparing import compare
from pecan_ray.job.facts import JobFacts, WorkerFacts
from pecan_ray.job.resume_point import ResumePoint
from pecan_ray.job.spec import JobSpec

if TYPE_CHECKING:
    from pecan_ray.job.state import JobState


def job_facts(job: JobState, now: float) -> JobFacts:
    """Return the facts of a job at a time."""
    placing = job.placement.placing
    workers = {
        name: WorkerFacts(
            *(one.placement, done.elements, done.batches, done.bytes, done.threads),
            *(done.remote_bytes, done.node_bytes, done.stages, done.hedged, done.hedges_won),
        )
        for name, one in (*job.fleet.past.items(), *job.fleet.workers.items())
        if (done := one.progress) is not None
    }
    return JobFacts(
        job=job.spec.name,
        seconds=now - job.began,
        epochs=job.spec.shape.epochs_before(job.ledger.epoch),
        elements=job.rows - sum(one.progress.passed_rows for one in job.trainers.ranks.values()),
        bytes=job.bytes,
        bad_elements=job.bad.count,
        bad_estimated=job.bad.counted.estimated,
        bad_open_ends=job.bad.counted.open_ends,
        left_epochs=job.ledger.left.count,
        left_out_elements=job.ledger.left_out_elements,
        dropped=tuple((lease.key, lease.spans) for lease in job.ledger.dropped.leases),
        dropped_elements=job.ledger.dropped.elements,
        dropped_open_ends=job.ledger.dropped.open_ends,
        workers_lost=job.fleet.losses.count,
        workers=workers,
        events=tuple(job.told),
        timeline=job.placement.timeline(),
        windows=tuple(job.placement.observed.windows) if job.placement.observed is not None else (),
        deployments=tuple(job.placement.deployments),
        epoch_ends=tuple(job.epoch_ends.newest),
        epochs_before=job.epoch_ends.before,
        op_seconds=job.placement.op_seconds,
        comparison=None
        if placing is None
        else compare(job.placement.timeline(), placing.policy, stopped=placing.stopped),
        prices=job.placement.prices,
        trainers=job.spec.shape.world_size,
        held_up=tuple(job.held_up.seconds) if job.spec.shape.coordinated else (),
        hosts=max(1, len(job.fleet.hosts)),
        reverted=job.questions.reverted,
    )


def made_again(spec: JobSpec) -> str:
    """Say what a job makes again that goes on in the middle of a plan that cannot be cut; empty for another job."""
    start, end = spec.start, spec.shape.end_epoch
    if start is None or not start.made or not spec.shape.runs_whole or start.epoch == end:
        return ""
    used = (
        f"one worker runs this plan as a whole: the {start.made} batches of epoch {start.epoch} that were used before"
    )
    if begins_behind(spec):
        return f"{used} are not made again: it begins behind the elements that went into them"
    return f"{used} are made again, and left out"


def begins_behind(spec: JobSpec) -> bool:
    """Tell whether a job begins a plan that cannot be cut behind what a run before it has had of it."""
    start = spec.start
    return spec.shape.counts and start is not None and start.made > 0 and not start.bad


def completed(job: JobState, point: ResumePoint) -> ResumePoint:
    """Add to where a job stands what else a state tells of it."""
    order, decoders = job.questions.op_order(point.epoch)
    bad = job.bad.digests(point.epoch) if job.spec.shape.runs_whole else ()
    return replace(point, listings=job.listing.known(), op_order=order, decoders=decoders, bad=bad)
