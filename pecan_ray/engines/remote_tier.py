"""The tier of a cache that many machines share: asked as far as it answers soon, written behind.

It is the slowest tier, and the only one that may be away.  Then nobody waits for it again and again: after a failure it
is left alone for a while, which doubles from one failure to the next, and everything is computed as if it held nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pecan_ray.engines.entry_objects import EntryObjects, FoundEntry
from pecan_ray.errors import PecanError
from pecan_ray.storage.retry import RequestCancelledError, unless_given_up
from pecan_ray.storage.threads import RequestThreads

BEHIND_BYTES = 256 << 20
"""Entries that wait to be written, as many as the largest entry has; further ones are not written, but one always
is."""
WRITES = 4
"""Writes of a process at a time: half of the reads, because nobody waits for them."""
AWAY_S = 30.0
"""Seconds for which a store is left alone after its first failure."""
MOST_AWAY_S = 600.0
"""Most seconds for which a store is left alone after a failure."""
# docs/decisions/autocache.md#49-entries-as-objects
LISTED_AGAIN_S = 20.0
"""What others have written is looked for so often; and seldom enough that it takes a twentieth of the time."""
FLUSH_S = 5.0
"""Who ends waits no longer for what is to be written: it saves later epochs time, and may cost this one no more."""


@dataclass
class _Listing:
    """What is known of the entries of a kind."""

    keys: set[str] = field(default_factory=set)
    under_way: bool = False
    complete: bool = False
    """It was listed to its end at least once."""
    due: float = float("-inf")
    """When it is to be listed next."""
    dropped: set[str] = field(default_factory=set)
    """Keys that the listing under way may still name although their damaged entries are dropped."""


class RemoteTier:
    """The entries of a store for one engine; threads may use it side by side.  Nothing here raises."""

    def __init__(
        self, objects: EntryObjects, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`say` is told of what is wrong, from any thread, maybe over and over."""
        self._objects, self._say, self._clock = objects, say, clock
        self._write_threads, self._listing_client = RequestThreads(WRITES), RequestThreads(1)
        self._closed = threading.Event()
        self._changed = threading.Condition()
        """Guards all that follows; told of what was written."""
        self._listings: dict[str, _Listing] = {}
        self._behind: dict[str, int] = {}
        """Bytes of the entries that are yet to be written, by key."""
        self._pending_deletes: set[str] = set()
        """Keys whose damaged entries are being removed: what is written under them comes after that."""
        self._left_alone: set[str] = set()
        """Keys under which another version of pecan_ray has written."""
        self._backoff_s, self._backoff_until = 0.0, float("-inf")

    def holds(self, kind: str, key: str) -> bool:
        """Tell whether an entry is there, as far as is known without asking."""
        with self._changed:
            return not self._unavailable() and key in self._listing_of(kind).keys

    def get(self, kind: str, key: str) -> FoundEntry | None:
        """Return an entry; None where there is none, or none soon."""
        with self._changed:
            listing = self._listing_of(kind)
            # Decision 49: a complete listing answers for the store. In a first epoch, no split costs a request then.
            missing = listing.complete and key not in listing.keys
            if missing or self._unavailable() or key in self._left_alone:
                return None
        try:
            found = self._objects.get(kind, key)
        except PecanError as error:
            self._cannot_read(kind, key, error)
            return None
        self._note_response()
        return found

    def put(
        self,
        kind: str,
        key: str,
        parts: Sequence[bytes | memoryview],
        *,
        elements: int,
        seconds: float,
        anew: bool = False,
    ) -> None:
        """Let an entry be written, if it is not there; `anew`: also where it is.  Returns at once."""
        nbytes = sum(memoryview(part).nbytes for part in parts)
        with self._changed:
            there = key in self._listing_of(kind).keys and not anew
            if there or key in self._behind or key in self._left_alone or self._unavailable() or self._closed.is_set():
                return
            # An entry larger than the bound must be written some time, so one is always taken.
            fits = not self._behind or sum(self._behind.values()) + nbytes <= BEHIND_BYTES
            if fits:
                self._behind[key] = nbytes
        if fits:
            self._write_threads.start(partial(self._write, kind, key, parts, elements, seconds))
        else:
            self._say("entries are made faster than the remote store takes them, and some stay on this node alone")

    def is_missing(self, kind: str, key: str) -> bool:
        """Tell whether it is known that an entry is not there."""
        with self._changed:
            listing = self._listing_of(kind)
            return listing.complete and key not in listing.keys and key not in self._behind

    def flush(self, within_s: float | None = None) -> bool:
        """Wait until all is written, but no longer than that (None: than usual); tell whether it is."""
        within_s = FLUSH_S if within_s is None else within_s
        with self._changed:
            return (
                self._changed.wait_for(lambda: not self._behind or self._unavailable(), within_s) and not self._behind
            )

    def close(self, within_s: float | None = None) -> None:
        """Write what is left, as far as that is soon done; then nothing is written any more."""
        if not self.flush(within_s):
            with self._changed:
                left = len(self._behind)
            self._say(f"{left} entries could not be written to the remote store in time, and stay on this node alone")
        self._closed.set()

    # --- inside --------------------------------------------------------------------------------------------

    def _unavailable(self) -> bool:
        return self._clock() < self._backoff_until

    def _note_response(self) -> None:
        with self._changed:
            self._backoff_s = 0.0

    def _failed(self, error: PecanError) -> None:
        """Leave the store alone for a while."""
        with self._changed:
            # Requests run side by side: one outage must not double the time once for each of them.
            if self._unavailable():  # another request has failed beside this one
                return
            self._backoff_s = min(MOST_AWAY_S, max(AWAY_S, 2 * self._backoff_s))
            self._backoff_until = self._clock() + self._backoff_s
            self._changed.notify_all()
        self._say(f"the remote store cannot be used, so it is done without it until it can: {error.message}")

    def _cannot_read(self, kind: str, key: str, error: PecanError) -> None:
        # Neither read nor replaced, because the newer version that wrote it may still be in use elsewhere.
        if error.fields.get("newer"):
            with self._changed:
                self._left_alone.add(key)
            self._say(f"an entry of a newer version is left alone: {error.message}")
        elif error.fields.get("damaged"):
            with self._changed:
                listing = self._listing_of(kind)
                listing.keys.discard(key)
                listing.dropped.add(key)
                started = key in self._pending_deletes  # for another reader of it
                self._pending_deletes.add(key)
            self._say(f"a damaged entry is dropped from the remote store: {error.message}")
            if not started:
                self._write_threads.start(partial(self._drop, kind, key))
        else:
            self._failed(error)

    def _listing_of(self, kind: str) -> _Listing:
        """Return what is known of a kind; it is listed behind where that is due."""
        listing = self._listings.setdefault(kind, _Listing())
        if (
            not listing.under_way
            and self._clock() >= listing.due
            and not self._unavailable()
            and not self._closed.is_set()
        ):
            listing.under_way = True
            listing.dropped = set(self._pending_deletes)
            self._listing_client.start(partial(self._list, kind, listing))
        return listing

    def _list(self, kind: str, listing: _Listing) -> None:
        started, found, complete = self._clock(), set[str](), False
        try:
            with unless_given_up(self._closed, patience_s=self._objects.wait_s):
                for key, _ in self._objects.entries(kind):
                    found.add(key)
                    # Only the first listing is used while it grows: later ones find keys that are known.
                    if not listing.complete:
                        with self._changed:
                            listing.keys |= {key} - listing.dropped
                    if self._closed.is_set():
                        return
            complete = True
        except RequestCancelledError:
            pass  # nobody asks any more
        except PecanError as error:
            self._failed(error)
        finally:
            now = self._clock()
            with self._changed:
                listing.under_way, listing.due = False, now + max(LISTED_AGAIN_S, 20 * (now - started))
                if complete:
                    # What was written meanwhile may have come too late for its page.
                    # A page may name an entry that is dropped since: who computes it anew has to write it.
                    listing.keys |= found - listing.dropped
                    listing.complete = True

    def _write(self, kind: str, key: str, parts: Sequence[bytes | memoryview], elements: int, seconds: float) -> None:
        written = False
        try:
            with self._changed:
                # A removal that comes late would remove the new entry.
                self._changed.wait_for(lambda: key not in self._pending_deletes)
                away = self._unavailable()
            if not away:
                # A process that ends gives its requests up: it does not wait for a bucket longer than `close` says.
                with unless_given_up(self._closed, patience_s=self._objects.wait_s):
                    self._objects.put(kind, key, parts, elements=elements, seconds=seconds)
                written = True
                self._note_response()
        except RequestCancelledError:
            pass  # who wrote has ended
        except PecanError as error:
            self._failed(error)
        finally:
            with self._changed:
                # Also behind a failure: `flush` waits for what may still be written, and `is_missing` lets it be sent
                # again.
                del self._behind[key]
                if written:
                    self._listing_of(kind).keys.add(key)
                self._changed.notify_all()

    def _drop(self, kind: str, key: str) -> None:
        try:
            with unless_given_up(self._closed, patience_s=self._objects.wait_s):
                self._objects.drop(kind, key)
        except RequestCancelledError:
            pass  # the next one to read it drops it
        except PecanError as error:
            self._failed(error)
        finally:
            with self._changed:
                self._pending_deletes.discard(key)
                self._changed.notify_all()
