"""How long a look may take, given the job that it is for: in times that one element takes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pecan_ray.autoorder.order_request import JobSize
from pecan_ray.plan.operators import FixedSizeBatchingOp, Join, Plan, Take
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Source
from pecan_ray.sources.listing import list_splits

SHARE_OF_JOB = 0.02
"""A look may take so much of a job's time."""
LEAST_RUNS = 128
"""In less than the time of so many elements nothing can be found."""
RUNS_OF_AN_ELEMENT = 4
"""So often an element of the sample is run at least."""


def runs_allowed(plan: Plan, job: JobSize | None) -> float:
    """Return the times of one element that a look may take; infinity where the job's length is not known.

    An element takes as long in the job as in the look, on each of the job's CPUs: of their number it does not depend
    how much of the whole work the look is.
    """
    elements = None if job is None else num_elements(plan)
    if job is None or elements is None:
        return math.inf
    return SHARE_OF_JOB * elements * job.passes / job.cpus


def num_elements(plan: Plan) -> float | None:
    """Return how many elements a plan reads in one epoch; None where that is not known at once."""
    counts = list(_counts(plan))
    if any(count is None for count in counts):
        return None
    total = float(sum(count for count in counts if count is not None))
    repetitions = plan_shape(plan).repetitions
    total *= math.inf if repetitions is None and total else repetitions or 1
    size = 1
    for op in plan.ops:
        if isinstance(op, FixedSizeBatchingOp):
            size = op.size
        elif isinstance(op, Take):
            total = min(total, op.count * size)
    return total


def _counts(plan: Plan) -> Iterator[int | None]:
    if isinstance(plan.head, Join):
        for branch in plan.head.inputs:
            yield from _counts(branch)
    else:
        yield _count(plan.head)


def _count(source: Source) -> int | None:
    # A source that computes its data to have splits knows how many elements there are once it has.
    return source.num_elements() if hasattr(source, "first") else list_splits(source).elements
