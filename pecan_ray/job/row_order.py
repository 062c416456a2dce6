"""In which order a job's rows come, and why.

Decisions: docs/decisions/order-and-rows.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pecan_ray.options import EngineName, IterOptions, Workers
from pecan_ray.plan.shape import PlanShape


@dataclass(frozen=True)
class RowOrder:
    """The order of batches and rows."""

    kept: bool
    """A worker gives them in the order of what it reads, and not as its threads finish them."""
    why: str


def row_order(options: IterOptions, shape: PlanShape, workers: int | None = None, given_up: str = "") -> RowOrder:
    """Return the order that is in force.

    Without an `order`, rows have that of the source (which may shuffle by itself) where no operator shuffles: with any
    workers and ranks where it is known beforehand which row an element becomes, else where one trainer reads what one
    fixed worker makes.  Where that is not so, they come as workers finish them; ``order="strict"`` promises more.

    Args:
        options: What the user has asked for.
        shape: Of the plan.
        workers: So many make the batches now, where that is known.
        given_up: Why the job has given up the order of the source, if it has.
    """
    if options.order == "strict":
        return RowOrder(
            True, f'batches come in one sequence, as order="strict" asks for: {_producers(options, shape)}.'
        )
    if shape.is_one_sequence:
        why = shape.whole_reason or "the plan needs the whole of it"
        return RowOrder(True, f"batches come in one sequence, and one worker runs it: {why}.")
    finished = "batches and rows come as workers finish them"
    if options.order == "relaxed":
        return RowOrder(False, f'{finished}, as order="relaxed" says.')
    if not shape.order.in_one_sequence:
        return RowOrder(False, f"{finished}: the pipeline shuffles, mixes or makes buckets.")
    if given_up:
        # Each worker still keeps the order of what it reads.
        return RowOrder(True, f"{finished} from now on: {given_up}.")
    if not (unordered_reason := why_row_unknown(options, shape)):
        in_order = "rows come in the order of the source, whatever the workers: no operator shuffles"
        return RowOrder(True, f"{in_order}{_dealt(options.world_size)}.")
    if options.world_size > 1:
        why = f"several ranks share them and {unordered_reason}"
        # Coordinated reads cannot be shared.
        group = "" if options.coordinated or not _in_order_alone(options, shape) else f"; {SHARED}"
        return RowOrder(False, f"{finished}, since {why}: {STRICT}, in turn to each rank{group}.")
    return _order_of_one_worker(options, workers, unordered_reason, finished)


def _order_of_one_worker(options: IterOptions, workers: int | None, unordered_reason: str, finished: str) -> RowOrder:
    """Return the order where several workers cannot keep that of the source, and one can."""
    given = options.workers
    if not isinstance(given, Workers) or given.local + given.remote > 1:
        why = f"several workers may make them and {unordered_reason}"
        return RowOrder(False, f"{finished}, since {why}: {STRICT}; so does Workers(local=1).")
    if workers is not None and workers > 1:
        return RowOrder(
            True, f"{finished}, since scale() has asked for several workers and {unordered_reason}: {STRICT}."
        )
    return RowOrder(True, "rows come in the order of the source: no operator shuffles, and one worker makes them.")


def _producers(options: IterOptions, shape: PlanShape) -> str:
    """Say whether one worker at a time makes a strict sequence, and why."""
    if runs_in_order(options, shape):
        return f"all workers make it, since it is known which row each element becomes{_dealt(options.world_size)}"
    if shape.is_one_sequence or shape.holds_back:
        return "one worker at a time runs the whole plan, since elements are held back or chosen by all before them"
    if options.sharding == "off":
        return "each worker makes one of all data"
    return f"one worker at a time makes it, since {why_row_unknown(options, shape)}"


def _dealt(ranks: int) -> str:
    """Say which batches of the sequence each of several ranks gets."""
    return f"; rank r of {ranks} gets batches r, r + {ranks} and so on" if ranks > 1 else ""


STRICT = 'order="strict" gives them in the order of the source, made by one worker at a time'
SHARED = "so do all workers of a shared group, whose ranks get batches in turn (share=True, max_lag=8, job=...)"


def why_row_unknown(options: IterOptions, shape: PlanShape) -> str:
    """Return why it is not known beforehand which row of an epoch an element becomes; empty where it is."""
    if shape.order.unordered_reason:
        return shape.order.unordered_reason
    # Decision 228: one worker keeps the order by itself, and has no runs to seek.
    if shape.order.estimated and (options.world_size > 1 or _one_worker(options)):
        return shape.order.estimated
    # Decision 175: with elements left out rows have no fixed numbers, so they would have to be joined.
    if options.on_error != "raise" and shape.order.unjoinable:
        return f"on_error={options.on_error!r} leaves bad elements out, and {shape.order.unjoinable}"
    if options.world_size > 1 and (why := _why_ranks_differ(options, shape)):
        return why
    if options.sharding != "dynamic":
        return f"sharding={options.sharding!r} deals out whole splits"
    return "" if options.visitation == "exactly_once" else f"visitation={options.visitation!r} promises less"


def _why_ranks_differ(options: IterOptions, shape: PlanShape) -> str:
    """Return why it is not known beforehand which of several ranks a row goes to; empty where it is."""
    if _must_join(options, shape):
        left_out = f"on_error={options.on_error!r}" if options.on_error != "raise" else "a filter or flat_map"
        return f"{left_out} decides late which row an element becomes, and so which rank gets it"
    return "coordinated=True makes batches in rounds" if options.coordinated else ""


def _must_join(options: IterOptions, shape: PlanShape) -> bool:
    """Tell whether it is not known beforehand which row an element becomes."""
    # Decision 175: an element that is left out leaves no gap if rows are known by places and not by numbers.
    return shape.order.joined or options.on_error != "raise"


def _one_worker(options: IterOptions) -> bool:
    """Tell whether it is one worker that runs, until the user asks for more."""
    workers = options.workers
    return isinstance(workers, Workers) and workers.local + workers.remote == 1


def joins_rows(options: IterOptions, shape: PlanShape, engine: EngineName) -> bool:
    """Tell whether the trainer joins rows to batches: it must, or several workers shall make those of one batch."""
    must = runs_in_order(options, shape) and _must_join(options, shape)
    return must or divides_batches(options, shape, engine)


# Which of both, and why not always: docs/decisions/order-and-rows.md#220-a-batch-of-several-workers
def divides_batches(options: IterOptions, shape: PlanShape, engine: EngineName) -> bool:
    """Tell whether several workers make the rows of one batch, of which each element becomes one."""
    if _must_join(options, shape) or not runs_in_order(options, shape):
        return False
    several = options.world_size == 1 and not _one_worker(options)
    # Estimated rows have no numbers to be known by.  Of others, rows on which no function runs take next to nothing,
    # and the tensorflow engine builds a graph for each run that ends within a batch.
    wanted = bool(shape.order.estimated) or (shape.computes and engine == "python")
    return several and wanted and not shape.order.unjoinable


def runs_in_order(options: IterOptions, shape: PlanShape) -> bool:
    """Tell whether several workers make rows in the order of the source."""
    wanted = options.order != "relaxed"
    return wanted and shape.order.in_one_sequence and not (shape.is_one_sequence or why_row_unknown(options, shape))


def is_in_turn(options: IterOptions, shape: PlanShape) -> bool:
    """Tell whether one worker at a time makes rows in the order of the source, where several of one trainer would."""
    if runs_in_order(options, shape) or not row_order(options, shape).kept:
        return False
    return _in_order_alone(options, shape)


def _in_order_alone(options: IterOptions, shape: PlanShape) -> bool:
    """Tell whether several workers would make rows in the order of the source for one trainer."""
    alone = replace(options, workers=Workers(2), rank=0, world_size=1, coordinated=False)
    return runs_in_order(alone, shape)
