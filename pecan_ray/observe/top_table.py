"""The table of `pecan top`: what jobs tell of this moment, as rows of text."""

from __future__ import annotations

from collections.abc import Sequence

from pecan_ray.job.job_views import LiveJob

COLUMNS = (
    "job",
    "workers",
    "epoch",
    "rows/s",
    "waiting",
    "speed MB/s",
    "ideal MB/s",
    "cache GB",
    "hits",
    "IO MB/s",
    "quota MB/s",
    "efficiency 1/s",
    "$",
)
UNKNOWN = "-"
LEAST_NAME = 8
"""Letters that are left of a job's name where the terminal is narrow: names that begin alike are told apart by more."""


def top_lines(jobs: Sequence[LiveJob], width: int | None = None) -> list[str]:
    """Return the table, the fastest job first; `width`: letters of a line, in which jobs' names are cut."""
    rows = [_row(job) for job in sorted(jobs, key=lambda job: (-job.speed.bytes_per_s, job.job))]
    # The first five every job has; the others are shown if one of the jobs has them.
    shown = [number for number in range(len(COLUMNS)) if number < 5 or any(row[number] != UNKNOWN for row in rows)]
    table = [[row[number] for number in shown] for row in (list(COLUMNS), *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    if width is not None:
        rest = sum(widths[1:]) + 2 * (len(widths) - 1)
        widths[0] = max(LEAST_NAME, min(widths[0], width - rest))
    return [_line(row, widths) if width is None else _line(row, widths)[:width] for row in table]


def summary(jobs: Sequence[LiveJob]) -> str:
    """Return a line on all of them."""
    count = f"{len(jobs)} job" if len(jobs) == 1 else f"{len(jobs)} jobs"
    workers = sum(job.running.workers for job in jobs)
    read = sum(job.speed.bytes_per_s * (1 - job.speed.hit_share) for job in jobs)
    paid = [job.dollars for job in jobs if job.dollars is not None]
    dollars = f", ${sum(paid):.4f} so far" if paid else ""
    staff = "1 worker" if workers == 1 else f"{workers} workers"
    return f"{count}, {staff}, {_format_mb(read)} MB/s of object stores{dollars}"


def _row(job: LiveJob) -> list[str]:
    workers = f"{job.running.local}+{job.running.remote}"
    if job.running.workers != job.target.workers:
        workers += f" of {job.target.workers}"
    wait_share = job.speed.wait_share
    return [
        job.job,
        workers,
        str(job.epoch),
        f"{job.speed.rows_per_s:,.0f}",
        UNKNOWN if wait_share is None else f"{wait_share:.0%}",
        *_reads(job),
        UNKNOWN if job.dollars is None else f"{job.dollars:.4f}",
    ]


def _reads(job: LiveJob) -> list[str]:
    """Return the cells about what a job reads, and what it gets of the cluster's cache and pipe."""
    speed, share, ideal = job.speed, job.storage, job.speed.ideal_bytes_per_s
    room, quota = share.room, share.remote_io
    reads = speed.bytes_per_s > 0
    hits = reads and (room is not None or speed.hit_share > 0)
    return [
        _format_mb(speed.bytes_per_s) if reads else UNKNOWN,
        UNKNOWN if ideal is None else _format_mb(ideal),
        UNKNOWN if room is None else f"{room / 1e9:,.3g}" + (f" x{share.pool_nodes}" if share.pool_nodes > 1 else ""),
        f"{speed.hit_share:.0%}" if hits else UNKNOWN,
        _format_mb(speed.bytes_per_s * (1 - speed.hit_share)) if reads else UNKNOWN,
        UNKNOWN if quota is None else _format_mb(quota),
        f"{ideal / speed.dataset_bytes:.2g}" if ideal is not None and speed.dataset_bytes else UNKNOWN,
    ]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    name = row[0] if len(row[0]) <= widths[0] else f"{row[0][: widths[0] - 2]}.."
    rest = (text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))
    return "  ".join((name.ljust(widths[0]), *rest))


def _format_mb(nbytes: float) -> str:
    """Spell megabytes: whole ones where there are many."""
    return f"{nbytes / 1e6:,.1f}" if nbytes < 1e9 else f"{nbytes / 1e6:,.0f}"
