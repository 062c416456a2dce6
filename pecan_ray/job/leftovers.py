"""What fills no batch at the end of an epoch: collected from all workers, and distributed in groups that do."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pecan_ray.job.pending_leases import LeaseSpans, PendingLease, WorkerLeaseState
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, LeaseKey
from pecan_ray.sampling.spans import Span, Spans


@dataclass(frozen=True)
class Group:
    """Leases that one worker makes into a batch."""

    rank: int | None
    """The trainer that it is for; None: whichever has room."""
    leases: tuple[Lease, ...]


# Why they are not a batch of each worker: docs/decisions/exactly-once.md#4-workers-return-leftovers
class Leftovers:
    """The undelivered rest of an epoch, and the groups that it is distributed in.

    What workers return when they have no more leases is dealt at once: as soon as it is a batch for every trainer, any
    idle worker gets a batch of it.  What fills none, or comes back a second time, waits until all else of the epoch is
    delivered.  Of that, one trainer gets all as one group.  Several trainers get it in rounds, in each of which every
    rank gets one group of equally many elements (one more at the most), so that no rank has a batch more than another.
    """

    def __init__(self, world_size: int, batch_size: int, *, only_full: bool) -> None:
        """`only_full`: batches that are not full are not wanted (``drop_remainder=True``)."""
        self._world_size, self._batch_size, self._only_full = world_size, batch_size, only_full
        self._pool: dict[LeaseKey, PendingLease] = {}
        self._fresh: dict[LeaseKey, PendingLease] = {}
        """What was returned, may be dealt, and was dealt to nobody yet."""
        self._fresh_units = 0
        """Elements in `_fresh`."""
        self.groups: deque[Group] = deque()
        self.rounds = 0
        """Rounds that were distributed in this epoch."""
        self._before: int | None = None
        """Positions that were distributed last: fewer must come back, or the rest is left out."""

    def __bool__(self) -> bool:
        return bool(self._pool or self._fresh or self.groups)

    @property
    def for_ranks(self) -> bool:
        """Return whether groups wait that are each for a certain trainer."""
        return any(group.rank is not None for group in self.groups)

    def positions(self) -> Iterator[tuple[LeaseKey, Iterable[Span]]]:
        """Yield the positions that are here."""
        yield from ((held.lease.key, held.missing) for held in (*self._pool.values(), *self._fresh.values()))
        yield from ((lease.key, lease.spans) for group in self.groups for lease in group.leases)

    def add(self, lease: Lease, spans: Iterable[Span], *, early: bool = False) -> None:
        """Add positions of a lease; `early`: they may come before all else of the epoch is delivered."""
        pool = self._fresh if early else self._pool
        held = pool.setdefault(lease.key, PendingLease(replace(lease, spans=()), Spans()))
        for span in spans:
            held.missing.add(*span)
            self._fresh_units += len(by_element(replace(lease, spans=(span,)))) if early else 0

    def distribute_shares(self) -> None:
        """Make groups of what may be dealt, a batch each, as far as there is one for every trainer."""
        round_size = self._batch_size * self._world_size
        # Only full rounds: what gives some ranks a batch more than others is given back, and made again.
        if self._fresh_units < round_size:
            return
        units = [unit for lease in self._taken(self._fresh) for unit in by_element(lease)]
        self._fresh_units = 0
        full = len(units) // round_size * round_size
        for first in range(0, full, self._batch_size):
            # For no rank, because trainers take batches for a certain rank beyond their bound of bytes.
            self.groups.append(as_group(None, units[first : first + self._batch_size]))
        for unit in units[full:]:
            self.add(unit, unit.spans, early=True)

    @staticmethod
    def _taken(pool: dict[LeaseKey, PendingLease]) -> list[Lease]:
        """Take all that is in a pool, in the order of splits."""
        leases = [held.rest() for held in sorted(pool.values(), key=lambda held: held.lease.key)]
        pool.clear()
        return leases

    def take_back(self, state: WorkerLeaseState, remainder_part: LeaseSpans, *, early: bool) -> None:
        """Take what a worker returns, as `add` does; a group of which it could not open something stays one."""
        if state.rank is None or not state.rejected:
            for lease, returned in state.take_back(remainder_part):
                self.add(lease, returned, early=early)
            self.distribute_shares()
            return
        # Decision 98: what this worker could not open stays with the group, which another one makes as a whole.
        whole = {
            key: [*remainder_part.get(key, ()), *state.rejected.get(key, ())]
            for key in {**remainder_part, **state.rejected}
        }
        leases = [replace(lease, spans=tuple(spans)) for lease, spans in state.take_back(whole) if spans]
        if leases:
            self.groups.appendleft(as_group(state.rank, leases))

    def begin_epoch(self) -> None:
        """Forget what the last epoch was about."""
        self._before, self.rounds = None, 0

    def clear(self) -> None:
        """Forget all that is here: all ranks have left the epoch."""
        for pool in (self._pool, self._fresh, self.groups):
            pool.clear()
        self._fresh_units = 0

    def note_loss(self) -> None:
        """Note that a worker was lost: what comes back was not distributed in vain."""
        self._before = None

    def distribute(self) -> int:
        """Turn what was returned into groups, those of one round; return how many elements must be left out."""
        for lease in self._taken(self._fresh):
            self.add(lease, lease.spans)
        self._fresh_units = 0
        leases = self._taken(self._pool)
        if not leases:
            return 0
        self.rounds += 1
        # Decision 4: one worker gets all of it, so that it makes full batches and at most one smaller one.
        if self._world_size == 1:
            self.groups.append(as_group(0, leases))
            return 0
        units = [unit for lease in leases for unit in by_element(lease)]
        now = self._in_this_round(len(units))
        # If as much came back as was dealt, or no round is full, one more round would end in the same way.
        if self._no_progress(leases) or len(units) < now:
            return len(units)
        for rank in range(self._world_size):
            share = units[rank * now // self._world_size : (rank + 1) * now // self._world_size]
            self.groups.append(as_group(rank, share))
        for unit in units[now:]:
            self.add(unit, unit.spans)
        return 0

    def _in_this_round(self, units: int) -> int:
        """Return how many elements go into a round: as many into each, as far as batches need not be full."""
        full = self._batch_size * self._world_size
        if self._only_full:
            return full
        rounds = max(1, -(-units // full))
        # Each rank gets a batch in each round, so a round holds an element for each of them.
        return max(-(-units // rounds), self._world_size)

    def _no_progress(self, leases: Sequence[Lease]) -> bool:
        """Tell whether as much has come back as was distributed before, and note how much that is."""
        positions = sum(stop - start for lease in leases for start, stop in lease.spans)
        before, self._before = self._before, positions
        return before is not None and positions >= before


def as_group(rank: int | None, leases: Sequence[Lease]) -> Group:
    """Make a group of what workers or ranks gave back: all of it was behind the filters."""
    # Decision 4: a filter with a state (a set of what it has seen) would refuse these elements the second time.
    return Group(rank, tuple(replace(lease, passed=True) for lease in merged(leases)))


def merged(leases: Sequence[Lease]) -> tuple[Lease, ...]:
    """Join leases of the same split, in the order of splits."""
    by_key: dict[LeaseKey, PendingLease] = {}
    for lease in leases:
        held = by_key.setdefault(lease.key, PendingLease(lease, Spans()))
        for span in lease.spans:
            held.missing.add(*span)
    return tuple(by_key[key].rest() for key in sorted(by_key))


def by_element(lease: Lease) -> list[Lease]:
    """Cut a lease into leases of one element each; what has no known end stays in one piece."""
    out = []
    last = ((lease.split.elements or 0) - 1) << OUTPUT_BITS
    for start, stop in lease.spans:
        at = start
        while at < stop:
            open_end = stop == END and at >= last
            until = stop if open_end else min(stop, ((at >> OUTPUT_BITS) + 1) << OUTPUT_BITS)
            out.append(replace(lease, spans=((at, until),)))
            at = until
    return out
