"""What an engine has said of the positions that it was given: the job waits for what nobody speaks of."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pecan_ray.engines.contract import BadElement, ConcurrentLeases, Leases, SharedLeases, SpansByKey
from pecan_ray.errors import PecanError
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, LeaseKey
from pecan_ray.sampling.spans import Span, Spans


class LeaseTracker:
    """The leases of one assignment, and which of their positions the engine has not mentioned yet.

    An engine mentions a position in a batch, as one that yields nothing, in a leftover, or by the length of a split.
    At the end of an assignment it has read all leases to their ends.  A position that it has not mentioned then lies
    behind the last element of a split whose length nobody knew, and ends with the assignment.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._given: dict[LeaseKey, tuple[Lease, Spans]] = {}
        """A lease of each split, and the positions of all."""
        self._missing: dict[LeaseKey, Spans] = {}
        """Those that were not mentioned."""
        self.latest_pass = -1
        """The latest pass of which something was given."""
        self.is_joined = False
        """Whether the trainer joins the rows of what was given to batches."""
        self._changed = threading.Condition()
        """Guards both and what follows: engines read in several threads."""
        self._waiting, self._closed = 0, False
        """Threads that ask for a lease; whether none is given any more."""

    def take(self, branch: int = 0) -> Lease | None:
        """Return the next lease."""
        return self._track(lambda: self._leases.take(branch))

    def take_concurrent(self, branch: int, reading: int, streams: int) -> Lease | None:
        """Return another lease while `reading` ones are worked on."""
        leases = self._leases
        if not isinstance(leases, ConcurrentLeases):
            return self.take(branch)
        return self._track(lambda: leases.take_concurrent(branch, reading, streams))

    def _track(self, take: Callable[[], Lease | None]) -> Lease | None:
        with self._changed:
            if self._closed:
                return None
            # `close` waits for these: a lease that arrives behind it would be given to nobody.
            self._waiting += 1
        # Outside of the lock: the job may let this wait, and batches have to be mentioned meanwhile.
        try:
            lease = take()
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()
        if lease is not None:
            with self._changed:
                self.latest_pass = max(self.latest_pass, lease.pass_index)
                self.is_joined = self.is_joined or lease.place is not None
                _, given = self._given.setdefault(lease.key, (lease, Spans()))
                missing = self._missing.setdefault(lease.key, Spans())
                for span in lease.spans:
                    given.add(*span)
                    missing.add(*span)
        return lease

    def ended(self, lease: Lease, elements: int) -> None:
        """Tell how many elements a split holds: what is behind them is mentioned."""
        # A fresh lease ends at END, so what lies behind the last element was given as well and counts as
        # mentioned.
        self.mark_processed({lease.key: [(elements << OUTPUT_BITS, lease.spans[-1][1])]})
        self._leases.ended(lease, elements)

    def elsewhere(self, lease: Lease, bad: BadElement) -> bool:
        """Leave a lease to other workers, if there are any: then nothing of it is missing here."""
        left = isinstance(self._leases, SharedLeases) and self._leases.elsewhere(lease, bad)
        if left:
            self.mark_processed({lease.key: lease.spans})
        return left

    def mark_processed(self, spans: Mapping[LeaseKey, Sequence[Span]]) -> None:
        """Note what a batch, or what yields none, stands for."""
        with self._changed:
            for key, intervals in spans.items():
                missing = self._missing.get(key)
                if missing is None:
                    continue
                missing.remove_all(intervals)
                # Forgotten at once, or the table would grow by each split of the epoch.
                if not missing:
                    del self._missing[key], self._given[key]

    def earliest_pass(self) -> int:
        """Return the first pass of which something given was not mentioned; of the newest one more may be given."""
        with self._changed:
            return min((pass_index for _, pass_index, _ in self._missing), default=self.latest_pass)

    def close(self) -> None:
        """Give no lease any more, and wait for those who ask for one: a thread of a stretch that is left may."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._waiting)

    def missing(self) -> list[Lease]:
        """Return what was given and not mentioned, in the order in which it was given."""
        with self._changed:
            return [replace(self._given[key][0], spans=tuple(spans)) for key, spans in self._missing.items()]

    def unresolved_spans(self) -> SpansByKey:
        """Return what the engine has not mentioned of its leases, all read to their ends.

        Raises `PecanError` if elements are among it: they would be lost.
        """
        with self._changed:
            for key, missing in self._missing.items():
                lease, given = self._given[key]
                # Only a tail may be missing. If a later position was mentioned, an element was lost.
                first = next(iter(missing))[0]
                given.remove(0, first)
                element, elements = first >> OUTPUT_BITS, lease.split.elements
                if given != missing or (elements is not None and element < elements):
                    raise PecanError(
                        f"the engine has neither delivered nor left out {lease.split.where(element)}, and has read all "
                        "that it was given. This is a fault of pecan_ray: please report it with the pipeline."
                    )
            return {key: list(missing) for key, missing in self._missing.items()}


class ReturnedLeases:
    """Leases of one source, of which some were taken before and are given once more."""

    def __init__(self, again: Sequence[Lease], leases: Leases) -> None:
        self._returned, self._leases = deque(again), leases

    def take(self, branch: int = 0) -> Lease | None:
        """Return the next lease."""
        return self._returned.popleft() if self._returned else self._leases.take(branch)

    def ended(self, lease: Lease, elements: int) -> None:
        """Tell how many elements the split of a lease holds."""
        self._leases.ended(lease, elements)

    def elsewhere(self, lease: Lease, bad: BadElement) -> bool:
        """Leave a lease to other workers, if there are any."""
        return isinstance(self._leases, SharedLeases) and self._leases.elsewhere(lease, bad)
