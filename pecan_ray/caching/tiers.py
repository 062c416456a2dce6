"""Entries in tiers: what is read again from a disk is kept in memory, too, as far as there is room for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pecan_ray.caching.checked_segments import CheckedSegments
from pecan_ray.caching.store import EntryStore
from pecan_ray.errors import CacheError

HELD_BYTES = 1 << 30
"""Of entries of a tier that a process holds in maps, since it has checked them: the pages are the system's."""


class TieredStore:
    """A store on a disk, and one in memory above it; used as an `EntryStore` is, one thread at a time.

    An entry goes into memory when it is read from the disk.  What the memory has lost, the disk may still have.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        memory: Path | None = None,
        memory_bytes: int = 0,
        clock: Callable[[], float] = float,
    ) -> None:
        """Open both; raises CacheError where the disk's cannot be used, and goes on without the other one.

        `memory`: a folder in memory; None: there is no such tier.
        """
        held = CheckedSegments(min(HELD_BYTES, max_bytes), clock=clock)
        self.disk = EntryStore(folder, max_bytes=max_bytes, checked=held)
        self.memory: EntryStore | None = None
        self.last_error = ""
        """Why something could not be kept, or read, lately."""
        if memory is not None and memory_bytes:
            try:
                held = CheckedSegments(min(HELD_BYTES, memory_bytes), in_memory=True, clock=clock)
                self.memory = EntryStore(memory, max_bytes=memory_bytes, private=True, checked=held)
            # The tier in memory only spares time, so the job goes on without it.
            except CacheError as error:
                self.last_error = f"nothing is kept in memory: {error.message}"

    def __contains__(self, key: str) -> bool:
        return key in self.disk or (self.memory is not None and key in self.memory)

    def get(self, key: str, *, own: bool = True) -> bytes | memoryview | None:
        """Return an entry's bytes, or None; those that lay on the disk alone are kept in memory as well.

        `own`: they may be written into.
        """
        if self.memory is not None:
            with self._reporter(self.memory):
                found = self.memory.get(key, own=own)
            if found is not None:
                # Decision 83: who reads sweeps, and no read comes to the disk while the memory answers.
                self.disk.let_go()
                return found
        with self._reporter(self.disk):
            found = self.disk.get(key, own=own)
        if found is not None and self.memory is not None:
            about = self.disk.about(key)
            if about is not None:
                kind, elements, seconds = about
                if self._into_memory(key, kind, found, elements, seconds):
                    # Decision 83: what lies in memory needs no checked pages of the disk's copy.
                    self.disk.let_go(key)
        return found

    def let_go(self) -> None:
        """Let go of what was removed and is still mapped: now and then, whoever calls."""
        self.disk.let_go()
        if self.memory is not None:
            self.memory.let_go()

    def take_up(self, key: str, kind: str, data: bytes | memoryview, *, elements: int, seconds: float) -> None:
        """Keep an entry that was found somewhere else, and is being read: on the disk, and in memory."""
        with self._reporter(self.disk):
            self.disk.put(key, kind, [data], elements=elements, seconds=seconds)
        self._into_memory(key, kind, data, elements, seconds)

    def _into_memory(self, key: str, kind: str, data: bytes | memoryview, elements: int, seconds: float) -> bool:
        if self.memory is None:
            return False
        with self._reporter(self.memory):
            return self.memory.put(key, kind, [data], elements=elements, seconds=seconds)

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
        """Keep an entry on the disk; `anew`: in place of one that is there, in memory as well."""
        if anew and self.memory is not None and key in self.memory:
            with self._reporter(self.memory):
                if not self.memory.put(key, kind, parts, elements=elements, seconds=seconds, anew=True):
                    self.memory.drop(key)  # what is old must not be found there
        with self._reporter(self.disk):
            return self.disk.put(key, kind, parts, elements=elements, seconds=seconds, anew=anew)

    def close(self) -> None:
        """Let go of both."""
        self.disk.close()
        if self.memory is not None:
            self.memory.close()

    @contextlib.contextmanager
    def _reporter(self, store: EntryStore) -> Iterator[None]:
        store.last_error = ""
        yield
        if store.last_error:
            self.last_error = store.last_error
