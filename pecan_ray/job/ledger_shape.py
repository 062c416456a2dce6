"""What the ledger needs to know of a job, and what it gives a worker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from pecan_ray.job.joins import Joins
from pecan_ray.options import Sharding, Visitation
from pecan_ray.sampling.random_keys import SplitOrder


@dataclass(frozen=True)
class LedgerShape:
    """How the data of a job is visited."""

    branches: int = 1
    """Sources of the plan."""
    epochs: int | None = 1
    first_epoch: int = 0
    """Number of the first of them, of this job or of the first of the jobs that it goes on from."""
    num_passes: int | None = 1
    """Passes over the data within an epoch (`repeat`); None: no end."""
    sharding: Sharding = "dynamic"
    visitation: Visitation = "exactly_once"
    world_size: int = 1
    batch_size: int = 1
    drop_remainder: bool = False
    split_order: tuple[SplitOrder | None, ...] = ()
    """How the splits of each branch are shuffled; None: as listed, and so are all where there are no orders."""
    from_front: tuple[int, ...] = ()
    """Branches whose elements are reached only through those before them, which are computed again."""
    serial: bool = False
    """The plan cannot be cut: one worker gets every split of an epoch, in order."""
    in_order: bool = False
    """It can be, and makes one sequence: one worker at a time gets splits, in order, and ranks get batches in turn."""
    coordinated: bool = False
    """Workers make rounds, a batch for each rank."""
    grouped: bool = False
    """Each batch is of one group of elements, of which only the workers know."""
    counts: bool = False
    """Of a plan that cannot be cut it is known how many elements its first batches took."""
    keeps: bool = False
    """What a split gives is kept, once one worker has gone through all of it."""
    in_row_order: bool = False
    """Rows come in the order of the source, whatever the workers: these get runs, and the only trainer puts what they
    make in order (`pecan_ray.job.row_runs`).  Which row of an epoch an element becomes is known: runs are batches."""
    joined: bool = False
    """Of that it is known where in the source it comes from alone: workers get runs of elements, and the trainer joins
    what they make of these to batches (`pecan_ray.job.joiner`)."""
    one_row_each: bool = False
    """Where rows are joined: each element becomes one row all the same, so that a run of whole batches ends with one,
    and another run may follow it in the same assignment."""
    whole_batches: bool = False
    """Where rows are joined: a run has a batch of elements at least, because the engine begins anew behind a run that
    ends within a batch, which takes it as long as many rows."""
    order_required: bool = False
    """This order is never given up: the job fails where it cannot be kept."""
    in_turn: bool = False
    """One worker at a time makes rows in the order of the source, where several would join theirs: what was used of an
    epoch is a beginning of it."""
    seeks: bool = False
    """Any element is read without those before it, so that rows of a split may go to several nodes in turn."""

    @property
    def joins(self) -> Joins | None:
        """How the trainer joins rows to batches; None: workers make batches."""
        return Joins(self.batch_size, self.drop_remainder) if self.joined else None

    @property
    def end_epoch(self) -> int | None:
        """Number of the first epoch that is not run any more; None: there is none."""
        return None if self.epochs is None else self.first_epoch + self.epochs

    def epochs_before(self, epoch: int) -> int:
        """Return how many epochs lie before one, with those of the jobs that this one goes on from."""
        return epoch - self.first_epoch

    @property
    def shuffles(self) -> bool:
        """Return whether the splits of some branch are shuffled."""
        return any(order is not None for order in self.split_order)

    @property
    def one_at_a_time(self) -> bool:
        """Return whether one worker at a time runs the plan."""
        return self.serial or self.in_order

    @property
    def addressed(self) -> bool:
        """Return whether workers make batches for certain ranks throughout an epoch: each is for one of them alone."""
        return self.coordinated or (self.world_size > 1 and (self.one_at_a_time or self.in_row_order))

    @property
    def may_divide_splits(self) -> bool:
        """Return whether several workers may share a split of known length, so that they end an epoch together."""
        # Decision 91: `autocache` makes an entry of a whole split, so what it keeps is never cut.
        return self.sharding == "dynamic" and not (self.one_at_a_time or self.coordinated or self.keeps)

    @property
    def any_order(self) -> bool:
        """Return whether splits are shuffled, and no result hangs on the order in which they come."""
        return self.shuffles and not self.one_at_a_time

    @property
    def groups(self) -> int:
        """Ranks to which the leftovers of an epoch are dealt: one where one worker makes batches of all of them."""
        return 1 if self.coordinated or self.tail_ranks > 1 else self.world_size

    @property
    def tail_ranks(self) -> int:
        """Ranks for which one worker makes batches of all leftovers of an epoch, each for a certain one of them."""
        return self.world_size if self.grouped and not self.coordinated else 1

    @property
    def may_flush_partial(self) -> bool:
        """Return whether a worker may make smaller batches of what it is left with, if no other has anything."""
        return self.world_size == 1 or self.coordinated

    @property
    def produces_early(self) -> bool:
        """Return whether leftovers become batches before all of them are together."""
        # Decision 170: a batch of elements seldom holds a batch of one group.
        return not (self.coordinated or self.grouped)

    @property
    def runs_whole(self) -> bool:
        """Return whether one worker runs the whole plan: then numbers of batches tell what is done, and not positions.

        The last batch carries all positions that no batch needs, and of several trainers one may have it before the
        others have theirs.
        """
        return self.serial and self.sharding != "off"

    @property
    def may_repeat(self) -> bool:
        """Return whether what a lost worker held is given out at once, although trainers may have some of it."""
        # Of whole plans batches are counted: one of a lost worker that comes late would count as another one.
        return self.visitation == "zero_or_more" and not (self.runs_whole or self.in_order)

    @property
    def static(self) -> bool:
        """Return whether splits are distributed to workers once and for all; one worker gets all of a serial plan."""
        return self.sharding == "static" and not self.one_at_a_time


@dataclass(frozen=True)
class Assignment:
    """Leave for a worker to take leases of an epoch."""

    epoch: int
    rank: int | None = None
    """The trainer that its batches are for; None: whichever has room."""
    delivered: tuple[int, ...] = ()
    """Batches of each rank that were delivered before, where batches go to the ranks in turn; else empty."""
    repeated: bool = False
    """The delivered batches are made again, in order, and left out."""
    behind: int = 0
    """Batches that all ranks have and that are not made again: the plan begins behind their elements."""

    def numbers(self) -> Iterator[int]:
        """Yield the number in the epoch of each batch that is made."""
        if self.repeated or not self.delivered:
            return itertools.count(self.behind)
        first = min(self.delivered) * len(self.delivered)
        return (number for number in itertools.count(first) if not self.has(number))

    def has(self, number: int) -> bool:
        """Tell whether the rank whose turn it is has the batch of a number."""
        turn, rank = divmod(number, len(self.delivered))
        return turn < self.delivered[rank]
