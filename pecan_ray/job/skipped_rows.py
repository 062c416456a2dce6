"""Places of joined rows that nobody can fill: of elements that kill workers, and of splits that nobody can open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pecan_ray.job.fatal_elements import FatalElementTracker
from pecan_ray.job.lease_sizes import cut, may_be_cut
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, LeaseKey


class SkippedRows:
    """Which leases yield nothing (decision 175): a worker gives up an empty block for each, without its engine."""

    def __init__(self) -> None:
        self._failed_splits: set[LeaseKey] = set()

    def clear(self) -> None:
        """Begin an epoch, in which splits may be opened again."""
        self._failed_splits.clear()

    def leave_out(self, key: LeaseKey) -> None:
        """Let a split that nobody can open yield nothing."""
        self._failed_splits.add(key)

    def has(self, lease: Lease) -> bool:
        """Tell whether a lease is of such a split."""
        return lease.key in self._failed_splits

    def first_part(self, lease: Lease, fatal_elements: FatalElementTracker) -> tuple[Lease, Sequence[Lease]]:
        """Return what a lease holds before its next element that yields nothing, or this element; and the rest."""
        if self.has(lease):
            return replace(lease, left_out=True), ()
        element = fatal_elements.first_in(lease)
        if element is None:
            return lease, ()
        before, rest = element - (lease.spans[0][0] >> OUTPUT_BITS), list[Lease]()
        # If the first element yields nothing, it is cut off by itself.
        if may_be_cut(lease, before or 1):
            lease, behind = cut(lease, before or 1)
            rest.append(behind)
        return (lease if before else replace(lease, left_out=True)), rest
