"""Where a run's time has gone, line by line, and what a report knows of what holds it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pecan_ray.job.bottleneck import RunNumbers
from pecan_ray.job.run_time import RunTime
from pecan_ray.plan.stage_seconds import StageSeconds

if TYPE_CHECKING:
    from pecan_ray.observe.report import Report

PARTS = (
    ("ray_s", "Ray's start"),
    ("controller_s", "the job's controller"),
    ("order_s", "the plan, and AutoOrder's sample"),
    ("first_batch_s", "waiting for the first batch"),
    ("waited_s", "waiting for later batches"),
    ("converted_s", "converting batches"),
    ("trained_s", "training"),
)
SHORTEST_S = 0.0005
"""A part that took less took nothing."""


def time_lines(time: RunTime) -> list[str]:
    """Return a line for each part of a run's time."""
    total = max(time.total_s, 1e-9)
    width = max(len(name) for _, name in PARTS)
    spent = [(name, getattr(time, part)) for part, name in PARTS]
    return [f"{name:{width}} {s:9.3f} s {100 * s / total:4.0f}%" for name, s in spent if s >= SHORTEST_S]


def numbers_of(report: Report, time: RunTime, op_seconds: tuple[tuple[str, float], ...], debug: bool) -> RunNumbers:
    """Return what a report knows of a run, as `bottleneck` takes it."""
    workers = report.workers.values()
    local, remote = sum(one.placement == "local" for one in workers), sum(one.placement == "remote" for one in workers)
    if report.deployments:
        local, remote = report.deployments[-1][1].local, report.deployments[-1][1].remote
    return RunNumbers(
        time=time,
        batches=report.batches,
        stages=sum((one.stages for one in workers), StageSeconds()),
        op_seconds=op_seconds,
        local=local,
        remote=remote,
        placed=bool(report.timeline or report.placement),
        remote_bytes=sum(one.remote_bytes for one in workers),
        in_process=debug,
    )
