"""Which share of the elements a job has left out: bad and good ones are counted at the same place in the data.

Decision: docs/decisions/faults-and-silence.md#222-the-share-of-what-was-read
"""

from __future__ import annotations

from pecan_ray.errors import ErrorBudgetError
from pecan_ray.job.core import JobCore
from pecan_ray.job.left_epochs import LoopPlace
from pecan_ray.job.resume import unfinished
from pecan_ray.sampling.budget import elements_in_hand


def budget_error(job: JobCore) -> ErrorBudgetError | None:
    """Return the error that ends a job with too many bad elements among those that were processed."""
    ledger = job.ledger
    # Elements of remainders, and of workers that were lost under "at_most_once", were processed too.
    good = job.received.elements + ledger.left_out_elements + ledger.dropped.elements + job.bad.abandoned
    if job.bad.over_budget(good) is None:
        return None
    # Only now: it looks at everything that workers hold.
    return job.bad.over_budget(good + in_hand(job))


def leave_epoch(job: JobCore, rank: int, place: LoopPlace) -> bool:
    """Let a rank leave epochs, as `Ledger.leave`; what workers have in hand then comes to no trainer any more."""
    held, left = in_hand(job) if place.left > job.ledger.epoch else 0, job.ledger.left.count
    news = job.ledger.leave(rank, place)
    job.bad.abandoned += held if job.ledger.left.count > left else 0
    return news


def in_hand(job: JobCore) -> int:
    """Count the elements of the epoch that workers have read for certain, and that have not come to a trainer."""
    bad = job.bad.of_splits
    # Of a plan that runs as a whole nothing is unfinished once its worker has made all of it.
    return (elements_in_hand(bad, unfinished(job.ledger)) if bad else 0) + job.ledger.rows_of_whole_on_the_way()
