"""What a job does with AutoOrder's sample before anything was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pecan_ray.job.instructions import Instructions

if TYPE_CHECKING:
    from pecan_ray.job.state import JobState


def begin_with_sample(job: JobState, row_s: float | None, now: float, done: Instructions) -> None:
    """Begin with as many local workers as a sample asks for: their CPUs are paid for already."""
    target = job.placement.sampled(row_s, job.trainers.progress, job.fleet)
    if target is not None and target != job.fleet.wanted and job.fleet.hosts:
        job.tell("placement", f"begin with {target}: a row takes a thread {row_s:.3g} s by a sample", now)
        job.staffing.scale(target, now, done)
