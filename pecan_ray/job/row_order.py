"""In which order a job's rows come, and why."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.options import IterOptions, Workers
from pecan_ray.plan.shape import PlanShape


@dataclass(frozen=True)
class RowOrder:
    """The order of batches and rows."""

    kept: bool
    """A worker gives them in the order of what it reads, and not as its threads finish them."""
    why: str


def row_order(options: IterOptions, shape: PlanShape, workers: int | None = None) -> RowOrder:
    """Return the order that is in force; `workers`: so many make the batches now, where that is known.

    Without an `order`, rows have that of the source where one fixed worker makes them for one trainer.  What a lost
    worker held goes to its successor first.  Splits are dealt out as in any other order: so elements that kill workers
    are found, `scale` makes a job faster, and a state goes on with any workers.  Where these happen, rows come as
    workers finish them; ``order="strict"`` promises more.
    """
    if options.order == "strict":
        return RowOrder(True, 'batches come in one sequence, as order="strict" asks for.')
    if shape.is_one_sequence:
        return RowOrder(True, "batches come in one sequence: the plan needs the whole of it, and one worker runs it.")
    finished = "batches and rows come as workers finish them"
    if options.order == "relaxed":
        return RowOrder(False, f'{finished}, as order="relaxed" says.')
    if not shape.as_listed:
        return RowOrder(False, f"{finished}: the pipeline shuffles, mixes or makes buckets.")
    given = options.workers
    if options.world_size > 1 or not isinstance(given, Workers) or given.local + given.remote > 1:
        who = "several ranks share them" if options.world_size > 1 else "several workers may make them"
        return RowOrder(False, f'{finished}, since {who}: order="strict" gives them in the order of the source.')
    if workers is not None and workers > 1:
        said = 'scale() has asked for several: order="strict" gives them in the order of the source'
        return RowOrder(True, f"{finished}, since {said}.")
    return RowOrder(True, "rows come in the order of the source: nothing shuffles, and one worker makes them.")
