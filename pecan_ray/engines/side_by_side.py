"""Reading several splits at a time, a few elements of each in turn, so that a shuffle's buffer holds some of all."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from pecan_ray import storage
from pecan_ray.engines.contract import ConcurrentLeases, Leases
from pecan_ray.plan.operators import Shuffle
from pecan_ray.plan.splits import Lease, OneSplitSource, SequentialSource, Source, as_written
from pecan_ray.storage.access import AHEAD_BYTES

T = TypeVar("T")
TakeBeside: TypeAlias = Callable[[int], Lease | None]
"""Returns another lease beside so many that are being read; None: none for now."""

MAX_OPEN_BYTES = 512 << 20
"""Memory of splits that a worker reads at a time, as far as their source tells: as much as eight splits of Parquet."""
TURNS = 2
"""Turns of each split that fill the buffer: it then holds elements of all, and each is still read in runs."""


@dataclass(frozen=True)
class Streams:
    """How many splits of a source are read at a time, and how many elements in a row of each."""

    count: int = 1
    turn: int = 1

    @classmethod
    def of(cls, shuffle: Shuffle | None, source: Source) -> Streams:
        """Return what the shuffle asks for that orders a source's splits, as far as memory allows it.

        `shuffle`: None: the order of the splits matters, and they are read one after the other.
        """
        if shuffle is None or isinstance(as_written(source), OneSplitSource):
            return cls()
        # Decision 148: what a cache keeps plays no part here, because the sequence would depend on it.
        fitting = MAX_OPEN_BYTES // open_bytes(source)
        count = max(1, min(shuffle.splits, shuffle.buffer, fitting))
        return cls(count, max(1, shuffle.buffer // (TURNS * count)))


ONE_AFTER_THE_OTHER = Streams()


def open_bytes(source: Source) -> int:
    """Return how much memory a split takes at most while it is read, as far as its source tells."""
    written = as_written(source)
    split_bytes = int(getattr(written, "split_bytes", 0) or 1)
    if not isinstance(written, SequentialSource):
        return split_bytes
    # A file that is read from its front is held as far as it is read ahead: from buckets alone.
    remote = any(storage.is_remote(path) for path in getattr(written, "patterns", ()))
    return min(split_bytes, AHEAD_BYTES) if remote else 1


def take_concurrent(leases: Leases, branch: int, streams: Streams) -> TakeBeside:
    """Return what takes another lease of a source beside those that are being read."""
    if isinstance(leases, ConcurrentLeases):
        return lambda reading: leases.take_concurrent(branch, reading, streams.count)
    return lambda reading: leases.take(branch)


def next_of(leases: Iterator[Lease]) -> TakeBeside:
    """Return what takes the next of some leases, however many are being read."""
    return lambda reading: next(leases, None)


def _one_after_the_other(take: TakeBeside, read: Callable[[Lease], Iterator[T]]) -> Iterator[T]:
    while (lease := take(0)) is not None:
        yield from read(lease)


def in_turn(
    take: TakeBeside, streams: Streams, read: Callable[[Lease], Iterator[T]], size: Callable[[T], int]
) -> Iterator[T]:
    """Yield what several leases give, of each for a turn at a time; of passes one after the other.

    Args:
        take: takes the next lease; with 0 being read it waits for one, and None is the end.
        streams: how many leases are read at a time, and for how long each.
        read: reads a lease.
        size: returns how many elements something that was read is.
    """
    if streams.count == 1:
        yield from _one_after_the_other(take, read)
        return
    reading: deque[Iterator[T]] = deque()
    number, early, more = 0, None, True
    """Of the pass that is read; a lease of a later one; whether another lease may be had beside those that are read."""
    while True:
        while more and early is None and len(reading) < streams.count:
            lease = take(len(reading))
            if lease is None:
                more = False
            # A split of the next pass waits until those of this pass are at their ends: passes follow one another.
            elif reading and lease.pass_index != number:
                early = lease
            else:
                number = lease.pass_index
                reading.append(read(lease))
        if reading:
            one = reading.popleft()
            more = yield from _turn(one, streams.turn, size)
            if not more:
                reading.append(one)
        elif early is None:
            return
        else:
            number = early.pass_index
            reading.append(read(early))
            early, more = None, True


def _turn(items: Iterator[T], turn: int, size: Callable[[T], int]) -> Generator[T, None, bool]:
    """Yield what comes in a turn; return whether there is no more."""
    left = turn
    for one in items:
        left -= size(one)
        yield one
        del one  # what operators behind make of it would stay in memory with it
        if left <= 0:
            return False
    return True
