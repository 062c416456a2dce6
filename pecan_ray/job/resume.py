"""Where a run stands after so many batches of each rank, and how another one begins there.

What a trainer has *received* is acknowledged to the job; what its loop was given is *used* (yielded); what a state that
was taken holds is committed.  A resume point holds what was used: all that was acknowledged, less the deliveries
beyond the batch after which it was taken.

Decisions: docs/decisions/states-and-resume.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeAlias

from pecan_ray.job.delivery_log import Delivery, DeliveryLog
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.resume_point import WHOLE, BranchPoint, Cursor, Rest, ResumePoint, Step
from pecan_ray.job.split_queue import SplitQueue
from pecan_ray.plan.splits import END, LeaseKey
from pecan_ray.sampling.spans import Span, Spans, merged

Missing: TypeAlias = dict[LeaseKey, list[Span]]
"""Of each split what is missing: intervals in any order, which may touch and overlap."""
MOST_INTERVALS = 4096
"""A state holds at most this many intervals of the last batches: some 15 KB."""
MOST_TOLD = 64
"""Points that are kept, the newest ones."""
PAST_ALL = 1 << 53
"""A cursor behind every split; JSON's numbers hold it."""


class ResumePoints:
    """Where a job stands, told in the same words to all ranks that ask after the same number of batches.

    Meanwhile more is known, of elements that yield nothing for instance: ranks that go on from states of their own
    would find that these differ.
    """

    def __init__(self) -> None:
        self._reported: dict[int, ResumePoint] = {}

    def at(
        self,
        ledger: Ledger,
        log: DeliveryLog,
        batches: int,
        complete: Callable[[ResumePoint], ResumePoint],
        *,
        early: bool = False,
    ) -> ResumePoint | None:
        """Return where the job stands after so many batches of each rank; None before all of these were reported.

        `complete`: called with the point, adds what else is known.  `early`: the loop may not have used them yet, and
        may leave their epoch, so that the point is not kept for others.
        """
        self._reported = {told: point for told, point in self._reported.items() if told >= log.first_known}
        if batches not in self._reported:
            point = resume_point(ledger, log, batches)
            if point is None:
                return None
            if early:
                return complete(point)
            self._reported[batches] = complete(point)
            if len(self._reported) > MOST_TOLD:
                del self._reported[next(iter(self._reported))]
        return self._reported[batches]


def resume_point(ledger: Ledger, log: DeliveryLog, batches: int) -> ResumePoint | None:
    """Return where the job stands after so many batches of each rank; None before all of these were reported."""
    if not log.has_all(batches):
        return None
    beyond = list(log.beyond(batches))
    # The oldest epoch of which some batch is not used: of all later ones nothing was used.
    epoch = min((one.epoch for one in beyond), default=ledger.epoch)
    missing: Missing = {}
    _add(missing, ((key, spans) for one in beyond if one.epoch == epoch for key, spans in one.spans.items()))
    if ledger.shape.runs_whole:
        return ResumePoint(epoch, tuple(_fresh(ledger)), used_batches=_used_batches(ledger, epoch, beyond))
    passes = ledger.shape.num_passes or 0
    steps = tuple(_steps(log, batches, ledger.shape.branches))
    # Decision 142: a state at the end of an epoch holds nothing of the next one, though the job has begun that. So
    # another pipeline may go on from it.
    nothing_used = log.at_epoch_start(epoch, batches) or (ledger.finished and epoch == ledger.epoch)
    if nothing_used:
        points = _fresh(ledger)
    elif (point := _beginning(ledger, log, batches, epoch, missing)) is not None:
        points = [point]
    else:
        points = _reached(ledger, epoch, missing)
    return ResumePoint(epoch, tuple(points), steps=steps, passes=passes)


# Why not what the ledger lacks: docs/decisions/order-and-rows.md#228-estimated-splits
def _beginning(ledger: Ledger, log: DeliveryLog, batches: int, epoch: int, beyond: Missing) -> BranchPoint | None:
    """Return that all behind the last batch is missing, where one worker gives rows in order; None elsewhere.

    `beyond`: what was delivered and is missing.
    """
    if _is_all_used(ledger, epoch, beyond) or not ledger.is_in_turn(epoch):
        return None
    if not batches:
        return ledger.start.branches[0] if epoch == ledger.start.epoch else BranchPoint()
    place = _end_of_last(log, batches, epoch)
    if place is None:
        return None
    waiting = _waiting(ledger) if epoch == ledger.epoch and not ledger.shape.in_order else ()
    if any((*key, start) < place for key, spans in chain(beyond.items(), waiting) for start, _ in spans):
        return None  # a split that this worker could not open, and another one may
    _, pass_index, index, position = place
    return BranchPoint(Cursor(pass_index, index + 1), (Rest(index, pass_index, ((position, END),)),))


def _is_all_used(ledger: Ledger, epoch: int, beyond: Missing) -> bool:
    """Tell whether all of an epoch was delivered, and nothing of it is missing."""
    return epoch == ledger.epoch and not beyond and ledger.closing() and not any(unfinished(ledger))


def _end_of_last(log: DeliveryLog, batches: int, epoch: int) -> tuple[int, int, int, int] | None:
    """Return branch, pass, split and position where the last used batch of an epoch ends; None if it is of another."""
    used = [delivery.spans for delivery in log.last(batches) if delivery.epoch == epoch]
    return max(((*key, stop) for spans in used for key, held in spans.items() for _, stop in held), default=None)


def _used_batches(ledger: Ledger, epoch: int, beyond: Sequence[Delivery]) -> int:
    """Return how many batches of an epoch of a whole plan are used, when these are not."""
    counts = ledger.counts if epoch == ledger.epoch else ()
    return ledger.produced.of(epoch, counts) - sum(one.epoch == epoch for one in beyond)


def _fresh(ledger: Ledger) -> list[BranchPoint]:
    """Return the beginnings of all sources: nothing of an epoch is used, or begun, if another run has more epochs."""
    return [BranchPoint()] * ledger.shape.branches


def _reached(ledger: Ledger, epoch: int, missing: Missing) -> list[BranchPoint]:
    """Return where the job stands in each source in an epoch, of which this is missing that was delivered."""
    # The ledger has gone on: the rest of that epoch was acknowledged, or all loops left it.
    if epoch < ledger.epoch:
        passes = ledger.shape.num_passes or 0
        return [ended(passes, tuple(_remaining_parts(missing, branch))) for branch in range(ledger.shape.branches)]
    _add(missing, unfinished(ledger))
    return [
        _point(queue, tuple(_remaining_parts(missing, branch))) for branch, queue in enumerate(ledger.queues.common)
    ]


def ended(passes: int, remaining_parts: tuple[Rest, ...]) -> BranchPoint:
    """Return where a run stands in a source of which all was begun."""
    return BranchPoint(Cursor(max(1, passes) - 1, PAST_ALL), remaining_parts)


def _steps(log: DeliveryLog, batches: int, branches: int) -> Iterator[Step]:
    """Yield the last batches of each rank, as far as they are few intervals."""
    told = 0
    for delivery_records in log.before(batches):
        ranks = tuple(_of_branches(one, branches) for one in delivery_records)
        told += sum(len(rest.spans) for rank in ranks for remaining_parts in rank for rest in remaining_parts)
        # The newest ones come first, so the oldest ones are left out.
        if told > MOST_INTERVALS:
            return
        yield Step(delivery_records[0].epoch, ranks)


def _of_branches(delivery: Delivery, branches: int) -> tuple[tuple[Rest, ...], ...]:
    had: Missing = {}
    _add(had, delivery.spans.items())
    return tuple(tuple(_remaining_parts(had, branch)) for branch in range(branches))


def unfinished(ledger: Ledger) -> Iterator[tuple[LeaseKey, Iterable[Span]]]:
    """Yield what was begun in this epoch and is not delivered."""
    for state in ledger.workers.values():
        yield from ((key, held.missing) for key, held in state.pending_leases.items())
        yield from ((lease.key, lease.spans) for lease in state.group)
    yield from _waiting(ledger)


def _waiting(ledger: Ledger) -> Iterator[tuple[LeaseKey, Iterable[Span]]]:
    """Yield what of that nobody has."""
    yield from ledger.leftovers.positions()
    yield from ledger.fatal_elements.positions()
    for branch, queue in enumerate(ledger.queues.common):
        yield from (((branch, rest.pass_index, rest.index), rest.spans) for rest in queue.remaining_parts())


def _add(missing: Missing, more: Iterable[tuple[LeaseKey, Iterable[Span]]]) -> None:
    for key, spans in more:
        missing.setdefault(key, []).extend(spans)


def _remaining_parts(missing: Missing, branch: int) -> Iterator[Rest]:
    for of, pass_index, index in sorted(missing):
        if of == branch and (spans := merged(missing[of, pass_index, index])):
            yield Rest(index, pass_index, spans)


def _point(queue: SplitQueue, remaining_parts: tuple[Rest, ...]) -> BranchPoint:
    """Tell of whole splits by their places in the order: workers take them one after the other."""
    cursor, listed = queue.cursor(), queue.num_ordered

    # Only the order of the pass at hand is known: a split of an earlier pass, or one not listed
    # yet, has no place in it.
    def has_place(rest: Rest) -> bool:
        return rest.spans == WHOLE and rest.pass_index == cursor.pass_index and rest.index < listed

    whole = [rest.index for rest in remaining_parts if has_place(rest)]
    places = Spans((place, place + 1) for place in sorted(queue.positions(whole)))
    for start, stop in cursor.missing:
        places.add(start, stop)
    parts = tuple(rest for rest in remaining_parts if not has_place(rest))
    return BranchPoint(replace(cursor, missing=tuple(places)), parts, queue.used())
