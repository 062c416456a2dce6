"""The rows of an epoch that nobody has: those that came back or were passed over, and those behind all others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pecan_ray.job.epoch_rows import EpochRows
from pecan_ray.job.fatal_batches import FatalBatches
from pecan_ray.job.fatal_elements import FatalElementTracker
from pecan_ray.job.lease_rows import rows_of
from pecan_ray.job.lease_sizes import cut, elements_in, may_be_cut
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.leftovers import Leftovers
from pecan_ray.job.own_ranks import OwnRanks, RowsToGive
from pecan_ray.job.queues import Queues
from pecan_ray.job.skipped_rows import SkippedRows
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Split
from pecan_ray.sampling.spans import Span


def _place(lease: Lease) -> tuple[int, int, tuple[Span, ...]]:
    """Return what leases are sorted by, in the order of the source."""
    return lease.pass_index, lease.split.index, lease.spans


class WaitingRows:
    """Leases of the rows that nobody has."""

    def __init__(self, shape: LedgerShape, queues: Queues, epoch_rows: EpochRows) -> None:
        self._shape, self._queues, self._epoch_rows = shape, queues, epoch_rows
        self.given = 0
        """Rows before this one were given out, or were passed over."""
        self._open_before = 0
        """Rows before this one that nobody has are for any worker."""
        self.fatal_batches = FatalBatches(shape.batch_size, divides=shape.joined)
        self.skipped_rows = SkippedRows()
        self._ends: dict[int, int] = {}
        """By the numbers of estimated splits: nothing lies behind so many of their elements."""

    def begin_epoch(self) -> None:
        """Begin an epoch at its first row."""
        self.given = self._open_before = 0
        self.fatal_batches.clear()
        self.skipped_rows.clear()

    def ended(self, split: Split, elements: int) -> None:
        """Note that a split holds so many elements, or fewer."""
        if self._shape.joined and split.about is not None:
            self._ends[split.index] = min(elements, self._ends.get(split.index, elements))

    def to_give(self, limit: int) -> RowsToGive:
        """Return which rows may be given out: what came back in any case, else up to a limit."""
        # Decision 135: what came back needs no room in the window. Else the next rows might have no worker.
        passed = []
        for lease in self._queues.common[0].returned:
            rows = rows_of(self._epoch_rows.number(lease))
            if rows[0] >= self.given:
                break
            passed.append(rows)
        end = self._epoch_rows.end()
        if self._is_whole_next():
            limit = max(limit, self.given + 1)
        return RowsToGive(passed, self.given, min(end, limit), end, self._open_before)

    def _is_whole_next(self) -> bool:
        """Tell whether a whole split is the next that nobody was given."""
        # Decision 234: trainers bound by bytes what comes of one before its turn, so that several may be under way.
        queue = self._queues.common[0]
        if not (self._shape.joined and self._queues.listings[0].has_whole):
            return False
        cut = (one.split for one in queue.returned if rows_of(self._epoch_rows.number(one))[0] >= self.given)
        following = next(cut, None) or queue.next_fresh()
        return following is not None and following.whole

    def leave_rest(self, leftovers: Leftovers) -> None:
        """Leave over the rows that are in no run: fewer than there are ranks, or than fill a batch of each.

        Splits without elements behind the last row go, too.
        """
        queue = self._queues.common[0]
        came_back = bool(queue.returned) and rows_of(self._epoch_rows.number(queue.returned[0]))[0] < self.given
        if came_back or self.given < self._epoch_rows.end():
            return
        while (lease := queue.take()) is not None:
            if elements_in(lease):
                leftovers.add(self._epoch_rows.number(lease), lease.spans)

    def put_back(self, leases: Iterable[Lease]) -> None:
        """Let leases be the next ones, together with those that came back before, in the order of the source."""
        queue = self._queues.common[0]
        # One interval a lease, because what came back from others may lie between two of them.
        # Whether a lease is left out is asked anew when it is taken (`SkippedRows.first_part`).
        each = [replace(lease, spans=(span,), left_out=False) for lease in leases for span in lease.spans]
        # The rest of the next lease stays the next one, and mostly that is all.
        if len(each) == 1 and (not queue.returned or _place(each[0]) < _place(queue.returned[0])):
            queue.returned.appendleft(each[0])
        elif each:
            queue.returned = deque(sorted((*queue.returned, *each), key=_place))

    def open_leases(self, leases: Sequence[Lease]) -> None:
        """Let leases, and all rows before them that nobody has, be for any worker."""
        if self._shape.world_size > 1:
            self.open_before(max((rows_of(self._epoch_rows.number(lease))[1] for lease in leases), default=0))

    def open_before(self, row: int) -> None:
        """Let all rows before one that nobody has be for any worker, whatever node their ranks run on."""
        self._open_before = max(self._open_before, row)

    def next_of(
        self, own: OwnRanks | None, limit: int, fatal_elements: FatalElementTracker, passed: list[Lease]
    ) -> Lease | None:
        """Return the next lease of some ranks, after rows of other ranks, which are added to those passed over.

        None: no lease waits before the limit.
        """
        while (lease := self._next(fatal_elements)) is not None:
            if self._shape.world_size == 1 or elements_in(lease) is None or lease.split.elements is None:
                return lease
            first = rows_of(lease)[0]
            if first >= limit:
                self.put_back([lease])
                return None
            # A batch that begins before the limit ends before it.
            lease = self.cut(lease, min(limit, limit if own is None else own.end_of(first)) - first)
            if own is None or own.serves(first):
                return lease
            passed.append(lease)
        return None

    def _next(self, fatal_elements: FatalElementTracker) -> Lease | None:
        while (lease := self._queues.common[0].take()) is not None:
            if self._shape.joined:
                first, behind = self.skipped_rows.first_part(self._epoch_rows.number(lease), fatal_elements)
                self.put_back(behind)
                return first
            if (rest := fatal_elements.without_fatal_elements(lease)) is not None:
                return self._epoch_rows.number(rest)
        return None

    def cut(self, lease: Lease, most: int) -> Lease:
        """Return at most so many elements of a lease, and put back the rest."""
        # Decision 151: a batch with which two workers have died is a run of its own, so the one before ends there.
        first = rows_of(lease)[0]
        suspected, elements = self.fatal_batches.next_suspected_row(first), elements_in(lease) or 0
        apart = elements > 0 and self.fatal_batches.is_suspected(first)
        # Decision 234: a part of a whole split costs all that lies before it.
        if lease.split.whole and suspected is None and not apart:
            return lease
        most = min(most, self._epoch_rows.last_round().run_end(first) - first)
        most = most if suspected is None else min(most, suspected - first)
        # What an estimate that is too large still has behind the end is one run, and each run passes over the split.
        is_behind = (
            suspected is None
            and lease.spans[-1][1] == END
            and lease.spans[0][0] >> OUTPUT_BITS >= self._ends.get(lease.split.index, END)
        )
        # Behind the estimated end may lie others than the batch that is made apart.
        if is_behind or not (may_be_cut(lease, most) if apart else elements > most):
            return lease
        part, rest = cut(lease, most)
        self.put_back([rest])
        return part
