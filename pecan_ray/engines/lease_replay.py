"""Leases for the passes that `repeat` makes over sources: read again, or dealt out again by the job."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pecan_ray.engines.contract import BadElement, ConcurrentLeases, Leases, SharedLeases
from pecan_ray.plan.operators import Join, Op, Plan, Repeat
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Lease
from pecan_ray.sampling.order import shuffled
from pecan_ray.sampling.random_keys import SplitOrder


@dataclass
class _Source:
    """What is known of one source."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    """Guards what follows: a run that was left may still be reading ahead when the next one begins."""
    taken: list[Lease] = field(default_factory=list)
    complete: bool = False
    """There are no more leases than those that were taken."""
    started_runs: int = 0
    """Runs over it."""


class LeaseReplay:
    """Leases that are read again in later runs over their source, under the numbers of these runs.

    The first run takes them from the job.  A later one reads the same, where splits are shuffled in an order of its
    own, and goes on to take what the runs before left unread.  The job hears of the first run alone: of such a plan
    numbers of batches tell what was delivered.  Nothing but leases is kept.
    """

    def __init__(self, leases: Leases, orders: Sequence[SplitOrder | None]) -> None:
        """`orders`: how the splits of each source are shuffled."""
        self._leases, self._split_order = leases, orders
        self._sources = [_Source() for _ in orders]

    def run(self, branch: int) -> Iterator[Lease]:
        """Yield the leases of the next run over a source."""
        source = self._sources[branch]
        with source.lock:
            number = source.started_runs
            source.started_runs += 1
        order = self._split_order[branch]
        # A shuffle orders all splits of a pass, so the leases that no run has read are taken first.
        if number and order is not None:
            yield from (replace(lease, pass_index=number) for lease in self._in_order(branch, number, order))
            return
        for place in itertools.count():
            if (lease := self._at(branch, place)) is None:
                return
            yield replace(lease, pass_index=number)

    def _at(self, branch: int, place: int) -> Lease | None:
        """Return one of the leases of a source in the order in which they are taken; None behind the last one."""
        source = self._sources[branch]
        with source.lock:
            # Under the lock although the job may let this wait: leases stand in the order in which the job gives them.
            if place == len(source.taken) and not source.complete:
                lease = self._leases.take(branch)
                if lease is None:
                    source.complete = True
                else:
                    source.taken.append(lease)
            return source.taken[place] if place < len(source.taken) else None

    def everything(self, branch: int) -> list[Lease]:
        """Take what no run has read, and return all leases of a source as the job has given them."""
        source = self._sources[branch]
        with source.lock:
            while self._at(branch, len(source.taken)) is not None:
                pass
            return list(source.taken)

    def _in_order(self, branch: int, number: int, order: SplitOrder) -> list[Lease]:
        """Return the leases of a source in the order of a run, as the job orders the splits of a repetition."""
        leases = self.everything(branch)
        if not leases:
            return []
        indices = np.array(sorted({lease.split.index for lease in leases}), np.int64)
        ordered = shuffled(indices, order, leases[0].epoch, number, branch)
        # By the split's index: parts of one split stay together, in the order in which the job gave them.
        places = {int(index): place for place, index in enumerate(ordered)}
        return sorted(leases, key=lambda lease: places[lease.split.index])

    def none_of(self, branches: range) -> bool:
        """Tell whether some sources have given no lease so far."""
        return not any(self._sources[branch].taken for branch in branches)

    def take(self, branch: int = 0) -> Lease | None:
        """Return the next lease that no run has read."""
        source = self._sources[branch]
        with source.lock:
            return self._at(branch, len(source.taken))

    def ended(self, lease: Lease, elements: int) -> None:
        """Tell how many elements a split holds, which is known from the first run on."""
        # Decision 105: positions of later runs are nobody's, and the job would take them for those of the first.
        if not lease.pass_index:
            self._leases.ended(lease, elements)

    def elsewhere(self, lease: Lease, bad: BadElement) -> bool:
        """Leave a lease to other workers, if there are any: in the first run."""
        leases = self._leases
        return not lease.pass_index and isinstance(leases, SharedLeases) and leases.elsewhere(lease, bad)


class PassLeases:
    """The leases of a join that is repeated, where the job deals them out again: pass by pass in all of its inputs.

    What comes late of an earlier pass, since a worker was lost that had it, is read in the pass at hand.
    """

    def __init__(self, leases: Leases, branches: int) -> None:
        self._leases = leases
        self._early: list[Lease | None] = [None] * branches
        """By source, a lease of a later pass."""
        self.number = 0
        """Of the pass at hand."""

    def begin_next(self) -> bool:
        """Go on to the next pass that there is, once the sources give no more of this one; False: there is none."""
        early = [lease.pass_index for lease in self._early if lease is not None]
        # Not the number plus one: a worker may have nothing of a pass that others have read.
        self.number = min(early, default=self.number)
        return bool(early)

    def take(self, branch: int = 0) -> Lease | None:
        """Return the next lease of a source in this pass, or None."""
        return self._of_this_pass(branch, self._early[branch] or self._leases.take(branch))

    def take_concurrent(self, branch: int, reading: int, streams: int) -> Lease | None:
        """Return another lease of a source in this pass while `reading` ones are worked on."""
        leases = self._leases
        if self._early[branch] is not None or not isinstance(leases, ConcurrentLeases):
            return self.take(branch)
        return self._of_this_pass(branch, leases.take_concurrent(branch, reading, streams))

    def _of_this_pass(self, branch: int, lease: Lease | None) -> Lease | None:
        later = lease is not None and lease.pass_index > self.number
        self._early[branch] = lease if later else None
        return None if later else lease

    def ended(self, lease: Lease, elements: int) -> None:
        """Tell how many elements the split of a lease holds."""
        self._leases.ended(lease, elements)

    def elsewhere(self, lease: Lease, bad: BadElement) -> bool:
        """Leave a lease to other workers, if there are any."""
        return isinstance(self._leases, SharedLeases) and self._leases.elsewhere(lease, bad)


def joined_in_passes(plan: Plan) -> bool:
    """Tell whether the job deals out the inputs of a plan's join again and again, which come pass by pass."""
    return (
        isinstance(plan.head, Join)
        and any(isinstance(op, Repeat) for op in plan.ops)
        and not plan_shape(plan, order=False).serial
    )


def passes_before(plan: Plan, op: Op) -> int | None:
    """Return how many passes over the data one pass of an operator takes; None: its one pass has no end."""
    counts = [one.count for one in plan.ops[: plan.ops.index(op)] if isinstance(one, Repeat)]
    return None if None in counts else math.prod(count for count in counts if count is not None)
