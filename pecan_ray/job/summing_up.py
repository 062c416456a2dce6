"""What can be told about a job so far."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pecan_ray.job.comparing import compare
from pecan_ray.job.facts import JobFacts, WorkerFacts
from pecan_ray.job.resume_point import KnownListing, ResumePoint
from pecan_ray.job.spec import JobSpec

if TYPE_CHECKING:
    from pecan_ray.job.state import JobState


def job_facts(job: JobState, now: float) -> JobFacts:
    """Return the facts of a job at a time."""
    placing = job.placement.placing
    workers = {
        name: WorkerFacts(one.placement, done.elements, done.batches, done.bytes, done.threads)
        for name, one in (*job.fleet.past.items(), *job.fleet.workers.items())
        if (done := one.progress) is not None
    }
    return JobFacts(
        job=job.spec.name,
        seconds=now - job.began,
        epochs=job.ledger.epoch,
        elements=job.rows,
        bytes=job.bytes,
        bad_elements=job.bad.count,
        left_out_elements=job.ledger.left_out_elements,
        dropped=tuple((lease.key, lease.spans) for lease in job.ledger.dropped),
        workers_lost=job.fleet.losses.count,
        workers=workers,
        events=tuple(job.told),
        timeline=job.placement.timeline(),
        windows=tuple(job.placement.observed.windows) if job.placement.observed is not None else (),
        deployments=tuple(job.placement.deployments),
        epoch_ends=tuple(job.epoch_ends),
        op_seconds=job.placement.op_seconds,
        comparison=None
        if placing is None
        else compare(job.placement.timeline(), placing.policy, stopped=placing.stopped),
        prices=job.placement.prices,
        trainers=job.spec.shape.world_size,
        hosts=max(1, len(job.fleet.hosts)),
        reverted=job.questions.reverted,
    )


def made_again(spec: JobSpec) -> str:
    """Say what a job makes again that goes on in the middle of a plan that cannot be cut; empty if nothing."""
    start, epochs = spec.start, spec.shape.epochs
    if start is None or not start.made or not spec.shape.runs_whole or start.epoch == epochs:
        return ""
    return (
        f"one worker runs this plan as a whole: the {start.made} batches of epoch {start.epoch} that were used before "
        "are made again, and left out"
    )


def completed(job: JobState, point: ResumePoint, listings: tuple[KnownListing, ...]) -> ResumePoint:
    """Add to where a job stands what else a state tells of it."""
    start, (order, decoders) = job.spec.start, job.questions.op_order(point.epoch)
    goes_on = start is not None and start.epoch == point.epoch
    bad = job.bad.digests(point.epoch, goes_on=goes_on) if job.spec.shape.runs_whole else ()
    return replace(point, listings=listings, op_order=order, decoders=decoders, bad=bad)
