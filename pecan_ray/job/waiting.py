"""Nobody waits in silence: what is waited for longer than a few seconds is said once, and again when it changes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

SAY_AFTER_S = 5.0
"""Seconds of waiting after which it is said for what: longer than usual batches take, and shorter than patience is."""
UNHEARD = "its process or node hangs, is busy, or is being started again"
"""What may keep a controller from answering."""
NO_ANSWER = f"its controller does not answer: {UNHEARD}"


@dataclass(frozen=True)
class _Logged:
    """What was said last of a thing."""

    text: str
    """As it was given."""
    to_str: str
    """As it was spelled out."""
    at: float


class WaitLog:
    """What is being waited for, since when, and what of it was said."""

    def __init__(self, say_after_s: float = SAY_AFTER_S) -> None:
        self._say_after_s = say_after_s
        self._since: dict[Hashable, float] = {}
        self._logged: dict[Hashable, _Logged] = {}
        self._changed: set[Hashable] = set()
        """Things of which something else must be said, but not yet: what changes every second is told now and then."""

        self._retry: tuple[str, float] | None = None
        """What hinders the listing, since when."""

    def set_listing_retry(self, text: str, since: float) -> None:
        """Note what hinders the listing of the sources; empty: nothing does."""
        self._retry = (f"the sources are being listed: {text}", since) if text else None

    def __bool__(self) -> bool:
        return bool(self._since)

    def look(
        self, now: float, waits: Mapping[Hashable, str], started: Mapping[Hashable, float] | None = None
    ) -> list[str]:
        """Take what is waited for now, a text for each thing, and return what must be said.

        A text may contain `{seconds}`, which is filled in; it does not make another text of it.  `started` tells of
        things that had been waited for before they were met here, since when.
        """
        started = started or {}
        if self._retry is not None:
            text, since = self._retry
            waits, started = {**waits, "storage": text}, {**started, "storage": since}
        for gone in self._since.keys() - waits.keys():
            del self._since[gone]
            # What comes again later is said again.
            self._logged.pop(gone, None)
        self._changed.clear()
        fresh = []
        for thing, text in waits.items():
            since, message = self._since.setdefault(thing, started.get(thing, now)), self._logged.get(thing)
            if message is not None and message.text == text:
                continue
            if now < (since if message is None else message.at) + self._say_after_s:
                if message is not None:
                    self._changed.add(thing)
                continue
            to_str = text.replace("{seconds}", f"{now - since:.0f} s")
            self._logged[thing] = _Logged(text, to_str, now)
            fresh.append(to_str)
        return fresh

    @property
    def active_messages(self) -> tuple[str, ...]:
        """All that was said and still holds."""
        return tuple(message.to_str for message in self._logged.values())

    @property
    def due(self) -> float | None:
        """The time at which the next thing must be said; None if nothing is waited for that was not said."""
        silent = [since for thing, since in self._since.items() if thing not in self._logged]
        stale = [self._logged[thing].at for thing in self._changed]
        return min((since + self._say_after_s for since in (*silent, *stale)), default=None)

    def due_with(self, started: Mapping[Hashable, float]) -> float:
        """Return `due`, or when something of what is waited for now must be said that was not met here."""
        due = self.due if self._since else min(started.values(), default=math.inf) + self._say_after_s
        return math.inf if due is None else due
