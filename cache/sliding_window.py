"""Sharing while it is fresh: a window of produced entries, a pointer for each reader (tf.data service §3.5, Figure 5).

The front reader's wish produces: a read that finds nothing new returns None, and whoever produces pushes the next
entry, for all readers.  What no longer fits leaves at the back; a reader that had not come to it skips it.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

from pecan_ray.cache.checked import checked_count
from pecan_ray.errors import PlanError

Entry = TypeVar("Entry")
JoinAt: TypeAlias = Literal["newest", "oldest"]


@dataclass
class _ReaderCursor:
    place: int
    """Of the entry that its reader reads next; entries are numbered as they are pushed."""
    skipped: int = 0


class SlidingWindow(Generic[Entry]):
    """The newest entries that fit into `capacity_bytes`, read by any number of readers, each in order and once.

    With `overflow_bytes` so many bytes more are kept, elsewhere: `take_overflow` tells what is to be moved there,
    which is nothing that all have read.  With `max_lag` nothing unread ever leaves: the front waits (`may_push`) for
    the slowest reader, where that one is `max_lag` entries behind or its unread entries fill the window.  Every
    operation takes amortised O(log n) for n kept entries, however many readers there are.  Not safe for threads: one
    at a time.
    """

    def __init__(self, capacity_bytes: int, *, max_lag: int | None = None, overflow_bytes: int = 0) -> None:
        self._capacity = checked_count("SlidingWindow(capacity_bytes=...)", capacity_bytes)
        self._overflow = checked_count("SlidingWindow(overflow_bytes=...)", overflow_bytes, least=0)
        self._max_lag = None if max_lag is None else checked_count("SlidingWindow(max_lag=...)", max_lag)
        self._kept: dict[int, tuple[Entry, int]] = {}
        """By place: the entry, and the bytes of all that were pushed before it."""
        self._earliest_kept = self._next = 0
        """Places of the oldest kept entry and of the next one to be pushed."""
        self._first_here = 0
        """Place of the oldest entry that was not moved elsewhere."""
        self._to_move: list[Entry] = []
        self._pushed_bytes = 0
        self._cursor_by_reader: dict[Hashable, _ReaderCursor] = {}
        self._readers_at: dict[int, int] = {}
        """Readers by place; those whose entry has left count at the oldest kept one."""
        self._positions: list[int] = []
        """The same places as a heap; nobody may be left at a place before it comes to the top."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def capacity_bytes(self) -> int:
        """Bytes that the window may hold."""
        return self._capacity

    @property
    def bytes(self) -> int:
        """Bytes that it holds, here and elsewhere."""
        return self._pushed_bytes - self._bytes_before(self._earliest_kept)

    @property
    def readers(self) -> tuple[Hashable, ...]:
        """Who reads, in the order in which they attached."""
        return tuple(self._cursor_by_reader)

    def attach(self, reader: Hashable, at: JoinAt = "newest") -> None:
        """Let a reader in: it reads what is pushed from now on, or first, `at="oldest"`, all that is kept."""
        if reader in self._cursor_by_reader:
            raise PlanError(f"reader {reader!r} is attached to the window already: detach it first.")
        if at not in ("newest", "oldest"):
            raise PlanError(f"attach({reader!r}, at=...) must be 'newest' or 'oldest', but got {at!r}.")
        place = self._next if at == "newest" else self._earliest_kept
        self._cursor_by_reader[reader] = _ReaderCursor(place)
        self._enter(place, 1)

    def detach(self, reader: Hashable) -> None:
        """Let a reader go, with what it has not read and what is known of it."""
        self._readers_at[self._reader_cursor(reader).place] -= 1
        del self._cursor_by_reader[reader]

    def read(self, reader: Hashable) -> Entry | None:
        """Return a reader's next entry; None: it has read all, and wishes that one is produced and pushed."""
        pointer = self._reader_cursor(reader)
        if pointer.place == self._next:
            return None
        entry, _ = self._kept[pointer.place]
        self._readers_at[pointer.place] -= 1
        pointer.place += 1
        self._enter(pointer.place, 1)
        return entry

    def may_push(self, nbytes: int = 0) -> bool:
        """Tell whether an entry of so many bytes may be pushed now; before it is produced its size need not be known.

        Without `max_lag` always.  With it, once all have read what is kept: so the front never waits for ever, unless
        for a reader that reads no more and is not detached.
        """
        size = self._size(nbytes)
        if self._max_lag is None:
            return True
        slowest = self._slowest_place()
        unread_bytes = self._pushed_bytes - self._bytes_before(slowest)
        return self._next - slowest < self._max_lag and unread_bytes + size <= self._capacity + self._overflow

    def push(self, entry: Entry, nbytes: int) -> None:
        """Add the entry that was produced at the front; older ones leave until it fits.

        Refuses, and changes nothing, one that is larger than the window, and one that may not be pushed yet.
        """
        size = self._size(nbytes)
        if entry is None:
            raise PlanError("None cannot be pushed: read() returns it where there is nothing to read.")
        if not self.may_push(nbytes):
            behind = self._next - self._slowest_place()
            raise PlanError(
                f"{size} bytes cannot be pushed yet: with max_lag={self._max_lag} nothing unread leaves the window of "
                f"{self._capacity + self._overflow} bytes, and {self.slowest()[0]!r} is {behind} entries "
                "behind; ask may_push(nbytes) first, and wait until it has read on or is detached."
            )
        while self.bytes + size > self._capacity + self._overflow:
            self._evict()
        # With a running sum: the bytes between any two places are one subtraction.
        self._kept[self._next] = (entry, self._pushed_bytes)
        self._pushed_bytes += size
        self._next += 1
        while self._pushed_bytes - self._bytes_before(self._first_here) > self._capacity:
            self._make_room()

    def take_overflow(self) -> list[Entry]:
        """Return the entries that no longer fit here since this was asked last: they are to be moved elsewhere."""
        to_move, self._to_move = self._to_move, []
        return to_move

    def stop_overflow(self) -> None:
        """Nothing can be moved elsewhere any more: keep what fits here, and what may not leave."""
        self._overflow = 0
        # With `max_lag` nothing unread leaves: it stays too large until it was read.
        while self._max_lag is None and self.bytes > self._capacity:
            self._evict()

    def skipped(self, reader: Hashable) -> int:
        """Return how many entries have left the window before a reader came to them."""
        return self._reader_cursor(reader).skipped

    def lag(self, reader: Hashable) -> int:
        """Return how many kept entries a reader has not read: 0 at the front."""
        return self._next - self._reader_cursor(reader).place

    def slowest(self) -> tuple[Hashable, ...]:
        """Return the readers that are furthest behind, for whom the front waits where it has to; takes O(readers)."""
        place = self._slowest_place()
        return tuple(reader for reader in self._cursor_by_reader if self._reader_cursor(reader).place == place)

    def _reader_cursor(self, reader: Hashable) -> _ReaderCursor:
        """Return a reader's pointer, moved on to the oldest kept entry if its own one has left."""
        pointer = self._cursor_by_reader.get(reader)
        if pointer is None:
            attached = ", ".join(map(repr, list(self._cursor_by_reader)[:8])) or "nobody is"
            raise PlanError(f"reader {reader!r} is not attached to the window ({attached}): attach it first.")
        if pointer.place < self._earliest_kept:
            pointer.skipped += self._earliest_kept - pointer.place
            pointer.place = self._earliest_kept
        return pointer

    def _size(self, nbytes: int) -> int:
        """Return the bytes that an entry counts for: one at least, so that the number of entries is bounded too."""
        size = max(1, checked_count("an entry's nbytes", nbytes, least=0))
        if size > self._capacity:
            raise PlanError(
                f"an entry of {size} bytes does not fit into a window of {self._capacity}: give it a larger "
                "capacity_bytes, or make smaller batches."
            )
        return size

    def _bytes_before(self, place: int) -> int:
        return self._kept[place][1] if place < self._next else self._pushed_bytes

    def _enter(self, place: int, readers: int) -> None:
        # Decision 34: a heap of places and not of readers, so that a thousand readers cost what two cost.
        if place not in self._readers_at:
            self._readers_at[place] = 0
            heapq.heappush(self._positions, place)
        self._readers_at[place] += readers

    def _slowest_place(self) -> int:
        """Return the first place where a reader is; without readers, the front."""
        # Places that readers have left are dropped here, and not with each read: that keeps a read at O(log n).
        while self._positions and not self._readers_at[self._positions[0]]:
            del self._readers_at[heapq.heappop(self._positions)]
        return self._positions[0] if self._positions else self._next

    def _make_room(self) -> None:
        """Let the oldest entry that is here go if all have read it, else have it moved."""
        if self._first_here < self._slowest_place():
            while self._earliest_kept < self._first_here:
                self._evict()
            self._evict()
        else:
            self._to_move.append(self._kept[self._first_here][0])
            self._first_here += 1

    def _evict(self) -> None:
        del self._kept[self._earliest_kept]
        self._first_here = max(self._first_here, self._earliest_kept + 1)
        # All readers there move on as one place: their own pointers follow when they are asked for (`_reader_cursor`).
        if self._positions and self._positions[0] == self._earliest_kept:
            self._enter(self._earliest_kept + 1, self._readers_at.pop(heapq.heappop(self._positions)))
        self._earliest_kept += 1
