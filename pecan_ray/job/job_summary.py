"""What can be told about a job so far."""

from __future__ import annotations

from dataclasses import replace

from pecan_ray.job.core import JobCore
from pecan_ray.job.job_requests import JobRequests
from pecan_ray.job.job_sampler import available_cpus
from pecan_ray.job.listing import SourceListing
from pecan_ray.job.messages import WorkerTotals
from pecan_ray.job.placement_comparison import compare
from pecan_ray.job.resume_point import ResumePoint
from pecan_ray.job.rounds import HeldUp
from pecan_ray.job.stats import JobStats, WorkerStats, part_of
from pecan_ray.job.story import EpochEnds


def job_stats(job: JobCore, now: float, *, epoch_ends: EpochEnds, held_up: HeldUp, reverted: str) -> JobStats:
    """Return the facts of a job at a time.

    Args:
        job: The job.
        now: Seconds, by the clock that it began by.
        epoch_ends: When its epochs have ended.
        held_up: How long ranks have waited for one another.
        reverted: Why it runs the user's order of operators; empty where it does not.
    """
    placing = job.placement.policy_runner
    workers = {
        name: WorkerStats(
            **part_of(one.progress, WorkerTotals), placement=one.placement, sent_bytes=one.delivered.sent_bytes
        )
        for name, one in (*job.worker_table.past.items(), *job.worker_table.workers.items())
    }
    return JobStats(
        job=job.spec.name,
        seconds=now - job.started,
        epochs=job.spec.shape.epochs_before(job.ledger.epoch),
        # Decision 106: rows of epochs that a loop has left were received, and are in no batch that it got.
        elements=job.received.elements - sum(one.progress.passed_rows for one in job.trainers.ranks.values()),
        bytes=job.received.bytes,
        bad_elements=job.bad.count,
        bad_estimated=job.bad.bad_count.estimated,
        bad_open_ends=job.bad.bad_count.open_ends,
        left_epochs=job.ledger.left.count,
        left_out_elements=job.ledger.left_out_elements,
        dropped=tuple((lease.key, lease.spans) for lease in job.ledger.dropped.leases),
        dropped_elements=job.ledger.dropped.elements,
        dropped_open_ends=job.ledger.dropped.open_ends,
        workers_lost=job.worker_table.losses.count,
        workers=workers,
        events=tuple(job.story),
        timeline=job.placement.timeline(),
        windows=tuple(job.placement.observed.windows) if job.placement.observed is not None else (),
        deployments=tuple(job.placement.deployments),
        remote_rates=tuple(job.placement.remote_rates),
        epoch_ends=tuple(epoch_ends.latest),
        epochs_before=epoch_ends.before,
        op_seconds=job.placement.op_seconds,
        comparison=None
        if placing is None
        else compare(job.placement.timeline(), placing.policy, stopped=job.placement.fixed is not None),
        prices=job.placement.prices,
        trainers=job.spec.shape.world_size,
        accelerator=job.worker_table.uses_accelerator(),
        held_up=tuple(held_up.seconds) if job.spec.shape.coordinated else (),
        hosts=max(1, len(job.worker_table.hosts)),
        # A fixed number of workers divides the CPUs of its nodes, whatever is reserved.
        cpus_per_worker=0.0 if placing is None else job.spec.cpus_per_worker,
        cpus=available_cpus(job.trainers.progress, job.worker_table),
        fallback_reason=reverted,
        order_given_up=job.ledger.runs.given_up,
    )


def completed(job: JobCore, job_requests: JobRequests, listing: SourceListing, point: ResumePoint) -> ResumePoint:
    """Add to where a job stands what else a state tells of it."""
    order, decoders = job_requests.op_order(point.epoch)
    # Decision 33: a serial plan that is run again reads its bad elements again. Elsewhere positions
    # say what was dealt with.
    bad = job.bad.digests(point.epoch) if job.spec.shape.runs_whole else ()
    return replace(point, listings=listing.known(), op_order=order, decoders=decoders, bad=bad)
