"""What a worker holds of one source: leases that are here, and how long they take."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pecan_ray.job.lease_sizes import ONE_BY_ONE, SideBySide, elements_in
from pecan_ray.job.messages import Lookahead, Reply
from pecan_ray.job.worker_events import LeaseRequested
from pecan_ray.plan.splits import Lease, Split

# Leases that are asked for at a time. Of a lot of half a second (`Assigned.lot_s`) each takes 0.1 ms then: with
# more the question costs nothing beside them.
MOST_IN_LOT = 4096
MOST_IN_RUN = 1 << 20
"""Rows that are asked for at a time."""
AHEAD_S = 1.0
"""The next lot is asked for while half of one is left, if a lease takes less than this: what a worker holds and has not
begun, no other one can do at the end of an epoch."""
ROWS_OF_THREAD = 16
"""A run of joined rows has so many for each of several threads where they wait for the last one at its end, for half a
row's time or so."""
ANEW_S = 1.0
"""Least work of a run for an engine that begins anew with each: a graph takes 0.1 to 0.2 s to begin.  A shorter run
would look slow for its rows, and the next one would have fewer rows, down to one."""
NEWEST_SHARE = 0.3
"""Of the mean of how long leases take, the share that the last one has: it follows a change within some leases, and one
slow lease is a third of it."""


@dataclass
class TimedRun:
    """A run of elements, of which nobody knows how many rows they become."""

    since: float
    """When the engine was given the first of it."""
    rows: int = 0
    ended: bool = False
    """The engine has all of it."""

    def add(self, lease: Lease) -> None:
        """Add the next lease of the run."""
        self.rows += elements_in(lease) or 0
        self.ended = lease.ends_run


@dataclass
class Branch:
    """What a worker holds of one source."""

    here: deque[Lease] = field(default_factory=deque)
    ended: bool = False
    """The assignment has no more of it."""
    lot: int = 0
    """The number of leases that came with the last answer."""
    pending_request: LeaseRequested | None = None
    """What the engine waits for."""
    requested_for: int | None = None
    """The assignment for which leases are being asked for."""
    side: SideBySide = ONE_BY_ONE
    """The other leases that are read at the time."""
    peek_result: tuple[Split, ...] = ()
    """Some of the splits that come next."""
    projected: tuple[int, tuple[Split, ...]] = (-1, ())
    """An epoch, and what it begins with."""
    lease_s: float | None = None
    """How long a lease takes, lately; a row, where runs are asked for."""
    runs: deque[TimedRun] = field(default_factory=deque)
    """Runs that the engine was given and has not ended, if they are timed as a whole."""
    run_ended: float = 0.0
    """When the engine last ended a run."""
    given: deque[float] = field(default_factory=deque)
    """When each lease that the engine reads was given to it."""
    given_rows: int = 1
    """Rows of the last of them: 1 where rows are not numbered, and nothing is asked for by them."""
    in_rows: bool = False
    joined: bool = False
    """What came last is a run whose rows are joined to batches."""
    in_one: bool = False
    """That run becomes any number of rows: it is timed as a whole, and an assignment of its own unless `ends_runs`."""
    threads: int = 1
    """Of the engine, when it asked last."""
    ends_runs: bool = False
    """The engine gives up what fills no batch at the end of a run, and goes on meanwhile."""

    def begin(self) -> None:
        """Forget what was held for another assignment."""
        self.here.clear()
        self.given.clear()
        self.runs.clear()
        self.ended, self.peek_result = False, ()

    def take_in(self, reply: Reply, batch_rows: int | None, *, beside: bool) -> None:
        """Take the leases of an answer; `beside`: they were asked for while others are read.

        `batch_rows`: of a batch, where each element becomes one row.
        """
        leases = leases_in(reply)
        # An empty answer says nothing about the runs that follow.
        self.joined = any(lease.place is not None for lease in leases) if leases else self.joined
        self.in_one = self.joined and batch_rows is None
        if self.joined and self.ends_runs and leases:
            leases = (*leases[:-1], replace(leases[-1], ends_run=True))
        self.here.extend(leases)
        self.lot = len(leases)
        # A run of joined rows is an assignment of its own (decision 144).
        ends = self.joined and not self._may_follow(leases, batch_rows)
        # An empty answer to a worker that reads other leases is no end (decision 148).
        self.ended = ends or not (leases or beside)
        self.peek_result = reply.splits if isinstance(reply, Lookahead) else ()

    def _may_follow(self, leases: Sequence[Lease], batch_rows: int | None) -> bool:
        """Tell whether another run may follow in the same assignment."""
        # Where the engine gives up what fills no batch (decision 231), but behind a lease that it is not given.
        if self.ends_runs and not any(lease.left_out for lease in leases):
            return True
        # Whole batches (decision 220).
        return batch_rows is not None and sum(elements_in(lease) or 0 for lease in leases) % batch_rows == 0

    def pop_lease(self, now: float | None) -> Lease:
        """Return the next lease; `now` is None where nobody will read it."""
        lease = self.here.popleft()
        # The leases of a run that is joined count as one: the time of a row is that of the run over its rows.
        if self.in_one and self.runs and not self.runs[-1].ended:
            self.runs[-1].add(lease)
            return lease
        # A mean of times for a lease says nothing about a row, and the other way round.
        if self.in_rows != (lease.row is not None):
            self.in_rows, self.lease_s = lease.row is not None, None
            self.given.clear()
        # Numbered rows are timed when they are made (`LeaseRequests.note_produced`).
        if now is not None and self.in_one:
            self.runs.append(TimedRun(now))
            self.runs[-1].add(lease)
        elif now is not None and not self.in_rows:
            self.given.append(now)
        self.given_rows = (elements_in(lease) or 1) if self.in_rows else 1
        return lease

    def time(self, reading: int, now: float) -> None:
        """Note how long leases took that are not read any more, with what the trainer made them wait.

        Of several that are read at a time each takes its share of the time.
        """
        at_a_time = len(self.given)
        while len(self.given) > reading:
            self.note((now - self.given.popleft()) / at_a_time)

    def end_run(self, now: float) -> None:
        """Note how long the first run took, from the end of the one before it on."""
        if self.runs:
            run = self.runs.popleft()
            self.note((now - max(run.since, self.run_ended)) / max(1, run.rows))
            self.run_ended = now

    def note(self, took: float) -> None:
        """Note how long a lease, or a row, took."""
        self.lease_s = took if self.lease_s is None else self.lease_s + NEWEST_SHARE * (took - self.lease_s)

    def wants_more(self) -> bool:
        """Tell whether to ask for the next lot: its files come while the other half of this one is read."""
        soon = self.lease_s is not None and self.lease_s * self.given_rows < AHEAD_S
        return soon and self.requested_for is None and not self.ended and len(self.here) <= self.lot // 2


def lot_of(mine: Branch, lot_s: float) -> int:
    """Return how many leases (or rows) to ask for at a time, so that they take so long; 1 while that is not known."""
    if mine.lease_s is None:
        return 1
    begins_anew = mine.joined and not mine.ends_runs
    least = ROWS_OF_THREAD * mine.threads if begins_anew and mine.threads > 1 else 1
    lot_s = max(lot_s, ANEW_S) if begins_anew else lot_s
    return max(least, min(MOST_IN_RUN if mine.in_rows else MOST_IN_LOT, int(lot_s / max(mine.lease_s, 1e-9))))


def leases_in(reply: Reply) -> tuple[Lease, ...]:
    if isinstance(reply, Lookahead):
        return reply.leases
    return reply if isinstance(reply, tuple) else ()
