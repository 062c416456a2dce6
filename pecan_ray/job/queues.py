"""Which leases wait for whom: one queue for each source, or one for each worker with static sharding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Literal, TypeAlias

from pecan_ray.job.lease_sizes import SideBySide, interleave_size
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.pass_order import Listing
from pecan_ray.job.resume_point import ResumePoint
from pecan_ray.job.split_queue import SplitQueue, WantedSplits
from pecan_ray.plan.splits import Lease, LeaseKey, Split

NoLease: TypeAlias = Literal["wait", "none"]
# A share of a listing, as `SplitQueue` takes it: part 0 of no parts is a queue of what is put back alone.
NOTHING_FRESH = (0, 0)
SPLITS_ASKED = 8
"""Splits of a listing that tell how long splits are: the first one may be empty."""


class Queues:
    """All leases of a job that nobody has taken."""

    def __init__(self, shape: LedgerShape, start: ResumePoint | None = None) -> None:
        """`start`: go on there, with data that belongs to no worker alone."""
        self._shape = shape
        self._epoch = shape.first_epoch if start is None else start.epoch
        self.listings = [Listing(by_estimates=shape.joined) for _ in range(shape.branches)]
        # There each worker has queues of its own, and the common one holds only what comes back.
        share = NOTHING_FRESH if shape.static or shape.sharding == "off" else (0, 1)
        self._shared = [[queue] for queue in self._of_share(share)]
        """What any worker may take, per branch: the common queue, then those of owners that were lost."""
        self._own: dict[str, list[SplitQueue]] = {}
        """What a certain worker may take (sharding off and static)."""
        self._distributed = False
        self._excluded_leases: dict[str, set[LeaseKey]] = {}
        """What came back in this epoch from workers that cannot open it."""
        self._failed_to_open: set[str] = set()
        """Workers that could not open something."""
        self._next_epoch_splits: dict[tuple[int, int, int], list[Split]] = {}
        """What the next epoch begins with (epoch, source, how many splits), where every worker sees all data."""
        # Without a state there are no points, and each queue stays at its beginning.
        for queue, point in zip(self.common, start.branches if start is not None else (), strict=False):
            queue.go_on(self._epoch, point)

    def _of_share(self, share: tuple[int, int]) -> list[SplitQueue]:
        """Return a queue for each source."""
        shape = self._shape
        orders = shape.split_order or (None,) * shape.branches
        queues = [SplitQueue(one, i, orders[i], share, shape.num_passes) for i, one in enumerate(self.listings)]
        for queue in queues:
            queue.begin(self._epoch, 0)
        return queues

    def __iter__(self) -> Iterator[Lease]:
        for queue in self.all_queues():
            yield from queue

    @property
    def common(self) -> list[SplitQueue]:
        """The queue of each source that any worker may take from."""
        return [queues[0] for queues in self._shared]

    def all_queues(self) -> Iterator[SplitQueue]:
        """Yield the queues that any worker may take from, and those of certain workers."""
        return itertools.chain(*self._shared, *self._own.values())

    def add(self, branch: int, splits: Sequence[Split]) -> None:
        """Add a page of a source's listing."""
        self.listings[branch].add(splits)
        self._catch_up(branch)

    def end_listing(self, branch: int) -> None:
        """Note that a source has no more splits."""
        self.listings[branch].complete = True
        self._catch_up(branch)

    def _catch_up(self, branch: int) -> None:
        """Let queues take notice now: else a shuffled order would depend on when somebody looked at them."""
        for queues in (self._shared[branch], *([queues[branch]] for queues in self._own.values())):
            for queue in queues:
                queue.catch_up()

    @property
    def each_sees_all(self) -> bool:
        """Return whether every worker sees all data."""
        return self._shape.sharding == "off"

    @property
    def is_complete(self) -> bool:
        """Return whether all splits of all sources are known."""
        return all(listing.complete for listing in self.listings)

    @property
    def known(self) -> int:
        """How many splits are known."""
        return sum(map(len, self.listings))

    @property
    def empty_source(self) -> bool:
        """Return whether there is not a single split, as far as is known."""
        return not self.known

    @property
    def passes_left(self) -> bool:
        """Return whether the epoch has passes that have not begun."""
        return any(queue.passes_left for queue in self.all_queues())

    def join(self, worker: str) -> None:
        """Add a worker; where every worker sees all data, it begins with this epoch."""
        if self._shape.sharding == "off":
            self._own[worker] = self._of_share((0, 1))

    def distribute(self, workers: Sequence[str]) -> None:
        """Distribute the splits of this and later epochs to these workers by index (static sharding)."""
        if self._shape.static:
            self._distributed = True
            for place, worker in enumerate(workers):
                self._own[worker] = self._of_share((place, len(workers)))

    def leave(self, worker: str) -> None:
        """Let others have what a worker that is gone was given, but where every worker sees all data anyway."""
        self._excluded_leases.pop(worker, None)
        self._failed_to_open.discard(worker)
        queues = self._own.pop(worker, [])
        if self._shape.static:
            for shared, queue in zip(self._shared, queues, strict=False):
                # With its place in the splits: what is listed later for its owner others get as well.
                shared.append(queue)

    def share_taken(self) -> float | None:
        """Return which share of the epoch's splits was taken; None where that is not known."""
        passes = self._shape.num_passes
        if passes is None or self._shape.sharding == "off" or not self.is_complete or self.empty_source:
            return None
        whole = passes * sum(map(len, self.listings))
        waiting = sum(len(queue) + queue.passes_left * queue.splits for queue in self.all_queues())
        return max(0.0, 1 - waiting / whole)

    def begin_epoch(self, epoch: int) -> None:
        """Let all splits wait again."""
        self._epoch = epoch
        # A worker may try again in each epoch what it could not open. Only `_failed_to_open`
        # remembers that it did not.
        self._excluded_leases.clear()
        for queue in self.all_queues():
            queue.begin(epoch, 0)

    def restart(self) -> None:
        """Begin the epoch anew: what came back is in it too."""
        for queue in self.all_queues():
            queue.clear()

    def put_back(self, lease: Lease, *, last: bool = False) -> None:
        """Let a lease be the next one that is taken, or the `last` one of those that came back."""
        self._shared[lease.branch][0].put_back(lease, last=last)

    def bar(self, worker: str, key: LeaseKey) -> None:
        """Keep a lease that came back from a worker, which cannot open it."""
        self._excluded_leases.setdefault(worker, set()).add(key)
        self._failed_to_open.add(worker)

    def excluded(self, worker: str) -> Set[LeaseKey]:
        """Return what a worker cannot open of what came back in this epoch."""
        return self._excluded_leases.get(worker, frozenset())

    def bars(self, worker: str) -> bool:
        """Tell whether a worker may not have all that waits."""
        return worker in self._excluded_leases or worker in self._failed_to_open

    def should_skip(self, worker: str, workers: Iterable[str]) -> bool:
        """Tell whether a worker could not open something so far, and there is one that has met nothing like that."""
        return worker in self._failed_to_open and not self._failed_to_open.issuperset(workers)

    def has_returned(self, key: LeaseKey) -> bool:
        """Tell whether something of a split came back, and waits."""
        return any(lease.key == key for lease in self._shared[key[0]][0].returned)

    def take_returned_lease(self, key: LeaseKey) -> Lease | None:
        """Take a lease out that came back; None if somebody has it."""
        return self._shared[key[0]][0].take_returned_lease(key)

    def waiting(self) -> bool:
        """Tell whether a lease waits that was listed and belongs to a pass that has begun, or for its worker."""
        if self._shape.static and not self._distributed:
            # Splits that were not dealt yet wait, too. Else the epoch would count as delivered before it began.
            return not self.empty_source
        return any(self.all_queues())

    def mine(self, worker: str) -> bool:
        """Tell whether leases wait for a certain worker."""
        return any(queue or queue.passes_left for queue in self._own.get(worker, ()))

    def has_work(self, worker: str) -> bool:
        """Tell whether a worker could take a lease, now or when the listing has gone on."""
        if self.mine(worker):
            return True
        if self._shape.sharding == "off":
            return False
        if self._shape.static and not self._distributed:
            return False
        may_come = not self.is_complete and (not self._shape.static or worker in self._own)
        barred = self.excluded(worker)
        return may_come or any(queue.has_for(barred) for queues in self._shared for queue in queues)

    def peek_splits(self, worker: str, branch: int, most: int) -> list[Split]:
        """Offer a worker up to so many of the next splits of a branch: none where their order tells on the result."""
        # Decision 54: an offer moves splits to the end, so there is none where the order of splits
        # tells on results.
        if self._shape.one_at_a_time:
            return []
        own = self._own.get(worker)
        queues = ([own[branch]] if own else []) + self._shared[branch]
        return next((offered for queue in queues if (offered := queue.peek_splits(most))), [])

    def projected(self, worker: str, branch: int, workers: int, most: int) -> list[Split]:
        """Return up to so many of the splits with which one of so many workers begins the next epoch.

        None where others may be given them: what they fetched in vain would be read twice.
        """
        own = self._own.get(worker)
        if self._epoch + 1 == self._shape.end_epoch or (own is None and workers > 1):
            return []
        queue = own[branch] if own else self._shared[branch][0]
        if not self.each_sees_all or not self.listings[branch].complete:
            return queue.projected(self._epoch + 1, most)
        at = self._epoch + 1, branch, most
        if at not in self._next_epoch_splits:  # all workers begin with the same
            self._next_epoch_splits = {of: first for of, first in self._next_epoch_splits.items() if of[0] == at[0]}
            self._next_epoch_splits[at] = queue.projected(self._epoch + 1, most)
        return self._next_epoch_splits[at]

    def interleave_size(self, worker: str, branch: int, side: SideBySide) -> float:
        """Return how many elements of another split a worker may read at a time with others; 0: none."""
        # Nobody else may take these, so nothing has to be left for others.
        if (own := self._own.get(worker)) and own[branch]:
            return math.inf
        waiting, listing = self.leases_waiting(branch), self.listings[branch]
        lengths = [listing[index].elements for index in range(min(len(listing), SPLITS_ASKED))]
        known = self._shape.may_divide_splits and None not in lengths
        elements = max((length or 0 for length in lengths), default=0) if known else None
        return interleave_size(side, waiting, elements, self._shape.batch_size)

    def take(
        self, worker: str, branch: int, wanted: WantedSplits = None, *, fresh_first: bool = False
    ) -> Lease | NoLease:
        """Return the next lease of a branch for a worker, `wanted` ones first; "wait" while more are being listed.

        `fresh_first`: before what came back, such as the rest of a split that was cut.
        """
        if self._shape.serial and self._shape.shuffles and not self.is_complete:
            return "wait"  # what is drawn before would come in another order when it must be made again
        own = self._own.get(worker)
        for queue in ([own[branch]] if own else []) + self._shared[branch]:
            lease = queue.take(wanted, self.excluded(worker), fresh_first=fresh_first)
            if lease is not None:
                return lease
        if not self.listings[branch].complete:
            return "wait"
        return "none"

    def share(self, worker: str, branch: int, workers: int) -> int:
        """Return how many leases of a branch one of so many workers may take at a time: all have work to the end.

        All that are its own; else half of an even share of what waits, passes to come included (as in guided
        self-scheduling, Polychronopoulos and Kuck, 1987).
        """
        own = self._own.get(worker)
        if own and own[branch]:
            return len(own[branch])
        return max(1, self.leases_waiting(branch) // (2 * max(1, workers)))

    def leases_waiting(self, branch: int) -> int:
        """Return how many leases of a branch wait for any worker, those of passes to come included."""
        return sum(len(queue) + queue.passes_left * queue.splits for queue in self._shared[branch])
