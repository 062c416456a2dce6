"""The leases of a plan that begins behind its first elements: of what lies before, only unknown lengths are read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from pecan_ray.engines.contract import BadElement, Leases, SharedLeases
from pecan_ray.engines.left_out import elements_of_error
from pecan_ray.engines.reading import values_or_errors
from pecan_ray.errors import SourceError
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Source


class LeasesBehind:
    """A stretch's leases, but for the first elements of each source."""

    def __init__(
        self,
        leases: Leases,
        sources: Sequence[Source],
        elements: Sequence[int],
        *,
        take_unread: Callable[[int], Lease | None] | None = None,
    ) -> None:
        """`elements`: so many of each source are passed over.

        `take_unread`: takes a lease that is likely not to be read.
        """
        self._leases, self._sources, self._left = leases, sources, list(elements)
        self._take_next = take_unread or leases.take

    def take(self, branch: int = 0) -> Lease | None:
        """Return the next lease of a source that has elements behind those that are passed over, without these."""
        while left := self._left[branch]:
            lease = self._take_next(branch)
            if lease is None:
                return None
            # The order of leases is that of the epoch, so elements are counted off from its beginning.
            held = self._held(lease, left)
            if held <= left:
                self._left[branch] -= held
                continue
            self._left[branch] = 0
            return replace(lease, spans=((left << OUTPUT_BITS, END),))
        return self._leases.take(branch)

    def ended(self, lease: Lease, elements: int) -> None:
        """Tell how many elements a split holds."""
        self._leases.ended(lease, elements)

    def elsewhere(self, lease: Lease, bad: BadElement) -> bool:
        """Leave a lease to other workers, if there are any."""
        return isinstance(self._leases, SharedLeases) and self._leases.elsewhere(lease, bad)

    def _held(self, lease: Lease, most: int) -> int:
        """Return how many elements a split holds, or more than `most`: where nobody knows, by reading them."""
        if lease.split.elements is not None:
            return lease.split.elements
        # One more than asked for: whether the split ends there decides if its length may be told.
        read = itertools.islice(values_or_errors(self._sources[lease.branch], lease, 0), most + 1)
        held = sum(elements_of_error(one) if isinstance(one, SourceError) else 1 for one in read)
        if held <= most:
            self._leases.ended(lease, held)
        return held
