"""The leases of a worker: asked for in lots that last as long as the job says, and given to its engine one by one."""

from __future__ import annotations

from dataclasses import replace

from pecan_ray.cache.substitution import LOOK_AHEAD
from pecan_ray.job.blocks import RowRange, RunBlocks
from pecan_ray.job.lease_branch import MOST_IN_LOT, Branch, leases_in, lot_of
from pecan_ray.job.lease_sizes import ONE_BY_ONE, SideBySide, elements_in
from pecan_ray.job.messages import (
    AskLeases,
    Assigned,
    Lengths,
    NoMoreLeases,
    Reply,
    SplitOpenFailure,
)
from pecan_ray.job.unmade_rows import LeaseRows, UnmadeRows
from pecan_ray.job.worker_channels import WorkerChannels
from pecan_ray.job.worker_events import (
    EngineBatch,
    FetchSplits,
    FindLocalSplits,
    LeaseRequested,
    ProvideLease,
    WorkerInstruction,
)
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, LeaseKey, Split
from pecan_ray.sampling.spans import Spans

LEAST_LOOK = 32
"""Next splits that are looked at, to find some that are at hand, however few are wanted."""


def next_splits(reply: Reply) -> tuple[Split, ...]:
    """Return what will be read after an answer to `AskLeases`: in this epoch, or at the beginning of the next one."""
    if isinstance(reply, NoMoreLeases):
        return reply.next_epoch
    return tuple(lease.split for lease in leases_in(reply))


class LeaseRequests:
    """The part of a worker that asks for leases."""

    def __init__(
        self, channels: WorkerChannels, *, ahead: bool, one_sequence: bool, batch_rows: int | None = None
    ) -> None:
        """`ahead`: every lease that is taken will be worked on, so that some may be taken early.

        `one_sequence`: which leases are worked on at a time decides the order of results: it is the same in each run.
        `batch_rows`: of a batch, where rows are joined although each element becomes one.
        """
        self._batch_rows = batch_rows
        self._channels, self._prefetch, self._one_sequence = channels, ahead, one_sequence
        self._branches: dict[int, Branch] = {}
        self._rows: dict[LeaseKey, tuple[int, int]] = {}
        """Of the splits of this assignment, the row that their first element is, and how many there are."""
        self._unmade = UnmadeRows()
        self.blocks: RunBlocks | None = None
        """The runs of this assignment, where rows are joined to batches; else None."""
        self.has_rejected = False
        """Whether a part of the runs cannot be opened here: then others make all that the trainer has not got."""
        self._lengths: list[tuple[LeaseKey, int]] = []
        self._not_opened: list[SplitOpenFailure] = []
        self._epoch, self._assignments = 0, 0
        self.lot_s = 0.5

    def begin(self, assigned: Assigned, done: list[WorkerInstruction]) -> None:
        """Begin with an assignment; of one that was left nothing is held or told any more."""
        self._assignments += 1
        self._rows.clear()
        self._unmade.clear()
        self.blocks, self.has_rejected = None, False
        self.take_notes()
        self._epoch, self.lot_s = assigned.assignment.epoch, assigned.lot_s
        for number, branch in self._branches.items():
            branch.begin()  # a plan that takes only some elements leaves leases, which are of its epoch
            if branch.projected[0] == self._epoch:  # else it is still to come
                done.append(FetchSplits(number, branch.projected[1]))
                branch.projected = (-1, ())  # an epoch may have several assignments

    def send_no_lease(self, done: list[WorkerInstruction]) -> None:
        """Tell an engine that waits for a lease that there is none."""
        for number, branch in self._branches.items():
            if branch.pending_request is not None:
                branch.pending_request = None
                done.append(ProvideLease(number, None))

    def want(self, event: LeaseRequested, now: float, done: list[WorkerInstruction]) -> None:
        """Give the engine a lease, at once or as soon as the job has given one."""
        branch = self._branches.setdefault(event.branch, Branch())
        if self._one_sequence:
            # Decision 148: which splits are open follows from their order and lengths alone, not from other workers.
            event = replace(event, side=ONE_BY_ONE)
        branch.time(event.side.reading, now)
        branch.pending_request, branch.threads, branch.ends_runs = event, event.threads, event.ends_runs
        self._serve(event.branch, branch, now, done)

    def found(self, number: int, indices: tuple[int, ...] | None, now: float, done: list[WorkerInstruction]) -> None:
        """Ask for leases, now that it is known which splits are at hand."""
        branch = self._branches[number]
        # Of that assignment nobody wants leases any more; or all that is made of them is dropped.
        if branch.requested_for != self._assignments or self.has_rejected:
            branch.requested_for = None
            if branch.pending_request is not None:
                self._serve(number, branch, now, done)
            return
        # Decision 14: `take` and `zip` may leave splits unread, so their plans get one lease at a time.
        most = lot_of(branch, self.lot_s) if self._prefetch else 1
        # Decision 148: an engine that mixes splits opens as many as it reads at a time.
        most = max(most, branch.side.streams - branch.side.reading)
        look = 0 if indices is None else max(LEAST_LOOK, LOOK_AHEAD * most)
        self._ask(number, most, look, indices or (), now, done)

    def on_reply(self, request: AskLeases, reply: Reply, now: float, done: list[WorkerInstruction]) -> None:
        """Take the answer to a question."""
        number = request.branch
        branch = self._branches[number]
        current, branch.requested_for = branch.requested_for == self._assignments, None
        wanted = branch.pending_request
        if current:
            beside = request.reading > 0  # no lease beside others is no end
            branch.take_in(reply, self._batch_rows, beside=beside)
            # Of a later run the job would think that it is made here, and this worker drops all that it makes.
            branch.ended = branch.ended or self.has_rejected
            if isinstance(reply, NoMoreLeases):
                branch.projected = self._epoch + 1, reply.next_epoch
            splits = next_splits(reply)
            # A plan that begins behind these leases does not read them: fetching them would be in vain.
            if splits and (wanted is None or not wanted.maybe_unused):
                done.append(FetchSplits(number, splits))
            # Decision 148: an engine that reads other leases is answered at once, because none now is no end.
            if wanted is not None and wanted.side.reading and beside and not branch.here:
                branch.pending_request = wanted = None
                done.append(ProvideLease(number, None))
        if wanted is not None:
            self._serve(number, branch, now, done)

    def read(self, key: LeaseKey, elements: int) -> None:
        """Note the length of a split, for the next question that is due."""
        self._lengths.append((key, elements))
        if self.blocks is not None:
            self.blocks.ended(key, elements)

    def fail_open(self, split: SplitOpenFailure) -> None:
        """Note a split that cannot be opened here, for the next question that is due."""
        self._not_opened.append(split)
        self.has_rejected = self.blocks is not None
        for branch in self._branches.values():
            branch.ended = branch.ended or self.has_rejected

    def take_notes(self) -> tuple[Lengths, tuple[SplitOpenFailure, ...]]:
        """Return what was noted since the last question."""
        noted = tuple(self._lengths), tuple(self._not_opened)
        self._lengths, self._not_opened = [], []
        return noted

    def end_run(self, now: float) -> None:
        """Note that all of a run is made."""
        for branch in self._branches.values():
            branch.end_run(now)

    def row_range(self, batch: EngineBatch, now: float) -> RowRange | None:
        """Return which rows of the epoch a batch has; None where they are not numbered, or others come between.

        A split that is longer than it told has rows with the numbers of others: these count as not numbered.
        """
        self.note_produced(batch.rows, now)
        if not all(key in self._rows for key in batch.spans):
            return None
        begins: list[int] = []
        ends: list[int] = []
        for key, spans in batch.spans.items():
            data = Spans(spans)
            for nothing in batch.without_data.get(key, ()):
                data.remove(*nothing)
            row, elements = self._rows[key]
            for start, stop in data:
                begins.append(row + (start >> OUTPUT_BITS))
                ends.append(row + ((stop - 1) >> OUTPUT_BITS) + 1)
                if ends[-1] > row + elements:
                    return None
        first = min(begins, default=0)
        return RowRange(first, first + batch.rows) if begins and max(ends) - first == batch.rows else None

    def note_produced(self, rows: int, now: float) -> None:
        """Note that so many of the rows that were taken first are in batches, and how long a row took."""
        if (told := self._unmade.note_made(rows, now)) is not None:
            branch, row_s = told
            self._branches[branch].note(row_s)

    def failing_row(self) -> int | None:
        """Return the first row that is in no batch, where order is kept; None where rows are not numbered.

        Where rows are joined to batches, it is the first place that is in no block: a split may hold more elements than
        it told, and these have no numbers.
        """
        if self.blocks is not None:
            return self.blocks.first_place
        return self._unmade.first

    def _serve(self, number: int, branch: Branch, now: float, done: list[WorkerInstruction]) -> None:
        """Give the engine what it waits for, or ask for it."""
        assert branch.pending_request is not None
        unread, side = branch.pending_request.maybe_unused, branch.pending_request.side
        if branch.here:
            branch.pending_request = None
            self._provide(number, branch, None if unread else now, now, done)
            if self._prefetch and branch.wants_more():
                self._look_ahead(number, branch, side, done)
        elif branch.ended and branch.requested_for != self._assignments:  # else an answer may bring leases
            branch.pending_request = None
            done.append(ProvideLease(number, None))
        elif branch.requested_for is None:
            # Leases that are not read cost nothing but the question, so one question brings as many as possible.
            if unread:
                branch.requested_for, branch.side = self._assignments, side
                self._ask(number, MOST_IN_LOT, 0, (), now, done)
            else:
                self._look(number, branch, side, done)

    def _provide(
        self, number: int, branch: Branch, read_at: float | None, now: float, done: list[WorkerInstruction]
    ) -> None:
        """Give the engine the next lease that is here; `read_at`: when it begins to read it, None if it never will."""
        # Decision 175: the engine sees nothing of a lease that is left out. The worker returns
        # an empty block for it.
        left_out = branch.here[0].left_out
        lease = branch.pop_lease(None if left_out else read_at)
        self._note_rows(number, lease, now)
        # The engine learns by reading how long a split is that was estimated.
        done.append(ProvideLease(number, None if left_out else lease.as_listed))

    def _note_rows(self, branch: int, lease: Lease, now: float) -> None:
        """Note which rows of the epoch a lease has, where they are numbered."""
        if lease.place is not None:
            if self.blocks is None:
                self.blocks = RunBlocks()
            self.blocks.add(lease)
        if lease.row is not None and (lease.place is None or self._batch_rows is not None):
            self._rows[lease.key] = lease.row, lease.split.elements or 0
            first, rows = lease.row + (lease.spans[0][0] >> OUTPUT_BITS), elements_in(lease) or 0
            self._unmade.add(LeaseRows(branch, first, rows, now))

    def _look_ahead(self, number: int, branch: Branch, side: SideBySide, done: list[WorkerInstruction]) -> None:
        """Ask for the leases that come next, before the engine waits for one."""
        # Leases that lie here unread count as read beside each other, or this worker would get more than its share.
        # An engine that goes on behind runs asks again when it needs one: to wait for room now would keep it from its
        # end where it has met a split that it cannot open.
        beside = side.streams > 1 or (branch.joined and branch.ends_runs)
        had = side.reading + 1 + len(branch.here) if beside else 0
        self._look(number, branch, SideBySide(side.streams, had), done)

    def _look(self, number: int, branch: Branch, side: SideBySide, done: list[WorkerInstruction]) -> None:
        # Decision 157: the number, and no flag, because an answer may come after its assignment was left. It must not
        # be taken for one of the next assignment.
        branch.requested_for, branch.side = self._assignments, side
        done.append(FindLocalSplits(number, branch.peek_result))

    def _ask(
        self, number: int, most: int, look: int, at_hand: tuple[int, ...], now: float, done: list[WorkerInstruction]
    ) -> None:
        lengths, split_open_failures = self.take_notes()
        branch = self._branches[number]
        told, side = (lengths, look, at_hand, split_open_failures), branch.side
        waits = branch.ends_runs and branch.pending_request is not None
        request = AskLeases(self._epoch, number, most, *told, side.streams, side.reading, waits)
        done.append(self._channels.ask(f"take:{number}", request, now, ahead=branch.pending_request is None))
