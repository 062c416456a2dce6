"""The leases of a worker: asked for in lots that last as long as the job says, and given to its engine one by one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from pecan_ray.cache.substitution import LOOK_AHEAD
from pecan_ray.job.blocks import RowRange, RunBlocks
from pecan_ray.job.lease_sizes import ONE_BY_ONE, SideBySide, elements_in
from pecan_ray.job.messages import (
    AskLeases,
    Assigned,
    Lengths,
    Lookahead,
    NoMoreLeases,
    Reply,
    SplitOpenFailure,
)
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

MOST_IN_LOT = 4096
MOST_IN_RUN = 1 << 20
"""Rows that are asked for at a time."""
LEAST_LOOK = 32
"""So many of the next splits are looked at, to find some that are at hand, however few are wanted."""
AHEAD_S = 1.0
"""The next lot is asked for while half of one is left, if a lease takes less than this: what a worker holds and has not
begun, no other one can do at the end of an epoch."""
ROWS_OF_THREAD = 16
"""A run of joined rows has so many for each of several threads: at its end they wait for the last one, for half a row's
time or so."""
NEWEST_SHARE = 0.3
"""Of the mean of how long leases take, the share that the last one has."""


@dataclass
class Branch:
    """What a worker holds of one source."""

    here: deque[Lease] = field(default_factory=deque)
    ended: bool = False
    """The assignment has no more of it."""
    lot: int = 0
    """So many leases came with the last answer."""
    pending_request: LeaseRequested | None = None
    """What the engine waits for."""
    requested_for: int | None = None
    """For which assignment leases are being asked for,"""
    side: SideBySide = ONE_BY_ONE
    """beside which others."""
    peek_result: tuple[Split, ...] = ()
    """Some of the splits that come next."""
    projected: tuple[int, tuple[Split, ...]] = (-1, ())
    """An epoch, and what it begins with."""
    lease_s: float | None = None
    """How long a lease takes, lately; a row, where runs are asked for."""
    given: deque[float] = field(default_factory=deque)
    """When those were given to the engine that it reads,"""
    given_rows: int = 1
    """and how many rows the last one has: 1 where these are not numbered, and nothing is asked for by them."""
    in_rows: bool = False
    joined: bool = False
    """What came last is a run whose rows are joined to batches;"""
    in_one: bool = False
    """it becomes any number of rows, so it is an assignment of its own, and timed as a whole."""
    threads: int = 1
    """Of the engine, when it asked last."""

    def begin(self) -> None:
        """Forget what was held for another assignment."""
        self.here.clear()
        self.given.clear()
        self.ended, self.peek_result = False, ()

    def take_in(self, reply: Reply, batch_rows: int | None, *, beside: bool) -> None:
        """Take the leases of an answer; `beside`: they were asked for while others are read.

        `batch_rows`: of a batch, where each element becomes one row.
        """
        leases = _leases(reply)
        self.here.extend(leases)
        # An empty answer says nothing about the runs that follow.
        self.joined = any(lease.place is not None for lease in leases) if leases else self.joined
        self.in_one = self.joined and batch_rows is None
        # A run of joined rows is an assignment of its own (decision 144), but for whole batches (decision 220).
        whole = batch_rows is not None and sum(elements_in(lease) or 0 for lease in leases) % batch_rows == 0
        # An empty answer to a worker that reads other leases is no end (decision 148).
        self.lot, self.ended = len(leases), (self.joined and not whole) or not (leases or beside)
        self.peek_result = reply.splits if isinstance(reply, Lookahead) else ()

    def pop_lease(self, now: float | None) -> Lease:
        """Return the next lease; `now` is None where nobody will read it."""
        lease = self.here.popleft()
        # The leases of a run that is joined count as one: the time of a row is that of the run over its rows.
        if self.in_one and self.given:
            self.given_rows += elements_in(lease) or 0
            return lease
        # A mean of times for a lease says nothing about a row, and the other way round.
        if self.in_rows != (lease.row is not None):
            self.in_rows, self.lease_s = lease.row is not None, None
        # Numbered rows are timed when they are made (`LeaseRequests.note_produced`).
        if now is not None and (self.in_one or not self.in_rows):
            self.given.append(now)
        self.given_rows = (elements_in(lease) or 1) if self.in_rows else 1
        return lease

    def time(self, reading: int, now: float) -> None:
        """Note how long leases took that are not read any more, with what the trainer made them wait.

        Of several that are read at a time each takes its share of the time.
        """
        at_a_time = len(self.given)
        while len(self.given) > reading:
            self.note((now - self.given.popleft()) / self.given_rows / at_a_time)

    def note(self, took: float) -> None:
        """Note how long a lease, or a row, took."""
        self.lease_s = took if self.lease_s is None else self.lease_s + NEWEST_SHARE * (took - self.lease_s)

    def wants_more(self) -> bool:
        """Tell whether to ask for the next lot: its files come while the other half of this one is read."""
        soon = self.lease_s is not None and self.lease_s * self.given_rows < AHEAD_S
        return soon and self.requested_for is None and not self.ended and len(self.here) <= self.lot // 2


@dataclass(frozen=True)
class UnmadeRows:
    """Numbered rows of a lease that are in no batch yet."""

    branch: int
    first: int
    rows: int
    since: float
    """When the engine was given them."""


def lot_of(mine: Branch, lot_s: float) -> int:
    """Return how many leases (or rows) to ask for at a time, so that they take so long; 1 while that is not known."""
    if mine.lease_s is None:
        return 1
    least = ROWS_OF_THREAD * mine.threads if mine.joined and mine.threads > 1 else 1
    return max(least, min(MOST_IN_RUN if mine.in_rows else MOST_IN_LOT, int(lot_s / max(mine.lease_s, 1e-9))))


def next_splits(reply: Reply) -> tuple[Split, ...]:
    """Return what will be read after an answer to `AskLeases`: in this epoch, or at the beginning of the next one."""
    if isinstance(reply, NoMoreLeases):
        return reply.next_epoch
    return tuple(lease.split for lease in _leases(reply))


def _leases(reply: Reply) -> tuple[Lease, ...]:
    if isinstance(reply, Lookahead):
        return reply.leases
    return reply if isinstance(reply, tuple) else ()


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
        self._in_line: deque[UnmadeRows] = deque()
        """Rows that were taken and are in no batch yet."""
        self._made_rows, self._made_at = 0, 0.0
        """So many rows were made, of leases whose rows are not all made, since this moment."""
        self.blocks: RunBlocks | None = None
        """The runs of this assignment, where rows are joined to batches,"""
        self.has_rejected = False
        """and whether a part of them cannot be opened here: then others make all that the trainer has not got."""
        self._lengths: list[tuple[LeaseKey, int]] = []
        self._not_opened: list[SplitOpenFailure] = []
        self._epoch, self._assignments = 0, 0
        self.lot_s = 0.5

    def begin(self, assigned: Assigned, done: list[WorkerInstruction]) -> None:
        """Begin with an assignment; of one that was left nothing is held or told any more."""
        self._assignments += 1
        self._rows.clear()
        self._in_line.clear()
        self._made_rows = 0
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
        if not branch.in_one:
            branch.time(event.side.reading, now)
        branch.pending_request, branch.threads = event, event.threads
        self._serve(event.branch, branch, now, done)

    def found(self, number: int, indices: tuple[int, ...] | None, now: float, done: list[WorkerInstruction]) -> None:
        """Ask for leases, now that it is known which splits are at hand."""
        branch = self._branches[number]
        if branch.requested_for != self._assignments:  # of that assignment nobody wants leases any more
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
            if branch.in_one:
                branch.time(0, now)

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
        """Note that so many of the rows that were taken first are in batches, and how long a row took.

        By what is made and not by what is read: an engine reads rows long before it has made those before them.
        """
        if not self._in_line:
            return
        self._made_at = max(self._made_at, self._in_line[0].since) if not self._made_rows else self._made_at
        branch, left = self._branches[self._in_line[0].branch], len(self._in_line)
        while self._in_line and rows:
            taken = self._in_line.popleft()
            made = min(rows, taken.rows)
            if made < taken.rows:
                self._in_line.appendleft(replace(taken, first=taken.first + made, rows=taken.rows - made))
            self._made_rows, rows = self._made_rows + made, rows - made
        # A split that told of no element has no row, and may hold some all the same.
        if len(self._in_line) < left and self._made_rows:
            branch.note((now - self._made_at) / self._made_rows)
            self._made_rows, self._made_at = 0, now

    def failing_row(self) -> int | None:
        """Return the first row that is in no batch, where order is kept; None where rows are not numbered.

        Where rows are joined to batches, it is the first place that is in no block: a split may hold more elements than
        it told, and these have no numbers.
        """
        if self.blocks is not None:
            return self.blocks.first_place
        return self._in_line[0].first if self._in_line else None

    def _serve(self, number: int, branch: Branch, now: float, done: list[WorkerInstruction]) -> None:
        """Give the engine what it waits for, or ask for it."""
        assert branch.pending_request is not None
        unread, side = branch.pending_request.maybe_unused, branch.pending_request.side
        if branch.here:
            branch.pending_request = None
            # Decision 175: the engine sees nothing of a lease that is left out. The worker returns
            # an empty block for it.
            left_out = branch.here[0].left_out
            lease = branch.pop_lease(None if unread or left_out else now)
            self._note_rows(number, lease, now)
            # The engine learns by reading how long a split is that was estimated.
            done.append(ProvideLease(number, None if left_out else lease.as_listed))
            if self._prefetch and branch.wants_more():
                # Leases that lie here unread count as read beside each other, or this worker would
                # get more than its share.
                had = side.reading + 1 + len(branch.here) if side.streams > 1 else 0
                self._look(number, branch, SideBySide(side.streams, had), done)
        elif branch.ended:
            branch.pending_request = None
            done.append(ProvideLease(number, None))
        elif branch.requested_for is None:
            # Leases that are not read cost nothing but the question, so one question brings as many as possible.
            if unread:
                branch.requested_for, branch.side = self._assignments, side
                self._ask(number, MOST_IN_LOT, 0, (), now, done)
            else:
                self._look(number, branch, side, done)

    def _note_rows(self, branch: int, lease: Lease, now: float) -> None:
        """Note which rows of the epoch a lease has, where they are numbered."""
        if lease.place is not None:
            if self.blocks is None:
                self.blocks = RunBlocks()
            self.blocks.add(lease)
        if lease.row is not None and (lease.place is None or self._batch_rows is not None):
            self._rows[lease.key] = lease.row, lease.split.elements or 0
            first, rows = lease.row + (lease.spans[0][0] >> OUTPUT_BITS), elements_in(lease) or 0
            self._in_line.append(UnmadeRows(branch, first, rows, now))

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
        request = AskLeases(self._epoch, number, most, *told, side.streams, side.reading)
        done.append(self._channels.ask(f"take:{number}", request, now, ahead=branch.pending_request is None))
