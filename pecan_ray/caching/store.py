"""Entries on disk: many in a file, an index beside them; published whole or not at all, checked when they are read.

A folder holds segments, files of about `segment_bytes` that only grow, and `index.sqlite`, which says where entries
lie in them.  Any number of processes may use a folder, on one machine: each writes into a segment of its own, an entry
exists once its line is in the index, and segments are what goes when there is no room: whoever has opened one reads
what it was promised, and no bytes are ever moved.

`pecan_ray.cache` decides what is kept, and touches no disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from pecan_ray.cache.checked import checked_count
from pecan_ray.cache.eviction import EvictionPolicy, entries_over_quota, should_store
from pecan_ray.caching.checked_segments import CheckedSegments
from pecan_ray.caching.segments import (
    EntryChecksum,
    SegmentWriter,
    is_segment_name,
    new_segment_name,
    open_segment,
    read_entry,
)
from pecan_ray.caching.store_index import EntryRow, opened_index, sizes_of_segments, stored_segments
from pecan_ray.errors import CacheError

# As large as the largest entry that is kept (`engines.caching.MOST_ENTRY_BYTES`).
SEGMENT_BYTES = 256 << 20
LEAST_SEGMENTS = 16
"""A store has room for so many segments at least, since a whole one goes at a time."""
USES_NOTED = 256
"""Reads are noted in the index so many at a time, and with every write: a note is a transaction, and dearer than a
read."""


@dataclass(frozen=True)
class KindSize:
    """What a store holds of one kind: of one pipeline's results at one point."""

    kind: str
    entries: int
    elements: int
    nbytes: int
    seconds: float
    """Seconds that computing them took."""


@dataclass(frozen=True)
class EntryPlace:
    """Where the bytes of an entry lie."""

    key: str
    path: Path
    start: int
    nbytes: int


class EntryStore:
    """The entries of a folder, by key; not safe for threads: one at a time.

    What is wrong with the disk never comes out of `put` and `get`: nothing is kept then, or found, and `last_error`
    says why.  Nor is what the index says believed: an entry is only what was put under its key.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        policy: EvictionPolicy = "benefit",
        segment_bytes: int = SEGMENT_BYTES,
        private: bool = False,
        by_kind: bool = False,
        checked: CheckedSegments | None = None,
    ) -> None:
        """Open a folder, or make it, for this user alone; raises CacheError where that cannot be.

        `private`: it lies where others may make folders, and one of theirs is refused.  `by_kind`: what a segment
        holds is of one kind, so that kinds can be bounded by `bound`.  `checked`: what was checked is held there, and
        not checked again as long as its pages stay; None: everything is checked each time.
        """
        self.folder, self.policy = folder, policy
        """The policy may be changed at any time."""
        self._segments = str(folder / "segments")
        self.cache_limits: Mapping[str, int] | None = None
        """Bytes that some kinds may take at most, as `bound` was told last; None: nobody bounds them."""
        self._max_bytes = checked_count("EntryStore(max_bytes=...)", max_bytes)
        self._segment_bytes = max(1, min(segment_bytes, self._max_bytes // LEAST_SEGMENTS))
        self._by_kind = by_kind
        self._writing: dict[str, SegmentWriter] = {}
        """By kind, or one for all of them (kind "")."""
        self._used: set[str] = set()
        """Segments that were read from and are not noted yet."""
        self._reads = 0
        self._checked = CheckedSegments(0) if checked is None else checked
        self.last_error = ""
        """Why something could not be kept, or read, lately."""
        try:
            # Folders in /dev/shm and /tmp may be made by anybody, and what lies there is mapped and trusted.
            if private:
                folder.mkdir(mode=0o700, exist_ok=True)
                _check_private_folder(folder)
            (folder / "segments").mkdir(mode=0o700, parents=True, exist_ok=True)
            self._index = opened_index(folder / "index.sqlite")
        except (OSError, sqlite3.Error) as error:
            raise CacheError(f"the cache in {folder} cannot be opened: {error}.", path=str(folder)) from error
        self._remove_orphaned()

    def __enter__(self) -> EntryStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __contains__(self, key: str) -> bool:
        return self._found("SELECT 1 FROM entries WHERE key = ?", key) is not None

    # --- one entry -----------------------------------------------------------------------------------------

    def get(self, key: str, *, own: bool = True) -> bytes | memoryview | None:
        """Return an entry's bytes, or None; one whose bytes are not what was written is dropped.

        They lie where the system keeps them of the file, as long as anybody holds them; a page of them that is written
        into is the process's own from then on.  `own`: else they may only be read.
        """
        self.let_go()
        row = self._found("SELECT segment, start, nbytes, checksum FROM entries WHERE key = ?", key)
        # A segment that was evicted takes room as long as this process maps it, so a miss lets go of it.
        if row is None:
            self._checked.sweep()
            return None
        found = EntryRow.of(row)
        if found is None:
            self._drop(key, "the index lies about it")
            return None
        segment, start, nbytes, checksum = found.segment, found.start, found.nbytes, found.checksum
        # The key is in the checksum, so that an index that leads to another entry's bytes is found out.
        checksum = EntryChecksum.under(key, checksum)
        path = os.path.join(self._segments, segment)  # a `Path` takes as long as the look into the index
        try:
            data: bytes | memoryview | None = None if own else self._checked.entry(path, start, nbytes, checksum)
            whole = data is not None
            if data is None:
                data = read_entry(path, start, nbytes)
                if own:
                    whole = len(data) == nbytes and self._checked.whole(path, start, data, checksum)
                else:  # which cannot be held, as was told just now
                    data = memoryview(data).toreadonly()
                    whole = len(data) == nbytes and EntryChecksum.of(data) == checksum
        except FileNotFoundError:
            self._forget(segment)  # another process has removed it just before its last entry was published
            return None
        except OSError as error:
            self._drop(key, f"{segment} cannot be read: {error}")
            return None
        if not whole:
            self._drop(key, f"{segment} is damaged at byte {start}")
            return None
        self._note_use(segment)
        return data

    def put(
        self,
        key: str,
        kind: str,
        parts: Sequence[bytes | memoryview],
        *,
        elements: int,
        seconds: float,
        anew: bool = False,
    ) -> bool:
        """Keep an entry, whose bytes are those of `parts` in a row; tell whether it is there now.

        `kind` stands for the pipeline and the point in it, `seconds` is what computing the entry took.  `anew`: in
        place of one that is there, whose room is free once its segment goes.
        """
        # Not `len`: a view of numbers counts items.
        nbytes = sum(memoryview(part).nbytes for part in parts)
        if nbytes > self._max_bytes:
            self.last_error = f"an entry of {nbytes} bytes does not fit into a cache of {self._max_bytes}"
            return False
        if nbytes > self._room(kind):
            return False
        try:
            # Asked again although a worker has just missed it: another process may have published it since.
            if key in self and not anew:
                return True
            if self.policy == "resident" and not self._should_store(kind, nbytes):
                return False
            writing = self._segment_for(kind, nbytes)
            # Bytes first, then the index: a process that is killed in between leaves no entry without bytes.
            start, checksum = writing.append(parts)
            with self._index:
                self._index.execute(
                    f"INSERT OR {'REPLACE' if anew else 'IGNORE'} INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (key, kind, writing.name, start, nbytes, elements, seconds, EntryChecksum.under(key, checksum)),
                )
                self._index.execute(
                    "INSERT INTO segments VALUES (?, ?, 0) ON CONFLICT (name) DO UPDATE SET nbytes = excluded.nbytes",
                    (writing.name, writing.end),
                )
                self._write_uses({*self._used, writing.name})
                gone = self._evict(kind)
        except (OSError, sqlite3.Error) as error:
            self.last_error = f"an entry of {nbytes} bytes could not be written: {error}"
            return False
        # Behind the transaction: if that fails, the files that the index names are still there.
        self._unlink(gone)
        # What has gone may be the new entry itself.
        return key in self

    def bound(self, cache_limits: Mapping[str, int] | None) -> None:
        """Bound what kinds may take from now on; what is too much goes."""
        if cache_limits == self.cache_limits:
            return
        self.cache_limits = cache_limits
        self._stop_writing()  # what it was writing of a kind may be what goes
        try:
            with self._index:
                gone = self._evict(None)
        except sqlite3.Error as error:
            self.last_error = f"the index in {self.folder} cannot be written: {error}"
            return
        self._unlink(gone)

    def about(self, key: str) -> tuple[str, int, float] | None:
        """Return the kind of an entry, its elements, and the seconds that computing it took; None: it is not there."""
        found = self._found("SELECT kind, elements, seconds, 0 FROM entries WHERE key = ?", key)
        if found is None or not isinstance(found[1], int) or not isinstance(found[2], float):
            return None
        return str(found[0]), found[1], found[2]

    def drop(self, key: str) -> None:
        """Take an entry out of the index, if it is there."""
        with contextlib.suppress(sqlite3.Error), self._index:  # an index that cannot be written cannot be read either
            self._index.execute("DELETE FROM entries WHERE key = ?", (key,))

    def let_go(self, key: str | None = None) -> None:
        """Hold an entry no longer, as it will be read from somewhere else; and, now and then, what has gone."""
        if self._checked.due():
            self._checked.sweep(self._starts_in)
        row = None if key is None else self._found("SELECT segment, start, 0, 0 FROM entries WHERE key = ?", key)
        found = None if row is None else EntryRow.of(row)
        if found is not None:
            self._checked.forget(os.path.join(self._segments, found.segment), found.start)

    # --- beside the entries ---------------------------------------------------------------------------------

    def note(self, key: str, text: str) -> None:
        """Write something down for whoever uses the folder later, in place of what was noted by this key before."""
        try:
            with self._index:
                self._index.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (key, text))
        except sqlite3.Error as error:
            self.last_error = f"a note could not be written: {error}"

    def read_note(self, key: str) -> str | None:
        """Return what was written down by a key; None where nothing was."""
        try:
            row = self._index.execute("SELECT text FROM notes WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            self.last_error = f"the index in {self.folder} cannot be read: {error}"
            return None
        return None if row is None else str(row[0])

    def notes(self, prefix: str) -> dict[str, str]:
        """Return all that was noted by keys with a beginning, by what follows it."""
        try:
            rows = self._index.execute(
                "SELECT key, text FROM notes WHERE substr(key, 1, ?) = ?", (len(prefix), prefix)
            ).fetchall()
        except sqlite3.Error as error:
            self.last_error = f"the index in {self.folder} cannot be read: {error}"
            return {}
        return {key[len(prefix) :]: str(text) for key, text in rows}

    def forget_note(self, key: str) -> None:
        """Take a note out, if it is there."""
        with contextlib.suppress(sqlite3.Error), self._index:  # whoever reads it next tries again
            self._index.execute("DELETE FROM notes WHERE key = ?", (key,))

    # --- all of them ---------------------------------------------------------------------------------------

    def sizes(self) -> tuple[KindSize, ...]:
        """Return what there is of each kind, the largest first; raises CacheError where the index cannot be read."""
        with self._reporter():
            rows = self._index.execute(
                "SELECT CAST(kind AS TEXT), COUNT(*), CAST(TOTAL(elements) AS INTEGER), "
                "CAST(TOTAL(nbytes) AS INTEGER), TOTAL(seconds) FROM entries GROUP BY 1 ORDER BY 4 DESC, 1"
            ).fetchall()
        return tuple(KindSize(*row) for row in rows)

    def locations(self) -> tuple[EntryPlace, ...]:
        """Return where every entry lies, segment by segment; raises CacheError where the index cannot be read."""
        with self._reporter():
            rows = self._index.execute(
                "SELECT key, segment, start, nbytes, checksum FROM entries ORDER BY segment, start"
            ).fetchall()
        found = ((str(key), EntryRow.of(tuple(row))) for key, *row in rows)
        return tuple(EntryPlace(key, self._path(row.segment), row.start, row.nbytes) for key, row in found if row)

    @property
    def nbytes(self) -> int:
        """Bytes of all segments: what counts against `max_bytes`."""
        with self._reporter():
            return self._segment_bytes_of(None)

    def remove(self, kinds: Iterable[str] | None = None) -> int:
        """Drop the entries of some kinds, or all; return how many.  Segments go when nothing is left in them."""
        with self._reporter(), self._index:
            if kinds is None:
                count = self._index.execute("DELETE FROM entries").rowcount
            else:
                count = self._index.executemany("DELETE FROM entries WHERE kind = ?", [(k,) for k in kinds]).rowcount
            gone = self._empty_segments()
        self._unlink(gone)
        return max(0, count)

    def verify(self) -> tuple[int, tuple[str, ...]]:
        """Read every entry; return how many are whole, and the keys of those that were not, which are dropped."""
        with self._reporter():
            keys = [key for (key,) in self._index.execute("SELECT key FROM entries ORDER BY segment, start").fetchall()]
        for key in keys:
            if not isinstance(key, str):  # which nobody can ask for
                self.drop(key)
        damaged = tuple(str(key) for key in keys if not isinstance(key, str) or self.get(key) is None)
        return len(keys) - len(damaged), damaged

    def close(self) -> None:
        """Note what was used, and let go of all files."""
        with contextlib.suppress(sqlite3.Error), self._index:  # it only costs a hint for what goes first
            self._write_uses(self._used)
        self._stop_writing()
        self._checked.close()
        self._index.close()

    # --- inside --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reporter(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise CacheError(f"the cache index in {self.folder}: {error}.", path=str(self.folder)) from error

    def _found(self, query: str, key: str) -> tuple[object, ...] | None:
        try:
            row: tuple[object, ...] | None = self._index.execute(query, (key,)).fetchone()
        except sqlite3.Error as error:
            self.last_error = f"the index in {self.folder} cannot be read: {error}"
            return None
        return row

    def _starts_in(self, path: str) -> set[int]:
        """Return where the entries of a segment begin."""
        try:
            rows = self._index.execute("SELECT start FROM entries WHERE segment = ?", (os.path.basename(path),))
            return {start for (start,) in rows}
        except sqlite3.Error as error:
            self.last_error = f"the index in {self.folder} cannot be read: {error}"
            return set()

    def _drop(self, key: str, why: str) -> None:
        self.last_error = f"the entry {key} was dropped: {why}"
        self.drop(key)  # or else the next one to read it does

    def _forget(self, segment: str) -> None:
        with contextlib.suppress(sqlite3.Error), self._index:  # then the next one to miss it does so
            self._index.execute("DELETE FROM entries WHERE segment = ?", (segment,))
            self._index.execute("DELETE FROM segments WHERE name = ?", (segment,))

    def _note_use(self, segment: str) -> None:
        self._used.add(segment)
        self._reads += 1
        if self._reads >= USES_NOTED:
            self._reads = 0
            with contextlib.suppress(sqlite3.Error), self._index:  # it only costs a hint for what goes first
                self._write_uses(self._used)

    def _write_uses(self, segments: Iterable[str]) -> None:
        """Note that segments were used now: by a counter, since clocks jump; by "fifo" only writing counts."""
        mine = {writing.name for writing in self._writing.values()}
        used = [(name,) for name in segments if self.policy != "fifo" or name in mine]
        for name in segments if self.policy in ("resident", "fifo") else ():
            with contextlib.suppress(OSError):  # it is gone, or was never ours
                # The index has a counter and no clock, and `_should_store` asks for how long a segment was
                # unused.
                os.utime(self._path(name))
        self._index.executemany(
            "UPDATE segments SET last_used = (SELECT MAX(last_used) + 1 FROM segments) WHERE name = ?", used
        )
        self._used.clear()

    def _stop_writing(self) -> None:
        for writing in self._writing.values():
            writing.close()
        self._writing.clear()

    def _room(self, kind: str) -> int:
        """Return the bytes that a kind may take."""
        return (
            self._max_bytes
            if self.cache_limits is None
            else min(self._max_bytes, self.cache_limits.get(kind, self._max_bytes))
        )

    def _segment_for(self, kind: str, nbytes: int) -> SegmentWriter:
        """Return the segment that this process writes into, a new one where the entry no longer fits well."""
        of = kind if self._by_kind else ""
        most = max(nbytes, min(self._segment_bytes, self._room(kind) // LEAST_SEGMENTS))
        writing = self._writing.get(of)
        # Another process may have evicted it while this one was writing into it.
        if writing is not None and not writing.is_removed() and writing.end + nbytes <= most:
            return writing
        if writing is not None:
            self._writing.pop(of).close()
        while of not in self._writing:
            made = SegmentWriter(self.folder / "segments", new_segment_name())
            if made.held and not made.is_removed():  # else another process has just taken it for left over
                self._writing[of] = made
            else:
                made.close()
        return self._writing[of]

    def _should_store(self, kind: str, nbytes: int) -> bool:
        """Tell whether there is room, or something may go."""
        rows = sizes_of_segments(
            self._index, kind if self.cache_limits is not None and kind in self.cache_limits else None
        )
        if sum(size for _, size in rows) + nbytes <= self._room(kind):
            return True
        os.utime(self.folder / "segments")  # so the clock of the disk tells, which has stamped the others
        now = (self.folder / "segments").stat().st_mtime
        paths = [self._path(name) for name, _ in rows]
        used = [path.stat().st_mtime for path in paths if path.exists()]
        return should_store(now - min(used, default=0.0), nbytes / self._segment_bytes, random.random())

    def _has_space_for_all(self, kind: str | None) -> bool:
        """Tell whether everything fits, as far as the sizes of segments tell; `kind`: that which has grown."""
        if self._segment_bytes_of(None) > self._max_bytes:
            return False
        if self.cache_limits is None or (kind is not None and kind not in self.cache_limits):
            return True
        return kind is not None and self._segment_bytes_of(kind) <= self._room(kind)

    def _segment_bytes_of(self, kind: str | None) -> int:
        return sum(size for _, size in sizes_of_segments(self._index, kind))

    def _evict(self, kind: str | None) -> list[str]:
        """Take the entries of the segments that are worth least out of the index until the rest fits.

        `kind`: that which has grown; None: any may be too large.
        """
        if self._has_space_for_all(kind):
            return []  # what follows goes through all entries
        writing = {one.name for one in self._writing.values()}
        stored = stored_segments(self._index, writing)
        # Decision 40: segments go as a whole, because a reader of a hole in one would get zeros.
        names = [(name,) for name in entries_over_quota(stored, self._max_bytes, self.cache_limits or {}, self.policy)]
        self._index.executemany("DELETE FROM entries WHERE segment = ?", names)
        self._index.executemany("DELETE FROM segments WHERE name = ?", names)
        return [name for (name,) in names]

    def _empty_segments(self) -> list[str]:
        names = "SELECT name FROM segments WHERE name NOT IN (SELECT segment FROM entries)"
        gone = [name for (name,) in self._index.execute(names).fetchall()]
        self._index.executemany("DELETE FROM segments WHERE name = ?", [(name,) for name in gone])
        return gone

    def _unlink(self, segments: Iterable[str]) -> None:
        for name in filter(is_segment_name, segments):
            with contextlib.suppress(OSError):  # another process was quicker, or it is no file
                self._path(name).unlink()
        self._checked.sweep()

    def _remove_orphaned(self) -> None:
        """Remove segments of writers that are gone and have published nothing."""
        for path in (self.folder / "segments").glob("*.segment"):
            with contextlib.suppress(OSError), _lock_segment(path):  # its writer lives, or it is gone already
                # Asked now: its writer may have published, and ended, since the folder was listed.
                if self._index.execute("SELECT 1 FROM segments WHERE name = ?", (path.name,)).fetchone() is None:
                    path.unlink()

    def _path(self, segment: str) -> Path:
        return self.folder / "segments" / segment


def _check_private_folder(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is no folder that this user alone may use")


@contextlib.contextmanager
def _lock_segment(path: Path) -> Iterator[None]:
    """Keep a segment from being taken up; raises OSError where a writer lives that appends to it."""
    fd = open_segment(path)
    try:
        # Shared: several processes may look at once; a writer's lock is exclusive.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
