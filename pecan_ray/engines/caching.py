"""What a worker keeps of splits behind an `autocache` point, and takes from there instead of the source.

An entry holds all that a split gives there.  It is written once the split has been gone through as a whole, and read
by whoever is given the split, or a part of it, later: an epoch, another worker, another job.  Positions, and so
exactly-once delivery and resuming, are those of the source.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pecan_ray.cache.store import EntryStore
from pecan_ray.engines.contract import Leases
from pecan_ray.engines.entry_format import EntryReader, EntryWriter
from pecan_ray.engines.items import Item
from pecan_ray.engines.plain import NotPlainError
from pecan_ray.engines.positions import Part, UndeliveredPositions
from pecan_ray.errors import CacheError
from pecan_ray.plan.fingerprint import spelled_out
from pecan_ray.plan.operators import Autocache
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Split

logger = logging.getLogger("pecan_ray.cache")

MOST_ENTRY_BYTES = 256 << 20
"""What a larger split gives is not kept: it would have to be held in memory until it is whole."""


class SplitCache:
    """The entries of one engine, in a folder; threads may use it side by side."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._lock = threading.Lock()
        """Guards the store and what was said."""
        self._said: set[str] = set()
        self._store: EntryStore | None = None
        try:
            self._store = EntryStore(folder, max_bytes=max_bytes)
        except CacheError as error:
            self._say(f"nothing is kept: {error.message}")

    def holds(self, point: Autocache, split: Split) -> bool:
        """Tell whether there is an entry of a split at a point."""
        with self._lock:
            return self._store is not None and entry_key(point, split) in self._store

    def find(self, point: Autocache, split: Split) -> EntryReader | None:
        """Return the entry of a split at a point; None where there is none, or none that can be read."""
        key = entry_key(point, split)
        with self._lock:
            if self._store is None:
                return None
            self._store.trouble = ""
            data = self._store.get(key)
            if data is None:
                self._say(self._store.trouble)
                return None
        try:
            return EntryReader(data)
        except ValueError as error:
            self._say(f"the entry {key} cannot be read: {error}")
            return None

    def keep(self, point: Autocache, split: Split, entry: bytes, elements: int, seconds: float) -> None:
        """Keep an entry, as far as there is room."""
        with self._lock:
            if self._store is None:
                return
            self._store.trouble = ""
            self._store.put(entry_key(point, split), point.key, [entry], elements=elements, seconds=seconds)
            self._say(self._store.trouble)

    def cannot_keep(self, point: Autocache, why: str) -> None:
        """Say, once, why what a point gives is not kept."""
        with self._lock:
            self._say(f"{point.name}: {why}, so it is not kept, and computed in each epoch")

    def close(self) -> None:
        """Let go of the folder."""
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None

    def _say(self, text: str) -> None:
        # The same trouble with another entry is the same trouble.
        kind = text.partition(":")[0] if text else ""
        if text and kind not in self._said:
            self._said.add(kind)
            logger.warning("autocache: %s", text)


def entry_key(point: Autocache, split: Split) -> str:
    """Return the name of what a point gives of a split: other data, or another version of it, has another one."""
    text = f"{point.key}\0{spelled_out(vars(split))}"
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=20).hexdigest()


def covers(lease: Lease) -> bool:
    """Tell whether a lease asks for all of its split."""
    if len(lease.spans) != 1 or lease.spans[0][0] != 0:
        return False
    stop, elements = lease.spans[0][1], lease.split.elements
    return stop == END or (elements is not None and stop >= elements << OUTPUT_BITS)


@dataclass
class Recording:
    """What a split gives at a point, while it is being gone through."""

    cache: SplitCache
    point: Autocache
    lease: Lease
    writer: EntryWriter | None
    """None: it cannot be kept."""
    began: float
    length: int | None = None
    """How many elements the split holds, once it has been read to its end."""

    def add(self, item: Item) -> None:
        """Add what has become of an element."""
        if self.writer is None:
            return
        try:
            self.writer.add(item.element, item.output, item.width, item.value)
        except NotPlainError as error:
            self.cache.cannot_keep(self.point, str(error))
            self.writer = None
            return
        if self.writer.nbytes > MOST_ENTRY_BYTES:
            self.cache.cannot_keep(self.point, f"a split gives more than {MOST_ENTRY_BYTES >> 20} MiB here")
            self.writer = None

    def publish(self, undelivered: UndeliveredPositions) -> None:
        """Keep the entry, if the split was read to its end and no element of it was bad."""
        if self.writer is None or self.length is None or self.lease.key in undelivered.spoiled:
            return
        entry = self.writer.finish(self.length)
        self.cache.keep(self.point, self.lease.split, entry, self.length, time.monotonic() - self.began)


@dataclass(frozen=True)
class RecordedLeases:
    """Leases whose ends are noted by those that are recorded, too."""

    leases: Leases
    recording: Recording

    def take(self, branch: int = 0) -> Lease | None:
        """Return the next lease."""
        return self.leases.take(branch)

    def ended(self, lease: Lease, elements: int) -> None:
        """Tell how many elements a split holds."""
        self.recording.length = elements
        self.leases.ended(lease, elements)


class CachedBranch:
    """The elements of one source behind a point: from entries where there are some, else computed, and kept."""

    def __init__(
        self,
        cache: SplitCache,
        point: Autocache,
        leases: Leases,
        undelivered: UndeliveredPositions,
        *,
        take: Callable[[], Lease | None],
        read: Callable[[Lease, Leases], Iterator[Item | None]],
        compute: Callable[[Iterator[Item | None]], Iterator[Item | None]],
    ) -> None:
        """`read`: gives what a lease asks for of the source; `compute`: what becomes of it before the point."""
        self._cache, self._point, self._leases, self._undelivered = cache, point, leases, undelivered
        self._take, self._read, self._compute = take, read, compute
        self._found: tuple[Lease, EntryReader] | None = None
        """A lease with an entry, behind those that are computed at the moment."""
        self._recordings: list[Recording] = []
        """Of the leases that are computed at the moment, the earliest first."""
        self._over = False

    def items(self) -> Iterator[Item | None]:
        """Yield the items, in the order of the leases."""
        while not self._over:
            for item in self._compute(self._missing()):
                if item is not None:
                    self._record(item)
                yield item
            while self._recordings:
                self._recordings.pop(0).publish(self._undelivered)
            if self._found is not None:
                lease, entry = self._found
                self._found = None
                yield from self._kept(lease, entry)

    def _missing(self) -> Iterator[Item | None]:
        """Yield what must be computed, up to the first lease that need not be."""
        while True:
            lease = self._take()
            if lease is None:
                self._over = True
                return
            entry = self._cache.find(self._point, lease.split)
            if entry is not None:
                self._found = lease, entry
                return
            writer = EntryWriter() if covers(lease) else None
            recording = Recording(self._cache, self._point, lease, writer, time.monotonic(), lease.split.elements)
            self._recordings.append(recording)
            yield from self._read(lease, RecordedLeases(self._leases, recording))

    def _record(self, item: Item) -> None:
        """Record an item; those of a lease come one after the other, so what was before it is whole."""
        while self._recordings and self._recordings[0].lease is not item.lease:
            self._recordings.pop(0).publish(self._undelivered)
        if self._recordings:
            self._recordings[0].add(item)

    def _kept(self, lease: Lease, entry: EntryReader) -> Iterator[Item | None]:
        """Yield the elements of an entry that a lease asks for; the positions between them yield nothing."""
        key, at = lease.key, 0
        spans = [(start, min(stop, entry.length << OUTPUT_BITS)) for start, stop in lease.spans]
        for kept in entry:
            begin = (kept.element << OUTPUT_BITS) + kept.output
            self._undelivered.add(_clipped(key, spans, at, begin))
            at = begin + kept.width
            parts = _clipped(key, spans, begin, at)
            if parts:
                yield Item(kept.value, parts, lease, kept.element, kept.output, kept.width)
            if self._undelivered.due:
                yield None
        self._undelivered.add(_clipped(key, spans, at, entry.length << OUTPUT_BITS))
        self._undelivered.note_length(lease.branch, entry.length)
        self._leases.ended(lease, entry.length)
        if self._undelivered.due:
            yield None


def _clipped(key: tuple[int, int, int], spans: list[tuple[int, int]], begin: int, end: int) -> list[Part]:
    """Return the positions of an interval that are asked for."""
    return [(key, max(a, begin), min(b, end)) for a, b in spans if a < end and b > begin and begin < end]
