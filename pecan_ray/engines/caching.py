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
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pecan_ray import storage
from pecan_ray.cache_options import Cache
from pecan_ray.caching.tiers import TieredStore
from pecan_ray.engines.contract import BadElement, Leases, SharedLeases
from pecan_ray.engines.entry_format import EntryReader, EntryWriter
from pecan_ray.engines.entry_objects import EntryObjects
from pecan_ray.engines.items import Item
from pecan_ray.engines.kept_rows import Intervals, KeptRows, clip_range
from pecan_ray.engines.plain import NotPlainError
from pecan_ray.engines.positions import SkippedPositions
from pecan_ray.engines.remote_tier import RemoteTier
from pecan_ray.errors import CacheError
from pecan_ray.plan.fingerprint import canonical_text
from pecan_ray.plan.operators import Autocache
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, LeaseKey, Split

logger = logging.getLogger("pecan_ray.cache")

# Both bounds: docs/decisions/autocache.md#40-entries-of-splits-in-segments, and for splits read in turns
# docs/decisions/randomness-and-passes.md#148-a-shuffle-reads-several-splits.
MOST_ENTRY_BYTES = 256 << 20
"""What a larger split gives is not kept: it would have to be held in memory until it is whole."""
MAX_RECORDED_BYTES = 1 << 30
"""Of all splits that a worker records at a time."""

KEYS_KNOWN = 256
"""Splits of which the key is known.  Chosen: a worker asks for the key of a split it was handed a few times, and then
no more."""


class SplitCache:
    """The entries of one engine, in a folder; threads may use it side by side."""

    def __init__(self, cache: Cache) -> None:
        self._lock = threading.Lock()
        """Guards the store and the names."""
        self._log_lock = threading.Lock()
        """Guards what was said; taken last."""
        self._logged: set[str] = set()
        self._keys: OrderedDict[tuple[str, int], tuple[Split, str]] = OrderedDict()
        """Names by point and split, of those that were asked for last: a split is spelled out once on its way."""
        self._store: TieredStore | None = None
        try:
            self._store = TieredStore(
                cache.folder,
                max_bytes=cache.max_bytes,
                memory=cache.memory_folder,
                memory_bytes=cache.memory_bytes,
                clock=time.monotonic,
            )
            self._say(self._store.last_error)
        except CacheError as error:
            self._say(f"nothing is kept: {error.message}")
        url = cache.remote_url
        self._remote = RemoteTier(EntryObjects(url), self._say) if url is not None and self._store else None

    def holds(self, point: Autocache, split: Split) -> bool:
        """Tell whether there is an entry of a split at a point."""
        with self._lock:
            if self._store is None:
                return False
            key = self._key(point, split)
            here = key in self._store
        remote = self._remote_of(point)
        return here or (remote is not None and remote.holds(point.key, key))

    def find(self, point: Autocache, split: Split, *, own: bool = True) -> EntryReader | None:
        """Return the entry of a split at a point; None where there is none, or none that can be read.

        `own`: its arrays may be written into where they lie.
        """
        with self._lock:
            if self._store is None:
                return None
            key = self._key(point, split)
            self._store.last_error = ""
            data = self._store.get(key, own=own)
            self._say(self._store.last_error)
        # Outside of the lock: a bucket may take seconds to answer, and other threads find their entries meanwhile.
        remote = self._remote_of(point)
        if remote is not None and data is None:
            data = self._fetched(remote, point, key)
        elif remote is not None and remote.is_missing(point.key, key):
            # Decision 49: what an outage or a full queue has lost needs no bookkeeping, because the next read sends it.
            self._send(remote, point, key)
        if data is None:
            return None
        try:
            return EntryReader(data)
        except ValueError as error:
            self._say(f"an entry cannot be read: {error} ({key})")
            return None

    def keep(
        self,
        point: Autocache,
        split: Split,
        entry: Sequence[memoryview],
        elements: int,
        seconds: float,
        *,
        anew: bool = False,
    ) -> None:
        """Keep an entry, as far as there is room; `anew`: in place of one that is there."""
        with self._lock:
            if self._store is None:
                return
            self._store.last_error = ""
            key = self._key(point, split)
            self._store.put(key, point.key, entry, elements=elements, seconds=seconds, anew=anew)
            self._say(self._store.last_error)
        remote = self._remote_of(point)
        if remote is not None:
            remote.put(point.key, key, entry, elements=elements, seconds=seconds, anew=anew)

    def cannot_keep(self, point: Autocache, why: str) -> None:
        """Say, once, why what a point gives is not kept."""
        self._say(f"{point.name}: {why}, so it is not kept, and computed in each epoch")

    def flush(self) -> None:
        """Wait until the remote store has what was kept, for a few seconds at most; hold nothing that was removed."""
        with self._lock:
            if self._store is not None:
                # Decision 83: a worker that reads no more would keep the room of what was removed.
                self._store.let_go()
        if self._remote is not None:
            self._remote.flush()

    def close(self) -> None:
        """Let go of the folder, once the remote store has what was kept: that is waited for a few seconds at most."""
        if self._remote is not None:
            self._remote.close()
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None

    def _remote_of(self, point: Autocache) -> RemoteTier | None:
        return self._remote if point.remote else None

    def _fetched(self, remote: RemoteTier, point: Autocache, key: str) -> bytes | memoryview | None:
        """Return an entry from the remote store, which is kept here from now on."""
        found = remote.get(point.key, key)
        if found is None:
            return None
        facts = found.info
        with self._lock:
            if self._store is not None:
                self._store.last_error = ""
                self._store.take_up(key, point.key, found.data, elements=facts.elements, seconds=facts.seconds)
                self._say(self._store.last_error)
        return found.data

    def _send(self, remote: RemoteTier, point: Autocache, key: str) -> None:
        """Let the remote store have what lies here, and not there: it was away, or is new."""
        with self._lock:
            about = self._store.disk.about(key) if self._store is not None else None
            # Not what was handed out, which functions may write into before it is sent.
            data = self._store.get(key, own=False) if self._store is not None else None
        if about is not None and data is not None:
            remote.put(point.key, key, [data], elements=about[1], seconds=about[2])

    def _key(self, point: Autocache, split: Split) -> str:
        asked = point.key, id(split)
        known = self._keys.get(asked)
        if known is None:
            known = self._keys[asked] = split, entry_key(point, split)  # which holds it: its id stays its own
            if len(self._keys) > KEYS_KNOWN:
                self._keys.popitem(last=False)
        return known[1]

    def _say(self, text: str) -> None:
        # The same trouble with another entry is the same trouble.
        kind = text.partition(":")[0] if text else ""
        with self._log_lock:
            new = bool(text) and kind not in self._logged
            self._logged.add(kind)
        if new:
            logger.warning("autocache: %s", text)


def entry_key(point: Autocache, split: Split) -> str:
    """Return the name of what a point gives of a split: other data, or another version of it, has another one."""
    # Time and size, which are a local file's version, may be set back by whoever writes into it.
    paths = (split.path, *split.files)
    files = [storage.file_on_disk(path) for path in paths if path and not storage.is_remote(path)]
    # Decision 109: inode and ctime are in the name, because no program can set a ctime back.
    # `surrogatepass` below: Python spells bytes of a path that are no UTF-8 as surrogates.
    text = f"{point.key}\0{canonical_text(vars(split))}\0{files}"
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=20).hexdigest()


def is_computed_twice(point: Autocache, lease: Lease) -> bool:
    """Tell whether a split is computed again in an epoch, whatever is kept of it: the share that its point says."""
    if lease.epoch == 0 or not point.refresh:
        return False
    # By a hash and no generator: `_entry` and `_computed` ask one after the other, and any worker may ask.
    text = f"{point.key} {lease.epoch} {lease.pass_index} {lease.split.index}"
    drawn = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    return drawn < point.refresh * 2**64


def contains_all(lease: Lease) -> bool:
    """Tell whether a lease asks for all of its split."""
    # An entry has no gaps (decision 40), so a lease of a part of a split is never recorded.
    if len(lease.spans) != 1 or lease.spans[0][0] != 0:
        return False
    stop, elements = lease.spans[0][1], lease.split.elements
    return stop == END or (elements is not None and stop >= elements << OUTPUT_BITS)


class RecordedBytes:
    """How much the recordings of a worker hold."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards the sum."""
        self._sum = 0

    def add(self, nbytes: int) -> int:
        """Add to the sum, and return it."""
        with self._lock:
            self._sum += nbytes
            return self._sum


class SplitRecording:
    """What a split gives at a point, while threads go through it; it is kept once all have done so."""

    def __init__(
        self,
        cache: SplitCache,
        point: Autocache,
        lease: Lease,
        skipped_positions: SkippedPositions,
        *,
        in_all: RecordedBytes,
        anew: bool = False,
    ) -> None:
        """`in_all`: what this worker's recordings hold."""
        self._cache, self._point, self._lease, self._skipped_positions = cache, point, lease, skipped_positions
        self._in_all, self._row_count = in_all, 0
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._writer: EntryWriter | None = EntryWriter()
        self._started, self._restart = time.monotonic(), anew
        self._elements_read = self._done = 0
        """Elements that were read, and those of them that have come to the point, or were dropped before."""
        self._length = lease.split.elements
        self._read = False

    def note_read(self) -> None:
        """Note that an element was read."""
        with self._lock:
            self._elements_read += 1

    def length(self, elements: int) -> None:
        """Note how many elements the split holds."""
        with self._lock:
            self._length = elements

    def read(self) -> bool:
        """Note that the split was read to its end; tell whether all of it has come to the point."""
        with self._lock:
            self._read = True
            # `read` and `add` both look under the lock, so exactly one call sees that all is there.
            # It publishes outside of the lock, because writing takes a disk's time.
            last = self._done == self._elements_read
        if last:
            self._publish()
        return last

    def add(self, made: Sequence[Item]) -> bool:
        """Add what has become of an element; tell whether it was the last one."""
        with self._lock:
            self._write(made)
            self._done += 1
            last = self._read and self._done == self._elements_read
        if last:
            self._publish()
        return last

    def _write(self, made: Sequence[Item]) -> None:
        if self._writer is None:
            return
        try:
            for one in made:
                self._writer.add(one.element, one.output, one.width, one.value)
        except NotPlainError as error:
            self._cancel(str(error))
            return
        recorded = self._count(self._writer.nbytes)
        if self._writer.nbytes > MOST_ENTRY_BYTES:
            self._cancel(f"a split gives more than {MOST_ENTRY_BYTES >> 20} MiB here")
        elif recorded > MAX_RECORDED_BYTES:
            self._cancel(f"splits that are read at a time give more than {MAX_RECORDED_BYTES >> 20} MiB here")

    def _count(self, nbytes: int) -> int:
        """Count so many bytes for this recording; return what all recordings hold."""
        more, self._row_count = nbytes - self._row_count, nbytes
        return self._in_all.add(more)

    def _cancel(self, why: str) -> None:
        self.drop()
        self._cache.cannot_keep(self._point, why)

    def drop(self) -> None:
        """Forget what was recorded."""
        self._writer = None
        self._count(0)

    def _publish(self) -> None:
        """Keep the entry, now that all elements are there, if none was bad."""
        writer = self._writer
        # A bad element would look like a filtered one in an entry, and no later epoch would tell of it.
        if (
            writer is not None
            and self._length is not None
            and self._lease.key not in self._skipped_positions.with_errors
        ):
            seconds = max(0.0, time.monotonic() - self._started)  # some virtual machines' clocks jump
            entry = writer.finish(self._length)
            self._cache.keep(self._point, self._lease.split, entry, self._length, seconds, anew=self._restart)
        self.drop()


@dataclass(frozen=True)
class RecordedLeases:
    """Leases whose ends are noted by a recording, too."""

    leases: Leases
    recording: SplitRecording

    def take(self, branch: int = 0) -> Lease | None:
        """Return the next lease."""
        return self.leases.take(branch)

    def ended(self, lease: Lease, elements: int) -> None:
        """Tell how many elements a split holds."""
        self.recording.length(elements)
        self.leases.ended(lease, elements)

    def elsewhere(self, lease: Lease, bad: BadElement) -> bool:
        """Leave a lease to other workers, if there are any."""
        return isinstance(self.leases, SharedLeases) and self.leases.elsewhere(lease, bad)


class CachedReading:
    """Reads the leases of one source: what is kept of them comes as it was kept, all else is recorded on its way."""

    def __init__(
        self,
        cache: SplitCache,
        point: Autocache,
        leases: Leases,
        skipped_positions: SkippedPositions,
        read: Callable[[Lease, Leases], Iterator[Item | None]],
    ) -> None:
        """`read`: gives what a lease asks for of the source."""
        self._cache, self._point, self._leases, self._skipped_positions = cache, point, leases, skipped_positions
        self._read_source = read
        self._lock = threading.Lock()
        """Guards the recordings, of leases that are not done."""
        self._recording_by_lease: dict[LeaseKey, SplitRecording] = {}
        self._in_all = RecordedBytes()

    def items(self, lease: Lease) -> Iterator[Item | None]:
        """Yield the items of a lease: marked as kept, or as the source gives them."""
        entry = self._entry(lease, own=False)  # which are copied
        yield from self._computed(lease) if entry is None else self._kept(lease, entry)

    def items_at_once(self, lease: Lease) -> Iterator[Item | None]:
        """Yield the items of a lease for who holds none of them for long."""
        entry = self._entry(lease, own=True)
        yield from self._computed(lease) if entry is None else self._kept(lease, entry, apart=False)

    def items_or_rows(self, lease: Lease) -> Iterator[Item | KeptRows | None]:
        """Yield the items of a lease, or runs of them as columns where they are kept so that this can be."""
        entry = self._entry(lease, own=False)
        intervals = None if entry is None else Intervals.of(entry)
        columns = entry.columns() if entry is not None and intervals is not None and intervals.whole else None
        if entry is None or intervals is None or columns is None:
            yield from self._computed(lease) if entry is None else self._kept(lease, entry)
            return
        # Decision 55: rows go into batches as arrays, with no object and no call for each element.
        spans, stop = _ending(lease, entry), entry.length << OUTPUT_BITS
        if spans_between := intervals.spans_between(lease.key, spans, stop):
            self._skipped_positions.add(spans_between)
        for first, last in intervals.requested_rows(spans):
            yield KeptRows(lease, columns, intervals, spans, first, last)
        yield from self._ended(lease, entry)

    def _entry(self, lease: Lease, *, own: bool) -> EntryReader | None:
        # A part of a split cannot be recorded anew, so it comes from the entry even if the split is renewed.
        if is_computed_twice(self._point, lease) and contains_all(lease):
            return None
        return self._cache.find(self._point, lease.split, own=own)

    def _computed(self, lease: Lease) -> Iterator[Item | None]:
        """Yield the elements of a lease as the source gives them, which are recorded on their way if they are all."""
        if not contains_all(lease):
            yield from self._read_source(lease, self._leases)
            return
        anew = is_computed_twice(self._point, lease)
        about = (self._cache, self._point, lease, self._skipped_positions)
        recording = SplitRecording(*about, in_all=self._in_all, anew=anew)
        with self._lock:
            before = self._recording_by_lease.get(lease.key)  # of a split that comes again
            self._recording_by_lease[lease.key] = recording
        # Its recording would never be whole, and its bytes would count against the others for good.
        if before is not None:
            before.drop()
        try:
            for item in self._read_source(lease, RecordedLeases(self._leases, recording)):
                if item is not None:
                    recording.note_read()
                yield item
        except GeneratorExit:  # a pass has ended within the split, which is never whole then
            recording.drop()
            self._drop(lease.key)
            raise
        if recording.read():
            self._drop(lease.key)

    def record(self, item: Item, made: Sequence[Item]) -> None:
        """Note what has become of an item at the point."""
        with self._lock:
            recording = self._recording_by_lease.get(item.lease.key)
        if recording is not None and recording.add(made):
            self._drop(item.lease.key)

    def _drop(self, key: LeaseKey) -> None:
        with self._lock:
            self._recording_by_lease.pop(key, None)

    def _kept(self, lease: Lease, entry: EntryReader, *, apart: bool = True) -> Iterator[Item | None]:
        """Yield the elements of an entry that a lease asks for; the positions between them yield nothing."""
        key, at, skipped_positions, spans = lease.key, 0, self._skipped_positions, _ending(lease, entry)
        # With one span, comparing its ends spares each element a call of `clip_range`.
        start, stop = spans[0] if len(spans) == 1 else (0, 0)
        for element, output, width, value in entry.elements(apart=apart):
            begin = (element << OUTPUT_BITS) + output
            if begin > at and (gap := clip_range(key, spans, at, begin)):
                skipped_positions.add(gap)
            at = begin + width
            parts = [(key, begin, at)] if start <= begin and at <= stop else clip_range(key, spans, begin, at)
            if parts:
                yield Item(value, parts, lease, element, output, width, kept=True)
            if skipped_positions.due:
                # None lets the caller report positions: where all elements were filtered, no batch would carry them.
                yield None
        if gap := clip_range(key, spans, at, entry.length << OUTPUT_BITS):
            skipped_positions.add(gap)
        yield from self._ended(lease, entry)

    def _ended(self, lease: Lease, entry: EntryReader) -> Iterator[None]:
        self._skipped_positions.note_length(lease.branch, entry.length)
        self._leases.ended(lease, entry.length)
        if self._skipped_positions.due:
            yield None


def _ending(lease: Lease, entry: EntryReader) -> tuple[tuple[int, int], ...]:
    """Return the positions that a lease asks for, as far as the split goes."""
    return tuple((start, min(stop, entry.length << OUTPUT_BITS)) for start, stop in lease.spans)
