"""Positions of the data on their way through an engine: with a batch, or without one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np

from pecan_ray.engines.contract import BadElement, Produced, SpansByKey
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, LeaseKey
from pecan_ray.sampling.spans import Span, SpanArray, merged, merged_bounds, packed

Part = tuple[LeaseKey, int, int]
"""An interval of positions: lease key, start, stop."""
PartArray = tuple[LeaseKey, SpanArray]
"""Intervals of positions of one split, sorted and apart."""

MOST_BAD = 1024
"""Bad elements that wait for a batch: a mistake in the pipeline shows before the data has been gone through."""
MOST_INTERVALS = 1024
"""Intervals that wait for a batch, once neighbours have become one."""
MOST_DROPPED = 1 << 16
"""Times that positions are dropped without a batch: what is done is known to others, and is not done again."""


class SkippedPositions:
    """Positions that were dealt with and yield nothing, of filtered and bad elements, and why; any thread may add some.

    The next batch carries them.  Where none comes for long they are `due`, and are reported without one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._parts: list[Part] = []
        self._bad: list[BadElement] = []
        self._dropped = 0
        self._sent_in_batch = False
        """A batch has carried some."""
        self._merge_at = 2 * MOST_INTERVALS
        self._latest_pass = 0
        self._lengths: dict[int, tuple[int, int]] = {}
        """By branch: so many splits were read to their ends, and so many elements they hold."""
        self._known_bytes: dict[int, tuple[int, int]] = {}
        """By branch, of those whose bytes are known: these, and their elements."""
        self.due = False
        """Whether so much waits that it must not wait for a batch any longer."""
        self.first_runs_only = False
        """Of a plan that runs as a whole positions count of the first run over a source; others are nobody's."""
        self.with_errors: set[LeaseKey] = set()
        """Splits of which an element was bad."""

    def add(self, parts: Iterable[Part], bad: BadElement | None = None, elements: int = 1) -> None:
        """Add positions, of so many elements, and the reason if they are bad."""
        with self._lock:
            join(self._parts, of_first_runs(parts) if self.first_runs_only else parts)
            self._dropped += elements
            if bad is not None:
                self._bad.append(bad)
                origin = bad.origin or bad.first
                self.with_errors.update(() if origin is None else ((origin.branch, origin.repetition, origin.split),))
            # The bound grows with what is left, so that sorting costs little however many intervals stay apart.
            if len(self._parts) >= self._merge_at:
                self._parts = parts_of_spans(merge(self._parts))
                self._merge_at = max(2 * MOST_INTERVALS, 2 * len(self._parts))
                self.due = self.due or len(self._parts) >= MOST_INTERVALS
            if self._dropped >= MOST_DROPPED or len(self._bad) >= MOST_BAD:
                self.due = True

    @property
    def waiting(self) -> bool:
        """Return whether anything waits for a batch."""
        return bool(self._parts or self._bad)

    def begin_pass(self, number: int) -> None:
        """Note that a pass is read; where it is a later one, what waits is reported if no batch has carried anything.

        The job ends where passes without end yield nothing, and can tell by what is done alone.
        """
        if number <= self._latest_pass:
            return
        with self._lock:
            self._latest_pass = number
            # Once a batch has carried something the pass is known not to be empty, and the next batch carries
            # the rest.
            self.due = self.due or (not self._sent_in_batch and bool(self._parts or self._bad))

    def take(self) -> tuple[list[Part], list[BadElement]]:
        """Return and forget what was added, for a batch to carry."""
        # Without the lock, because it is only ever set.
        self._sent_in_batch = True
        return self._taken()

    def _taken(self) -> tuple[list[Part], list[BadElement]]:
        with self._lock:
            parts, bad = self._parts, self._bad
            self._parts, self._bad = [], []
            self._dropped, self._merge_at, self.due = 0, 2 * MOST_INTERVALS, False
        return parts, bad

    def note_length(self, branch: int, elements: int, nbytes: int | None = None) -> None:
        """Note that a split of a branch was read to its end."""
        with self._lock:
            splits, in_all = self._lengths.get(branch, (0, 0))
            self._lengths[branch] = (splits + 1, in_all + elements)
            if nbytes is not None:
                bytes_in_all, of_those = self._known_bytes.get(branch, (0, 0))
                self._known_bytes[branch] = (bytes_in_all + nbytes, of_those + elements)

    def mean_length(self, branch: int) -> float | None:
        """Return how many elements the splits of a branch hold in the mean; None if none was read to its end."""
        with self._lock:
            splits, in_all = self._lengths.get(branch, (0, 0))
        return in_all / splits if splits else None

    def length_of_bytes(self, branch: int, nbytes: int) -> float | None:
        """Return how many elements so many bytes of a branch hold in the mean; None if that is not known."""
        with self._lock:
            bytes_in_all, elements = self._known_bytes.get(branch, (0, 0))
        return nbytes * elements / bytes_in_all if bytes_in_all else None

    def report(self, epoch: int) -> Produced | None:
        """Return all that waits, without a batch; None if nothing does."""
        parts, bad = self._taken()
        return Produced({}, merge(parts), 0, epoch, bad=bad) if parts or bad else None


def join(held: list[Part], parts: Iterable[Part]) -> None:
    """Add positions to a list; those that begin where the last ones end become one interval with them."""
    for key, start, stop in parts:
        if held and held[-1][2] == start and held[-1][0] == key:
            held[-1] = (key, held[-1][1], stop)
        else:
            held.append((key, start, stop))


def of_first_runs(parts: Iterable[Part]) -> list[Part]:
    """Return positions without those of later runs over their source."""
    # A key is (branch, pass, split); the job knows a plan that runs as a whole by its first pass alone.
    return [part for part in parts if not part[0][1]]


def whole_parts(leases: Iterable[Lease]) -> list[Part]:
    """Return all positions of leases."""
    return [(lease.key, start, stop) for lease in leases for start, stop in lease.spans]


def elements_in(parts: Iterable[Part]) -> int:
    """Return how many elements intervals touch."""
    return len({(key, n) for key, start, stop in parts for n in range(start >> OUTPUT_BITS, -(-stop >> OUTPUT_BITS))})


def merge(parts: Sequence[Part], arrays: Iterable[PartArray] = ()) -> SpansByKey:
    """Group positions by split, as few sorted intervals; many of them come faster in arrays."""
    grouped: dict[LeaseKey, list[Span]] = {}
    # Neighbours of one split stand together in most batches, so grouping first saves a look-up for each part.
    for key, mine in groupby(parts, itemgetter(0)):
        grouped.setdefault(key, []).extend(map(itemgetter(1, 2), mine))
    found: dict[LeaseKey, Sequence[Span]] = {key: list(merged(intervals)) for key, intervals in grouped.items()}
    arrays_by_key: dict[LeaseKey, list[SpanArray]] = {}
    for key, bounds in arrays:
        arrays_by_key.setdefault(key, []).append(bounds)
    for key, several in arrays_by_key.items():
        if key in found:
            several.append(np.array(found[key], np.int64))
        found[key] = packed(several[0] if len(several) == 1 else _merged_arrays(several))
    return {key: found[key] for key in sorted(found)}


def _merged_arrays(several: Sequence[SpanArray]) -> SpanArray:
    bounds = np.concatenate(several)
    return merged_bounds(bounds[np.argsort(bounds[:, 0])])


def parts_of_arrays(arrays: Iterable[PartArray]) -> list[Part]:
    """Return the intervals of arrays one by one."""
    return [(key, start, stop) for key, bounds in arrays for start, stop in bounds.tolist()]


def parts_of_spans(spans: SpansByKey) -> list[Part]:
    """Return grouped positions one by one."""
    return [(key, start, stop) for key, intervals in spans.items() for start, stop in intervals]
