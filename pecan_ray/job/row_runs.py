"""Runs: consecutive rows of an epoch, which workers make while others make those before them.

Where each element becomes one row, and splits tell how many elements they hold, it is known before an element is read
which row of the epoch it becomes.  Let B be the rows of a batch.  A run begins where a batch does, and holds a multiple
of B, but for the one that ends the epoch.  So all batches are those that one worker would make in order, whoever makes
them, and each is known by its first row: the trainer puts them in order (`pecan_ray.job.row_sequence`), and
acknowledges none before its turn.

With several ranks, rank r of w gets batches r, r + w, r + 2w and so on.  If the last round lacks a batch, its runs are
even shares of its rows, one for each rank (`pecan_ray.job.last_round`).  A worker is given batches of ranks on its own
node first (`pecan_ray.job.own_ranks`): its run may leave out rows, which wait for others.

What a lost worker held begins and ends between batches, too, and is given out before anything new.  New rows are given
out up to a *window* beyond those that have had their turn.  A worker that can get none ends its assignment, so that it
holds nothing unfinished: the next batch is always with somebody who is at work on it, or is the next answer.

Behind a filter it is not known beforehand which row an element becomes.  A run is then some elements, of any number:
at its end the worker gives up what it has made, and the trainer joins that with the rows before it
(`pecan_ray.job.joiner`).  The window is kept by the rows that elements have become so far.

Where several workers shall make the rows of one batch (decision 220), rows are joined although their numbers are known.

Where the engine gives up what fills no batch at the end of a run, one is followed by another (decision 231): threads go
on while an element is slow, and a worker for which there is no room in the window waits for it with what it works on.
Elsewhere a run of joined rows is an assignment of its own, unless it is one of whole batches.

A batch with which two workers have died is a run of its own, of a worker that works on nothing else; where rows are
joined, so many elements as a batch has rows.

Where a split proves longer or shorter than it told, where a worker cannot open one, or two workers have died of one
batch alone, the order is given up for the rest of the job: this is then dealt with as anywhere else.  Where the order
was promised, the job ends with an error instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from functools import partial

from pecan_ray.job.blocks import place_of
from pecan_ray.job.epoch_rows import MANY, EpochRows
from pecan_ray.job.fatal_batches import FatalBatches
from pecan_ray.job.fatal_elements import FatalElementTracker
from pecan_ray.job.lease_rows import rows_of
from pecan_ray.job.lease_sizes import elements_in
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.leftovers import Leftovers
from pecan_ray.job.own_ranks import MANY_BATCHES, OwnRanks, RowsToGive, run_begin
from pecan_ray.job.pending_leases import LeaseSpans, WorkerLeaseState
from pecan_ray.job.queues import Queues
from pecan_ray.job.rows_in_turn import RowsInTurn
from pecan_ray.job.skipped_rows import SkippedRows
from pecan_ray.job.waiting_rows import WaitingRows
from pecan_ray.plan.splits import Lease, LeaseKey
from pecan_ray.sampling.spans import Span

WINDOW_BATCHES = 4
"""Of each worker, in the window: one that it makes, one that it has asked for, and two that wait for their turn."""


def _ends_within_batch(shape: LedgerShape, rows: int, state: WorkerLeaseState) -> bool:
    """Tell whether an assignment ends with a run of so many rows: its last batch is not full, or it is alone.

    Where rows are joined, a worker that cannot give up what fills no batch ends it by itself.
    """
    return (not shape.joined and rows % shape.batch_size > 0) or state.alone is not None


class RowRuns:
    """Which rows of an epoch were given out."""

    def __init__(self, shape: LedgerShape, queues: Queues, *, continues: bool) -> None:
        """`continues`: a run before this one has used a part of the epoch."""
        self._shape, self._queues = shape, queues
        self._epoch_rows = EpochRows(shape, queues, continues=continues)
        self._waiting = WaitingRows(shape, queues, self._epoch_rows)
        self.max_within_budget = 0
        """The number of rows that the trainer has memory for."""
        self.in_turn = RowsInTurn(shape, queues)
        self.fatal_reason = ""
        """Why the order cannot be kept, where it was promised."""
        self.given_up = ""
        """Why the order was given up, so that rows come as workers finish them; empty: it was not."""
        self._reported = False
        """`given_up` was reported."""

    @property
    def kept(self) -> bool:
        """Return whether rows are given out, and come, in order."""
        return self._shape.in_row_order and not self.given_up

    @property
    def joins(self) -> bool:
        """Return whether the trainer joins rows to batches."""
        return self._shape.joined and self.kept

    @property
    def place_in_turn(self) -> int:
        """The place before which all of the epoch has had its turn, where rows are joined."""
        return max(self.in_turn.place, place_of(*self._epoch_rows.start))

    def is_next(self, key: LeaseKey, spans: Iterable[Span]) -> bool:
        """Tell whether positions hold what lies behind the place in turn, where rows are joined."""
        place, split = self.place_in_turn, self._epoch_rows.split_number(key)
        return any(place_of(split, start) <= place < place_of(split, stop) for start, stop in spans)

    @property
    def fatal_batches(self) -> FatalBatches:
        """How many workers have died with each batch."""
        return self._waiting.fatal_batches

    @property
    def skipped_rows(self) -> SkippedRows:
        """Which rows nobody can make."""
        return self._waiting.skipped_rows

    def drop_order(self, why: str) -> None:
        """Let rows come as workers finish them from now on; where the order was promised, say why it is not kept."""
        # Decision 175: without the order, blocks and whole batches of the same rows would be under way together.
        if self._shape.order_required or (self._shape.joined and self._waiting.given):
            self.fatal_reason = self.fatal_reason or why
        elif self.kept:
            self.given_up = why

    def report_given_up_once(self) -> bool:
        """Tell, once, that the order was given up."""
        news, self._reported = bool(self.given_up) and not self._reported, bool(self.given_up)
        return news

    def begin_epoch(self) -> None:
        """Begin an epoch at its first row."""
        self.in_turn.begin_epoch()
        self._epoch_rows.begin_epoch()
        self._waiting.begin_epoch()

    def may_begin(
        self, worker: str, state: WorkerLeaseState, received: int, workers: int, own: OwnRanks | None = None
    ) -> bool:
        """Tell whether a worker could be given something.

        `received`: so many rows have had their turn.  `own`: the ranks that it serves first.
        """
        self._go_on()
        if not self.kept:
            return True
        # Decision 152: what comes next is for a second worker. The late one works on it already, and stands back.
        if self.should_wait(worker, state):
            return False
        return self._epoch_rows.known and run_begin(self._rows_to_give(received, workers), own) is not None

    def _go_on(self) -> None:
        if self._epoch_rows.find():
            self.drop_order("the run goes on from a state of one whose rows came as workers finished them")

    def leave_rest(self, leftovers: Leftovers) -> None:
        """Leave over the rows that are in no run, once all others were given out."""
        if self._shape.world_size == 1 or not (self.kept and self._queues.is_complete):
            return
        self._go_on()
        if self.kept:
            self._waiting.leave_rest(leftovers)

    def without_row(self, lease: Lease) -> Lease:
        """Return a lease without its row if the order is given up: its batches may begin anywhere then."""
        return replace(lease, row=None) if self.given_up else lease

    def take(
        self,
        worker: str,
        state: WorkerLeaseState,
        most: int,
        received: int,
        workers: int,
        fatal: FatalElementTracker,
        own: OwnRanks | None = None,
        *,
        waits: bool = False,
    ) -> tuple[Lease, ...] | None:
        """Return the next run, of about `most` rows; none where the worker must end its assignment first.

        None: it must wait for the listing, or the order was given up; or, if it `waits` for room, there is none now.
        """
        rows_to_give = self._rows_to_give(received, workers)
        begin = run_begin(rows_to_give, own)
        if state.ends or self.should_wait(worker, state):
            return ()
        if begin is None:
            return None if waits and self._shape.joined and rows_to_give.fresh < rows_to_give.end else ()
        wanted = self._run_size(min(most, self._room(rows_to_give, workers)), workers, rows_to_give, begin.row)
        few = wanted <= MANY_BATCHES * self._shape.batch_size
        passed: list[Lease] = []
        limit = max(rows_to_give.limit, rows_to_give.fresh)
        following = partial(self._waiting.next_of, begin.own if few else None, limit, fatal, passed)
        run = self._next_run(state, wanted, following, self._queues.excluded(worker))
        self._waiting.put_back(passed)
        if run is None:
            return None
        self._note_given(run, state, fatal)
        return tuple(map(self._epoch_rows.placed, run)) if self._shape.joined else tuple(run)

    def _note_given(self, run: Sequence[Lease], state: WorkerLeaseState, fatal: FatalElementTracker) -> None:
        rows = sum(elements_in(lease) or 0 for lease in run)
        state.taken += rows
        share = bool(run) and self._epoch_rows.share(run[0]) is not None
        # Decision 234: rows that all wait for are not given to a worker that must make a whole split before.
        state.ends = share or any(lease.split.whole for lease in run) or _ends_within_batch(self._shape, rows, state)
        for lease in run:
            # What came back lies before rows that others were given.
            self._waiting.given = max(self._waiting.given, rows_of(lease)[1])
            if lease.left_out:
                fatal.note_left_out(lease)

    def should_wait(self, worker: str, state: WorkerLeaseState) -> bool:
        """Tell whether what comes next is for another worker: this one has it already, or cannot open it."""
        returned = self._queues.common[0].returned
        cannot = bool(returned) and returned[0].key in self._queues.excluded(worker)
        return state.is_waiting_for(returned) or (cannot and not self.skipped_rows.has(returned[0]))

    def _next_run(
        self, state: WorkerLeaseState, wanted: int, following: Callable[[], Lease | None], barred: Set[LeaseKey]
    ) -> list[Lease] | None:
        """Return leases of the next `wanted` rows, by `following`; fewer where a run has to end, None as in `take`."""
        run: list[Lease] = []
        rows = 0
        while rows < wanted:
            lease = following()
            if lease is None:
                # A run may end within a batch only if the epoch does, which the listing has yet to tell.
                if self._queues.is_complete or rows % self._shape.batch_size == 0 < rows:
                    break
                self._waiting.put_back(run)
                return None
            if elements_in(lease) is None or lease.split.elements is None:
                # Without a row number it is a lease as in any other job, because the order is given up with it.
                self._waiting.put_back([*run, replace(lease, row=None)])
                self.drop_order(f"{lease.split.where(0)} and what follows are not counted before they are read")
                return None
            alone = self._needs_own_worker(lease, rows)
            if self._begins_another(lease, run, state, barred, alone=alone):
                self._waiting.put_back([lease])
                break
            if alone:
                first = rows_of(lease)[0]
                state.alone = self.fatal_batches.unit(first)
                wanted = state.alone[1] - first
            run.append(self._waiting.cut(lease, wanted - rows))
            if lease.left_out:
                break
            rows += elements_in(run[-1]) or 0
        return run

    def _begins_another(
        self, lease: Lease, run: Sequence[Lease], state: WorkerLeaseState, barred: Set[LeaseKey], *, alone: bool
    ) -> bool:
        """Tell whether a lease begins another run; `alone`: its worker must work on nothing else."""
        # Joined rows must follow each other, and a split that this worker cannot open is for another one.
        if self._shape.joined and run and (not self._epoch_rows.follows(run[-1], lease) or lease.key in barred):
            return True
        return (alone or self._epoch_rows.is_apart(lease, run)) and bool(run or state.taken)

    def _needs_own_worker(self, lease: Lease, rows: int) -> bool:
        """Tell whether a lease begins a batch for a worker that works on nothing else."""
        begins = self._shape.joined or rows % self._shape.batch_size == 0
        return begins and bool(elements_in(lease)) and self.fatal_batches.is_suspected(rows_of(lease)[0])

    def _run_size(self, most: int, workers: int, rows: RowsToGive, begin: int) -> int:
        """Return how many rows a run has from one on: at most half of an even share (guided self-scheduling)."""
        left = self._epoch_rows.left(self._waiting.given) + rows.passed_rows
        size, even_share = self._shape.batch_size, left // (2 * max(1, workers))
        # One worker alone must not use up the window: the others would stand by until its rows have come.
        most = min(most, even_share, self.window(workers) // (2 * workers)) if workers > 1 else most
        if not self._shape.joined:
            return max(1, min(most, even_share) // size) * size
        # A block that is a batch is not copied.
        if most > size:
            most = most // size * size - (begin % size if self._shape.one_row_each else 0)
        # Nobody waits for the end of an only worker's run, so no share is left for others.
        if workers == 1:
            return max(size, most)
        # A batch's rows are shared among all workers, so the next batch comes as soon as they can
        # make it together; but where each would have to begin anew for its share.
        return max(1, size if self._shape.whole_batches else size // workers, most)

    def rest(self, *, left: bool) -> tuple[int, int]:
        """Return how many batches the rows that fill none become as an epoch ends, and how many of them are dropped.

        `left`: the training loop has left the epoch before.
        """
        return (0, 0) if left or not self.joins else self.in_turn.rest()

    def ended(self, key: LeaseKey, elements: int) -> None:
        """Note how many elements a split really holds: where rows are numbered, it must hold what it told."""
        split = self._queues.listings[key[0]][key[2]]
        self._waiting.ended(split, elements)
        # Decision 144: a length that was told wrongly does no harm to joined rows, because splits count their places.
        if elements != split.elements and not self._shape.joined:
            message = f"of {split.path or f'split {split.index}'} {split.elements} elements were told, and it holds"
            self.drop_order(f"{message} {elements}")

    def had_turn(self, spans: LeaseSpans, rows: int) -> int:
        """Note positions that have had their turn, with the rows made of them; return how many batches these fill."""
        return self.in_turn.add(spans, rows)

    def put_back(self, leases: Sequence[Lease]) -> None:
        """Let leases that came back be the next ones, for any worker."""
        self._waiting.put_back(leases)
        if self.kept:
            self._waiting.open_leases(leases)

    def open_before(self, row: int) -> None:
        """Let all rows before one that nobody has be for any worker."""
        self._waiting.open_before(row)

    def _rows_to_give(self, received: int, workers: int) -> RowsToGive:
        """Return which rows may be given out: new ones up to the end of the window."""
        # With joined rows and one worker nothing comes before its turn: what it makes waits with it.
        return self._waiting.to_give(MANY if self._shape.joined and workers == 1 else received + self.window(workers))

    def _room(self, rows: RowsToGive, workers: int) -> int:
        """Return how many rows a run may have: of what came back to one rank so few that all workers make it."""
        if rows.passed and self._shape.world_size == 1:
            return rows.passed_rows // workers if self._shape.joined else self._shape.batch_size
        return rows.passed_rows + max(0, rows.limit - rows.fresh)

    def window(self, workers: int) -> int:
        """Return how many rows, or elements that become so many, may be with workers and wait for their turn."""
        size = self._shape.batch_size
        rows = max(self.max_within_budget, WINDOW_BATCHES * workers * size)
        if not self._shape.joined:
            return rows // size * size  # a run ends with a batch
        # An element that becomes more rows than the window holds is one all the same: each worker may have one.
        return max(workers, self.in_turn.elements_for(rows))
