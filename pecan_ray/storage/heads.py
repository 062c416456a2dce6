"""The beginnings of files that will be read soon, fetched early: small objects are read many at a time.

A small object costs its reader a round trip and hardly any transfer.  Whoever knows what is read next announces it;
a bounded number of beginnings, of a bounded number of bytes, is fetched before a reader asks.  What a reader has taken
stays as long as there is room, since some formats open a file twice.  All is kept under the version that was listed,
so that nothing old is ever given.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from pecan_ray.storage.ranges import FileRange
from pecan_ray.storage.retry import RequestCancelledError, unless_given_up

# docs/decisions/storage.md#27-outages-and-versions
HEAD_BYTES = 1 << 20
"""The longest beginning that is fetched early."""


class Head(NamedTuple):
    """The beginning of a file, of which somebody knows that it will be read."""

    path: str
    version: str
    nbytes: int
    """Bytes of the head, or of the whole file where it is shorter."""


@dataclass
class _Held:
    file_range: Future[FileRange] = field(default_factory=Future)
    nbytes: int = 0
    """Bytes that it takes, or may come to take."""
    taken: bool = False
    used: bool = False
    """Somebody has read it."""
    repeated: bool = False
    """It was announced once more after it was read: whoever takes it next need not read it."""
    waiting: int = 0
    """Readers that wait for it."""
    given_up: threading.Event = field(default_factory=threading.Event)
    """It is not tried again if the store fails: nobody is known to want it."""


class Heads:
    """Fetches and keeps beginnings of files, up to `most_bytes` of them, `most_at_once` at a time."""

    def __init__(
        self,
        fetch: Callable[[Head], FileRange],
        start: Callable[[Callable[[], None]], None],
        *,
        most_bytes: int,
        most_at_once: int,
    ) -> None:
        """`fetch` asks the store; `start` lets another thread make a call."""
        self._fetch, self._start = fetch, start
        self._most_bytes, self._most_at_once = most_bytes, most_at_once
        self._lock = threading.Lock()
        """Guards all below."""
        self._pending: OrderedDict[tuple[str, str], Head] = OrderedDict()
        """Announced and not begun."""
        self._held: OrderedDict[tuple[str, str], _Held] = OrderedDict()
        self._nbytes = self._under_way = 0
        self.found = 0
        """Bytes that were here from a reading before: of which nobody else knows that they were read again."""

    @property
    def nbytes(self) -> int:
        """Bytes that are held, or may come to be."""
        return self._nbytes

    def notify_of(self, heads: Iterable[Head]) -> None:
        """Let beginnings be fetched, in this order, as soon as there is room."""
        with self._lock:
            for head in heads:
                key = head.path, head.version
                if key not in self._held:
                    self._pending[key] = head._replace(nbytes=min(head.nbytes, HEAD_BYTES))
                else:
                    self._held[key].repeated = self._held[key].used
                    self._held[key].taken = False
                    self._held[key].given_up.clear()
            started = self._begin()
        self._start_all(started)

    def take(self, path: str, version: str) -> FileRange | None:
        """Return a file's beginning, waiting for it if it is on its way, or raise what asking for it has raised.

        None: it was not asked for, and will not be.
        """
        key = path, version
        with self._lock:
            # Not begun: its reader asks by itself, for as much as it wants.
            self._pending.pop(key, None)
            held = self._held.get(key)
            if held is None:
                return None
            held.waiting += 1
            held.given_up.clear()
        try:
            return held.file_range.result()
        except RequestCancelledError:  # it was given up just before this reader came
            return None
        finally:
            with self._lock:
                held.waiting -= 1
                # While this reader waited it may have made room for others, or have been replaced.
                if self._held.get(key) is held:
                    self.found += held.nbytes if held.repeated else 0
                    held.taken, held.used, held.repeated = True, True, False
                    # Room is made from the front, so what was used last stays longest.
                    self._held.move_to_end(key)
                    # An error is not kept: whoever opens the file again asks the store again.
                    if held.file_range.done() and held.file_range.exception() is not None:
                        self._drop(key)
                started = self._begin()
            self._start_all(started)

    def keep(self, path: str, version: str, piece: FileRange) -> None:
        """Keep the beginning of a file that a reader has asked for itself, if there is room."""
        with self._lock:
            if len(piece.data) <= HEAD_BYTES and self._make_room(len(piece.data)) and (path, version) not in self._held:
                held = _Held(nbytes=len(piece.data), taken=True, used=True)
                held.file_range.set_result(piece)
                self._held[path, version] = held
                self._nbytes += held.nbytes

    def forget(self) -> None:
        """Drop what was announced and not begun, and let what was fetched make room for others.

        What is on its way and fails is not tried again, unless a reader waits for it.
        """
        with self._lock:
            self._pending.clear()
            for held in self._held.values():
                held.taken = True
                if not held.waiting:
                    held.given_up.set()

    def _begin(self) -> list[Callable[[], None]]:
        """Return calls that fetch what there is room for; the caller holds the lock."""
        started: list[Callable[[], None]] = []
        while self._pending and self._under_way < self._most_at_once:
            key, head = next(iter(self._pending.items()))
            # The order is that of reading: a smaller one behind it must not take the room of what is wanted
            # first.
            if not self._make_room(head.nbytes):
                break
            del self._pending[key]
            held = self._held[key] = _Held(nbytes=head.nbytes)
            self._nbytes += head.nbytes
            self._under_way += 1
            started.append(self._run(head, held))
        return started

    def _make_room(self, nbytes: int) -> bool:
        """Drop what was taken, the oldest first, until so many bytes fit; return whether they do."""
        excess = self._nbytes + nbytes - self._most_bytes
        if excess <= 0:
            return True
        dropped: list[tuple[str, str]] = []
        for key, held in self._held.items():
            if held.taken and held.file_range.done():
                dropped.append(key)
                excess -= held.nbytes
                if excess <= 0:
                    break
        # All or nothing: what is dropped although this does not fit would be lost for nothing.
        if excess <= 0:
            for key in dropped:
                self._drop(key)
        return excess <= 0

    def _drop(self, key: tuple[str, str]) -> None:
        self._nbytes -= self._held.pop(key).nbytes

    def _start_all(self, started: list[Callable[[], None]]) -> None:
        for call in started:
            self._start(call)

    def _run(self, head: Head, held: _Held) -> Callable[[], None]:
        def run() -> None:
            piece: FileRange | None = None
            failure: BaseException | None = None
            try:
                with unless_given_up(held.given_up):
                    piece = self._fetch(head)
            # Whatever it is: a reader waits for the future, and would wait for ever.
            except BaseException as error:
                failure = error
            with self._lock:
                self._under_way -= 1
                if piece is not None:
                    # Before the result is seen: who takes it may make room with it at once, and then this is
                    # what comes back.
                    self._nbytes += len(piece.data) - held.nbytes
                    held.nbytes = len(piece.data)
                started = self._begin()
            if piece is not None:
                held.file_range.set_result(piece)
            elif failure is not None:
                held.file_range.set_exception(failure)
            self._start_all(started)

        return run
