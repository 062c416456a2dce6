"""Where a run's time has gone, line by line."""

from __future__ import annotations

from pecan_ray.job.run_time import RunTime

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
"""A part that took less took nothing: times are told in milliseconds."""


def time_lines(time: RunTime) -> list[str]:
    """Return a line for each part of a run's time."""
    total = max(time.total_s, 1e-9)
    width = max(len(name) for _, name in PARTS)
    spent = [(name, getattr(time, part)) for part, name in PARTS]
    return [f"{name:{width}} {s:9.3f} s {100 * s / total:4.0f}%" for name, s in spent if s >= SHORTEST_S]
