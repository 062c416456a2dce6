"""What workers were given and nobody has acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from pecan_ray.job.suspicion import Suspicion
from pecan_ray.plan.splits import Lease, LeaseKey
from pecan_ray.sampling.spans import Span, Spans

LeaseSpans: TypeAlias = Mapping[LeaseKey, Iterable[Span]]
RowParts: TypeAlias = Sequence[tuple[LeaseKey, int, int]]
"""Of each row, the last interval of positions that it stands for: lease key, start, stop."""


@dataclass
class PendingLease:
    """What is missing of a lease: given to somebody, and not delivered yet."""

    lease: Lease
    missing: Spans

    def rest(self) -> Lease:
        """Return the lease of what is missing."""
        return replace(self.lease, spans=tuple(self.missing), passed=False)  # some of it may never have been there


@dataclass
class WorkerLeaseState:
    """What the ledger knows of one worker."""

    node: str = ""
    """Where it runs; empty: not known."""
    pending_leases: dict[LeaseKey, PendingLease] = field(default_factory=dict)
    group: list[Lease] = field(default_factory=list)
    """What it has not taken of the group that it works on."""
    rank: int | None = None
    """The trainer that `group` is for."""
    assigned: bool = False
    """None where it was dealt before the end: whichever has room may have its batch."""
    rejected: dict[LeaseKey, Sequence[Span]] = field(default_factory=dict)
    """What of its group it could not open: all of the group goes to another worker."""
    suspicious: bool = False
    """What it works on is suspected of having killed other workers: it gets nothing else."""
    suspected: dict[LeaseKey, Sequence[Span]] = field(default_factory=dict)
    """What it works on, if that is suspicious.  What it holds beside it came through, but for `not_started`."""
    not_started: dict[LeaseKey, Sequence[Span]] = field(default_factory=dict)
    """What it had not begun with of its group when it was lost."""
    taken: int = 0
    """Elements that it was given in its assignment, as far as their number is known."""
    in_groups: bool = False
    """The last leases that it was given are a lot, which ends with a full batch."""
    ends: bool = False
    """Nothing may follow the last run in its assignment: it is `alone`, or ends the epoch and fills no batch."""
    alone: Span | None = None
    """Rows of its only run, with which other workers have died."""
    stale_spans: dict[LeaseKey, Spans] = field(default_factory=dict)
    """What it may work on in this epoch that is not its own any more: others were given it too, or have brought it."""
    earlier: dict[LeaseKey, Sequence[Span]] = field(default_factory=dict)
    """What was missing of its leases when it began with its assignment: it had made all that, where rows are joined."""
    working: bool = False
    finished_epoch: int = -1
    produced: int = 0
    """Batches that it makes of the epoch, where it runs all of a plan that cannot be cut."""
    received: int = 0
    """Batches of the epoch that trainers have received from it."""
    unresolved: set[int] | None = None
    """Ranks that have yet to say what they received from this lost worker; None: it lives."""
    draining: bool = False
    """It was let go, and hands over what it has finished: nothing of the rest can come twice."""
    died: Suspicion | None = None
    """What it worked on may be the reason that it is lost; None: it is not."""

    @property
    def holds(self) -> bool:
        """Return whether data was given to this worker that was not delivered."""
        return bool(self.pending_leases or self.group)

    @property
    def grouped(self) -> bool:
        """Return whether it gets leases of its group alone."""
        return self.suspicious or self.assigned or self.rank is not None

    @property
    def can_reassign(self) -> bool:
        """Return whether what it returns may be dealt: never twice, and no piece of a split that may be empty."""
        return not (self.assigned or self.suspicious)

    @property
    def is_suspicious(self) -> bool:
        """Return whether it works on what is suspected of having killed other workers."""
        return self.suspicious and self.holds

    @property
    def does_rebatch(self) -> bool:
        """Return whether the worker makes leftovers into a batch for a certain rank."""
        return self.rank is not None and (self.working or self.holds)

    def has_given_all(self, epoch: int, *, whole: bool) -> bool:
        """Tell whether the trainers have all data of an epoch from a worker that sees all of it.

        `whole`: it runs a whole plan, of which numbers of batches tell what is done.
        """
        if self.working or self.finished_epoch != epoch:
            return False
        return self.received >= self.produced if whole else not self.holds

    def begin(self, group: Iterable[Lease] = (), rank: int | None = None, *, apart: bool = False) -> None:
        """Note that the worker begins with an assignment, perhaps with a group for a certain rank, or of suspects."""
        self.working, self.group, self.rank, self.suspicious = True, list(group), rank, apart
        self.assigned = bool(self.group) and rank is None and not apart
        self.suspected, self.rejected = {}, {}
        self.earlier = {key: tuple(held.missing) for key, held in self.pending_leases.items()}
        self.taken, self.in_groups, self.ends, self.alone = 0, False, False, None

    def begin_epoch(self, *, forget: bool) -> None:
        """Begin an epoch; `forget`: what the worker still holds of the last one."""
        self.rank, self.produced, self.received = None, 0, 0
        # If it works on something, others have brought that (decision 152), or it has yet to say that it is done.
        self.working, self.stale_spans = False, {}
        if forget:
            self.pending_leases.clear()

    def forget(self) -> None:
        """Forget what the worker holds of an epoch that all ranks have left."""
        self.working, self.rank, self.suspicious, self.assigned, self.died = False, None, False, False, None
        self.pending_leases, self.group, self.rejected, self.suspected, self.not_started = {}, [], {}, {}, {}

    def leave(self, ranks: int) -> None:
        """Note that the worker is gone, and that so many ranks must say what they have from it."""
        self.working, self.unresolved = False, set(range(ranks))
        # Only what a worker had begun with may be blamed for its death, so the rest of its group is noted apart.
        self.not_started = {lease.key: lease.spans for lease in self.group}
        while self.group:
            self.assign(self.group.pop())

    def take_of_group(self, branch: int) -> Lease | Literal["none"]:
        """Take the next lease of a branch out of the worker's group."""
        mine = next((lease for lease in self.group if lease.branch == branch), None)
        if mine is None:
            return "none"
        self.group.remove(mine)
        if self.suspicious:
            self.suspected[mine.key] = mine.spans
        return mine

    def assign(self, lease: Lease) -> Lease:
        """Note that the worker was given a lease, and return it."""
        missing = Spans(lease.spans)
        # Pieces of one split may come to one worker one after the other (decision 91).
        held = self.pending_leases.get(lease.key)
        if held is not None:
            for span in held.missing:
                missing.add(*span)
        self.pending_leases[lease.key] = PendingLease(lease, missing)
        return lease

    def mark_completed(self, spans: LeaseSpans) -> None:
        """Note that positions were dealt with; those that the worker does not hold are ignored."""
        for key, done in spans.items():
            held = self.pending_leases.get(key)
            if held is None:
                continue
            held.missing.remove_all(done)
            if not held.missing:
                del self.pending_leases[key]

    def revoke_lease(self, lease: Lease) -> None:
        """Take positions off the worker, which does not know."""
        self.mark_completed({lease.key: lease.spans})
        # Noted, so that this worker does not become the second worker of its own rows (decision 152).
        given = self.stale_spans.setdefault(lease.key, Spans())
        for span in lease.spans:
            given.add(*span)

    def remove_positions(self, spans: LeaseSpans) -> None:
        """Take positions off the worker that another one has brought."""
        for key, done in spans.items():
            held = self.pending_leases.get(key)
            if held is not None and (mine := within([held.rest()], {key: done})):
                self.revoke_lease(mine[0])

    def is_waiting_for(self, returned: Iterable[Lease]) -> bool:
        """Tell whether something waits for another worker that this one has already."""
        return bool(self.stale_spans) and any(within([lease], self.stale_spans) for lease in returned)

    def take_back(self, remainder_part: LeaseSpans) -> Iterator[tuple[Lease, Spans]]:
        """Take positions off the worker; yield those that it really holds, by lease."""
        for key, spans in remainder_part.items():
            held = self.pending_leases.get(key)
            if held is None:
                continue
            # Decision 152: what a second worker has brought meanwhile is not this one's any more.
            returned = Spans(span for span in spans if held.missing.contains_all(*span))
            for span in returned:
                held.missing.remove(*span)
            if not held.missing:
                del self.pending_leases[key]
            yield held.lease, returned


def within(leases: Iterable[Lease], places: Mapping[LeaseKey, Iterable[Span]]) -> list[Lease]:
    """Return the parts of leases that are in these places."""
    rest = {lease.key: lease.spans for lease in without(leases, places)}
    return without(leases, rest)


def without(leases: Iterable[Lease], places: Mapping[LeaseKey, Iterable[Span]]) -> list[Lease]:
    """Return the parts of leases that are not in these places."""
    left = []
    for lease in leases:
        spans = Spans(lease.spans)
        for span in places.get(lease.key, ()):
            spans.remove(*span)
        if spans:
            left.append(replace(lease, spans=tuple(spans)))
    return left
