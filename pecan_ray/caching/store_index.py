"""The index of a folder of entries: which lie where, in SQLite."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pecan_ray.cache.eviction import StoredEntry
from pecan_ray.caching.segments import is_segment_name
from pecan_ray.errors import CacheError

FORMAT_VERSION = 3
"""3: checksums are of an entry under its key; what holds older ones goes at once."""
BUSY_S = 30.0
"""How long to wait for another process that writes into the index.  A write takes milliseconds, and many processes may
stand in line."""
TABLES = """
CREATE TABLE segments (name TEXT PRIMARY KEY, nbytes INTEGER NOT NULL, last_used INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (
    key TEXT PRIMARY KEY, kind TEXT NOT NULL, segment TEXT NOT NULL, start INTEGER NOT NULL, nbytes INTEGER NOT NULL,
    elements INTEGER NOT NULL, seconds REAL NOT NULL, checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX entries_by_segment ON entries (segment);
CREATE INDEX entries_by_kind ON entries (kind);
CREATE TABLE notes (key TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
"""
MOST_SECONDS = 1e12
"""More no segment took: it is 30,000 years, and a number that arithmetic bears."""
_SEGMENT = "s.name, MAX(0, CAST(s.nbytes AS INTEGER))"
"""A number, whatever stands there."""


@dataclass(frozen=True)
class EntryRow:
    """Where an index says that an entry lies, if that is possible at all."""

    segment: str
    start: int
    nbytes: int
    checksum: int

    @classmethod
    def of(cls, row: tuple[object, ...]) -> EntryRow | None:
        """Return what a row says; None for one that lies: SQLite keeps anything in any column."""
        segment, start, nbytes, checksum = row
        if not isinstance(segment, str) or not is_segment_name(segment):
            return None
        if not (isinstance(start, int) and isinstance(nbytes, int) and isinstance(checksum, int)):
            return None
        return cls(segment, start, nbytes, checksum) if min(start, nbytes) >= 0 else None


def opened_index(path: Path) -> sqlite3.Connection:
    """Open the index; raises CacheError for a newer version, makes anew an older one, and what is no database."""
    try:
        _make_missing(path)
        return _connected(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # locked, full, not allowed
            raise
        # What it said about the segments is lost: they are orphans now.
        path.rename(path.with_suffix(f".damaged-{secrets.token_hex(4)}"))
        # They belong to the file that was moved away, and SQLite could take them for the new one's.
        for rest in ("-wal", "-shm"):
            path.with_name(path.name + rest).unlink(missing_ok=True)
        _make_missing(path)
        return _connected(path)


def _make_missing(path: Path) -> None:
    """Put an empty index there, whole: of several processes that begin at once one is first.

    SQLite does not wait where two turn the same new file to WAL: one of them is told that it is locked.
    """
    if path.exists():
        return
    new = path.with_name(f"{path.name}.new-{secrets.token_hex(4)}")
    try:
        _connected(new).close()
        with suppress(OSError):  # another was first; or this file system has no links, and it is made in its place
            os.link(new, path)
    finally:
        new.unlink(missing_ok=True)


def _connected(path: Path) -> sqlite3.Connection:
    index = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False)
    # SQLite keeps any bytes as text, and a damaged index must not raise while it is read.
    index.text_factory = lambda text: text.decode(errors="replace")
    try:
        path.chmod(0o600)
        index.execute("PRAGMA journal_mode = WAL")
        # With WAL a power cut may cost the last lines and not the file: entries that are lost are computed again.
        index.execute("PRAGMA synchronous = NORMAL")
        with index:
            # For writing at once: two processes that open a new folder must not both make the tables.
            index.execute("BEGIN IMMEDIATE")
            (version,) = index.execute("PRAGMA user_version").fetchone()
            if version < FORMAT_VERSION:  # what an older one speaks of is not there any more: its segments are orphans
                for table in ("segments", "entries", "notes"):
                    index.execute(f"DROP TABLE IF EXISTS {table}")
                for statement in filter(str.strip, TABLES.split(";")):
                    index.execute(statement)
                index.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        if version > FORMAT_VERSION:
            raise CacheError(
                f"the cache index {path} has format {version}, and this pecan_ray reads {FORMAT_VERSION}: use another "
                "folder (Cache(path=...)), or remove this one.",
                path=str(path),
            )
    except BaseException:
        index.close()
        raise
    return index


def sizes_of_segments(index: sqlite3.Connection, kind: str | None = None) -> list[tuple[str, int]]:
    """Return the names and sizes of the segments; `kind`: of those whose entries are of it."""
    of_kind = "WHERE (SELECT e.kind FROM entries e WHERE e.segment = s.name LIMIT 1) = ?"
    rows = index.execute(
        f"SELECT {_SEGMENT} FROM segments s {'' if kind is None else of_kind}", () if kind is None else (kind,)
    )
    return [(name, size) for name, size in rows if is_segment_name(name)]


def stored_segments(index: sqlite3.Connection, in_use: Container[str]) -> dict[str, list[StoredEntry]]:
    """Return the segments, by the kind of their entries; this goes through all of these."""
    rows = index.execute(
        f"SELECT {_SEGMENT}, CAST(s.last_used AS INTEGER), MIN(MAX(TOTAL(e.seconds), 0), {MOST_SECONDS}), "
        "CAST(COALESCE(MIN(e.kind), '') AS TEXT) "
        "FROM segments s LEFT JOIN entries e ON e.segment = s.name GROUP BY s.name"
    )
    found: dict[str, list[StoredEntry]] = {}
    for name, size, used, seconds, kind in rows:
        if is_segment_name(name):
            found.setdefault(kind, []).append(StoredEntry(name, size, used, seconds, name in in_use))
    return found
