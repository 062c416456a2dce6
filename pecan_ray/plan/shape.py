"""What can be told from a plan without running it: can it be cut into splits, how often it repeats, its length."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pecan_ray.errors import PlanError
from pecan_ray.plan.behind import counts_its_elements
from pecan_ray.plan.element_identity import identity_lost_at
from pecan_ray.plan.grouping import GroupingOp
from pecan_ray.plan.operators import (
    Autocache,
    Batch,
    BatchingOp,
    BatchInRows,
    ElementOp,
    Filter,
    FixedSizeBatchingOp,
    FlatMap,
    Join,
    Map,
    Op,
    Pack,
    Plan,
    Prefetch,
    Repeat,
    Shuffle,
    Skip,
    Subset,
    Take,
    Unbatch,
)
from pecan_ray.plan.splits import Source


@dataclass(frozen=True)
class PlanOrder:
    """How far the rows of a plan keep the order of its source."""

    in_one_sequence: bool = False
    """Batches in one sequence have the rows in the order of the source, or of sources one by one."""
    unordered_reason: str = ""
    """Why several workers cannot keep the order of the source: it is not known which row of an epoch an element
    becomes, nor can what becomes of runs be joined; empty where they can."""
    joined: bool = False
    """It is not known which row an element becomes, since some are left out or become several: rows are joined to
    batches in order."""
    estimated: str = ""
    """Why it is only estimated how many elements splits hold, so that rows are joined as well; empty where it is known,
    or where the order hangs on one worker."""
    unjoinable: str = ""
    """Why the rows of several workers cannot be joined to batches; empty where they can."""


@dataclass(frozen=True)
class PlanShape:
    """How a plan is spread over workers."""

    serial: bool
    """Some operator needs the whole sequence (take, skip, zip, ...), so one worker runs the plan."""
    num_passes: int | None
    """Passes over the splits within an epoch, where `repeat` can be run by repeating splits; None: no end."""
    batch_size: int
    """Elements in a batch; 1 where the plan does not batch."""
    shuffled: tuple[Shuffle | None, ...]
    """The shuffle that orders a source's splits too, for each source from left to right; None: as listed."""
    drop_remainder: bool
    holds_back: bool
    """A plan that can be cut, whose workers keep elements back in a way that depends on all that came before: in
    shuffles, buckets, mixes, rows of tokens, batches in the middle of the plan."""
    grouped: bool = False
    """Batches are of one group of elements each."""
    does_rebatch: bool = False
    """A plan that can be read in parts, of which some operator makes items that are not known by their elements
    (`pecan_ray.plan.element_identity`): one worker runs it, and numbers of batches tell what was delivered."""
    keeps: bool = False
    """What splits give is kept at some point (`autocache`), once all of one was gone through."""
    counts: bool = False
    """One worker may run it, and how many elements its first outputs took is known: it can begin behind them
    (`pecan_ray.plan.behind`)."""
    order: PlanOrder = field(default_factory=PlanOrder)
    computes: bool = False
    """Functions run on elements."""
    whole_reason: str = ""
    """Why one worker runs the plan, where several could run others like it; empty: they do, or none like it."""

    @property
    def is_one_sequence(self) -> bool:
        """Return whether one worker runs the plan, and must yield the same batches in the same order again."""
        return self.serial or self.does_rebatch


def _num_passes(plan: Plan) -> int | None:
    """Return how often a plan's splits are handed out; None for no end."""
    num_passes = 1
    for op in plan.ops:
        if isinstance(op, Repeat):
            if op.count is None:
                return None
            num_passes *= op.count
    return num_passes


def plan_shape(plan: Plan, *, order: bool = True) -> PlanShape:
    """Derive a plan's shape; without `order` nothing of the order of rows, for which files may have to be listed.

    `repeat` at the end of a plan, or before its batching, is run by handing out the splits again; in other
    places, and together with operators that need the whole sequence, it makes the plan serial.
    """
    serial = _is_serial(plan)
    holds_back = not serial and _holds_back(plan)
    # docs/decisions/exactly-once.md#95-rows-carry-positions-of-elements has why one worker runs those.
    does_rebatch = not serial and _regroups(plan) and bool(identity_lost_at(plan))
    # What needs the whole sequence: docs/decisions/exactly-once.md#6-serial-plans-run-on-one-worker.
    batching = last_batching(plan)
    unordered_reason, estimated = _told_of_order(plan, wanted=order)
    return PlanShape(
        serial=serial,
        # One worker that runs the whole plan runs `repeat` as an operator.
        num_passes=1 if serial else _num_passes(plan),
        batch_size=1 if batching is None else batching.most_rows,
        # Equal seeds give equal orders: docs/decisions/randomness-and-passes.md#103-equal-seeds-equal-orders.
        shuffled=_drawn_anew(plan, serial=serial),
        drop_remainder=batching is not None and batching.drop_remainder,
        holds_back=holds_back,
        grouped=isinstance(batching, GroupingOp),
        does_rebatch=does_rebatch,
        keeps=any(isinstance(op, Autocache) for op in plan.all_ops()),
        counts=(serial or does_rebatch or holds_back) and counts_its_elements(plan),
        order=PlanOrder(
            keeps_source_order(plan),
            unordered_reason,
            joined=_changes_the_number_of_rows(plan),
            estimated=estimated,
            unjoinable=_join_error(plan, batching),
        ),
        computes=any(isinstance(op, ElementOp) for op in plan.all_ops()),
    )


def _changes_the_number_of_rows(plan: Plan) -> bool:
    one_source = plan.is_in_step or not isinstance(plan.head, Join)
    return one_source and any(isinstance(op, (Filter, FlatMap)) for op in plan.ops)


def _told_of_order(plan: Plan, *, wanted: bool) -> tuple[str, str]:
    """Return why several workers cannot keep the order of the source, and why lengths are estimated where they can."""
    if not wanted:
        return "", ""
    if why := _why_unordered(plan):
        return why, ""
    # Once each: a source may list its files to answer.
    source = next(plan.sources())
    if _counts(source):
        return "", ""
    if not _estimates(source):
        return _learns_lengths(source), ""
    # Decision 228: by an estimate runs can be given out, whose rows are then joined.
    why = _join_error(plan, last_batching(plan))
    return why, "" if why else _learns_lengths(source)


# Not by `isinstance`, which asks properties of protocols as well.
def _counts(source: Source) -> bool:
    return bool(getattr(source, "counts_splits", False))


def _estimates(source: Source) -> bool:
    return bool(getattr(source, "estimates_splits", False))


def _learns_lengths(source: Source) -> str:
    return f"{type(source).__name__} learns how many elements its splits hold by reading them"


def _regroups(plan: Plan) -> bool:
    """Tell whether an operator makes items that several elements may have been made into, or takes them apart."""
    return any(isinstance(op, (FlatMap, Pack, Unbatch)) for op in plan.all_ops())


def _keeps_positions(op: Op, last: Op | None) -> bool:
    one_by_one = isinstance(op, (Map, Filter, FlatMap, Prefetch, Repeat))
    return one_by_one or (op is last and isinstance(op, FixedSizeBatchingOp))


def _why_unordered(plan: Plan) -> str:
    """Return why several workers cannot keep the order of an epoch's rows, whatever is known of its splits."""
    if isinstance(plan.head, Join) and not plan.head.in_step:
        return f"{plan.head.kind} joins several sources"
    last = last_batching(plan)
    for op in plan.ops:
        if isinstance(op, Autocache):
            return f"{op.name} keeps what whole splits give, which several workers cannot divide"
        if not _keeps_positions(op, last):
            return f"behind {op.name} elements are not known by their places in the source"
    return _why_rows_unknown(plan, last)


def _why_rows_unknown(plan: Plan, last: BatchingOp | None) -> str:
    """Return why rows are neither numbered nor joined, if an operator changes their number."""
    changes = next((op for op in plan.ops if isinstance(op, (Filter, FlatMap))), None)
    if changes is None or not (why := _join_error(plan, last)):
        return ""
    message = "leaves elements out" if isinstance(changes, Filter) else "makes several elements of one"
    return f"{changes.name} {message}, and {why}"


def _join_error(plan: Plan, last: BatchingOp | None) -> str:
    """Return why rows that several workers have made cannot be joined to batches; empty where they can."""
    # Workers return rows, and the trainer alone has whole batches:
    # docs/decisions/order-and-rows.md#144-joined-rows.
    behind = plan.ops[plan.ops.index(last) + 1 :] if last is not None else ()
    if changed := next((op.name for op in behind if isinstance(op, ElementOp)), None):
        return f"{changed} works on whole batches, which rows of several workers would have to be joined to before"
    if last is not None and type(last) not in (Batch, BatchInRows):
        return f"{last.name} makes batches of rows that are known to one worker alone"
    return ""


def _has_seed(op: Shuffle | None) -> bool:
    """Tell whether a shuffle has a seed of its own.

    In a plan that one worker runs, it draws from its buffer over the source's order alone: two of them with equal seeds
    over equally many elements give one order, in however many files each has them, so that `zip` pairs what belongs
    together.
    """
    return op is not None and op.seed is not None


def _drawn_anew(plan: Plan, *, serial: bool) -> tuple[Shuffle | None, ...]:
    """Return the shuffles of a plan's sources, but those that one worker runs with a seed of their own."""
    return tuple(None if serial and _has_seed(op) else op for op in _shuffled(plan))


def _shuffled(plan: Plan, behind: Shuffle | None = None) -> Iterator[Shuffle | None]:
    """Yield for each source the shuffle that comes before anything that depends on the order of its elements.

    What `take` and `skip` choose, and `zip` pairs, is what the user sees in the order as listed: a shuffle behind them
    mixes what is left.  `behind`: what holds for the elements that come out of the plan.
    """
    for op in plan.ops:
        if isinstance(op, (Shuffle, Take, Skip)):
            behind = op if isinstance(op, Shuffle) else None
            break
    head = plan.head
    if isinstance(head, Join):
        for branch in head.inputs:
            yield from _shuffled(branch, None if _is_order_dependent(head) and not head.in_step else behind)
    else:
        yield behind


def _is_order_dependent(join: Join) -> bool:
    """Tell whether what comes out of a join depends on the order of what goes in."""
    return join.kind == "zip" or (join.kind == "mix" and join.stop == "first")


def keeps_source_order(plan: Plan) -> bool:
    """Tell whether batches in one sequence have the rows in the order of the source, or of sources one by one."""
    joins = [plan.head] if isinstance(plan.head, Join) else []
    reordered = any(isinstance(op, (Shuffle, GroupingOp)) for op in plan.all_ops())
    inner = (keeps_source_order(branch) for join in joins for branch in join.inputs)
    return not reordered and all(join.kind != "mix" for join in joins) and all(inner)


def _holds_back(plan: Plan) -> bool:
    if isinstance(plan.head, Join) and not plan.head.in_step:
        return True
    last = last_batching(plan)
    return any(
        isinstance(op, (Shuffle, GroupingOp, Pack)) or (isinstance(op, BatchingOp) and op is not last)
        for op in plan.ops
    )


def last_batching(plan: Plan) -> BatchingOp | None:
    """Return the operator that forms the final batches, if the plan ends with batches."""
    for op in reversed(plan.ops):
        if isinstance(op, BatchingOp):
            return op
        if isinstance(op, Unbatch):
            return None
    return None


def _is_serial(plan: Plan) -> bool:
    last = last_batching(plan)
    if any(isinstance(op, (Take, Skip)) or (op is not last and _drops(op)) for op in plan.ops):
        return True
    head = plan.head
    if not isinstance(head, Join) or head.in_step:
        return False
    # What an input with a weight of 0 holds is never asked for: that counts as done where one worker runs the plan.
    if _is_order_dependent(head) or head.counts_draws or head.leaves_out:
        return True
    return any(map(_needs_one_worker_in_join, head.inputs))


def _needs_one_worker_in_join(branch: Plan) -> bool:
    return _is_serial(branch) or any(isinstance(op, Repeat) or _drops(op) for op in branch.all_ops())


def _drops(op: Op) -> bool:
    """Tell whether an operator leaves out a remainder: before the end of a plan there must be only one of it."""
    return isinstance(op, BatchingOp) and op.drop_remainder


CountMembers: TypeAlias = Callable[[Sequence[Subset], Source], int | None]
"""Returns how many elements of a source belong to all of some parts; None where that is not known without reading."""


def num_batches(plan: Plan, members: CountMembers = lambda parts, source: None) -> int | None:
    """Return how many batches (or elements) one epoch of one trainer yields, where that follows from the plan."""
    count = _count(plan, plan_shape(plan, order=False).serial, members)
    return None if count is None or math.isinf(count) else int(count)


def _count(plan: Plan, serial: bool, members: CountMembers) -> float | None:
    """Count what comes out of a plan: infinity for no end, None if it is not known.

    Batches at the end of a plan go on over the passes of a `repeat` behind them, but where one worker runs it.
    """
    count, last, repeated = _head_count(plan, serial, members), last_batching(plan), False
    parts = [op for op in plan.ops if isinstance(op, Subset)]
    if parts and not isinstance(plan.head, Join):
        count = members(parts, plan.head)
    lengths = dict(plan.lengths)
    for place, op in enumerate(plan.ops):
        count = lengths.get(place, count)
        if op is last and not serial:
            repeated, count = True, _repeated(count, plan.ops[place:])
        if count is not None and not (repeated and isinstance(op, Repeat)):
            count = _after(op, count)
    return lengths.get(len(plan.ops), count)


def _repeated(count: float | None, ops: Sequence[Op]) -> float | None:
    """Return how many elements the passes of all repeats among some operators have together."""
    for repeat in (one for one in ops if isinstance(one, Repeat)):
        count = _times(count, repeat.count)
    return count


def _head_count(plan: Plan, serial: bool, members: CountMembers) -> float | None:
    head = plan.head
    if not isinstance(head, Join):
        return head.num_elements()
    counts = [_count(branch, serial, members) for branch in head.inputs]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return None
    if head.kind == "zip":
        return min(known)
    # Then the draws decide how many elements come.
    return None if head.kind == "mix" and (head.stop == "first" or head.leaves_out) else sum(known)


def _times(count: float | None, num_passes: int | None) -> float | None:
    if not count:
        return count  # nothing repeated without end is still nothing
    return count * (math.inf if num_passes is None else num_passes)


def _after(op: Op, count: float) -> float | None:
    if isinstance(op, (Map, Shuffle, Prefetch, Autocache, Subset)):
        return count
    if math.isinf(count) and isinstance(op, (FixedSizeBatchingOp, Skip)):
        return count
    if isinstance(op, FixedSizeBatchingOp):
        return count // op.size if op.drop_remainder else -(-count // op.size)
    if isinstance(op, Take):
        return min(count, op.count)
    if isinstance(op, Skip):
        return max(0, count - op.count)
    if isinstance(op, Repeat):
        return _times(count, op.count)
    if isinstance(op, (Filter, FlatMap, GroupingOp, Unbatch, Pack)):
        return None
    raise PlanError(f"{op.name}: an operator of unknown kind {type(op).__name__}.")


def element_ops_from(plan: Plan, branch: int) -> list[ElementOp]:
    """Return the element operators that the elements of one source pass before they are batched."""
    found, counted = _path(plan, branch)
    assert counted is None
    return found


def _path(plan: Plan, branch: int) -> tuple[list[ElementOp], int | None]:
    """Return the operators on the way from a source, and None; or how many sources were passed in vain."""
    if isinstance(plan.head, Join):
        passed = 0
        for inner in plan.head.inputs:
            ops, missed = _path(inner, branch - passed)
            if missed is None:
                return [*ops, *_before_batching(plan.ops)], None
            passed += missed
        return [], passed
    return (_before_batching(plan.ops), None) if branch == 0 else ([], 1)


def first_op_across_splits(plan: Plan) -> str | None:
    """Return the name of the first operator or join behind which elements are no longer those of one split."""
    if isinstance(plan.head, Join):
        return plan.head.kind
    return next((op.name for op in plan.ops if not isinstance(op, (ElementOp, Autocache, Prefetch))), None)


def kept_points(plan: Plan) -> dict[int, Autocache]:
    """Return the points at which elements are kept, by the number of the source that they stand behind."""
    return {branch: point for branch, point in enumerate(_points(plan)) if point is not None}


def _points(plan: Plan) -> list[Autocache | None]:
    if isinstance(plan.head, Join):
        return [point for branch in plan.head.inputs for point in _points(branch)]
    return [next((op for op in plan.ops if isinstance(op, Autocache) and op.key), None)]


def _before_batching(ops: Sequence[Op]) -> list[ElementOp]:
    found: list[ElementOp] = []
    for op in ops:
        if isinstance(op, (BatchingOp, Pack)):
            break
        if isinstance(op, ElementOp):
            found.append(op)
    return found


def name_of_last(ops: Sequence[Op]) -> str:
    """Return the name of the operator from which elements leave some operators."""
    return next((op.name for op in reversed(ops) if isinstance(op, (ElementOp, Pack))), "the source")


def yields_batches(plan: Plan) -> bool:
    """Tell whether a plan yields batches, and not elements."""
    last = next((op for op in reversed(plan.ops) if isinstance(op, (BatchingOp, Unbatch))), None)
    if last is not None:
        return not isinstance(last, Unbatch)
    return isinstance(plan.head, Join) and all(map(yields_batches, plan.head.inputs))
