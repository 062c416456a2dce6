"""What an engine has been doing for long, found by looking at the stacks of threads now and then.

Elements pay nothing for it: how long a call has lasted is measured by whoever looks, from the first look that meets it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias

from pecan_ray.engines.contract import UnderWay
from pecan_ray.plan.splits import AtWork
from pecan_ray.storage.retry import retries

LONG_S = 5.0
"""What has been under way for so long is told."""


class ThreadActivity(NamedTuple):
    """What a thread is doing."""

    key: Hashable
    """The same as long as it is the same; holds no data."""
    text: str
    """It in words, with `{seconds}` for how long."""
    at: AtWork


Recognize: TypeAlias = Callable[[Mapping[str, Any]], "ThreadActivity | None"]
"""Tells from the local variables of a function what it is doing; None for what is another engine's."""


class CallTimer:
    """Measures how long things have been going on that are seen from time to time."""

    def __init__(self) -> None:
        self._since: dict[Hashable, float] = {}

    def longest(self, now: float, seen: Mapping[Hashable, ThreadActivity]) -> UnderWay | None:
        """Take all that is going on, and return what has been for longest, if that is long."""
        # What a look does not meet is forgotten: the same call seen again later has begun anew.
        self._since = {key: self._since.get(key, now) for key in seen}
        first = min(self._since, key=self._since.__getitem__, default=None)
        if first is None or now - self._since[first] < LONG_S:
            return None
        sighting, at = seen[first], seen[first].at
        # Two calls that began about the same time: nobody knows which one holds the other up
        # (docs/decisions/faults-and-silence.md#36-when-a-worker-hangs).
        together = sum(since - self._since[first] < LONG_S for since in self._since.values()) > 1
        if together and not at.reads:
            at = replace(at, origin=None)  # one may wait for the other
        return UnderWay(sighting.text, self._since[first], at)


class StackWatch:
    """Looks for certain functions on the stacks of this process's threads."""

    def __init__(self, known: Mapping[CodeType, Recognize]) -> None:
        self._known = known
        self._call_timer = CallTimer()

    def look(self, now: float) -> UnderWay | None:
        """Return what has been met at every look for long, if there is something."""
        seen: dict[Hashable, ThreadActivity] = {}
        for thread, frame in sys._current_frames().items():
            sighting = self._innermost(frame)
            if sighting is not None:
                # With the thread: two threads at one operator are two calls, and one of them may hang.
                seen[thread, sighting.key] = sighting
        return self._call_timer.longest(now, seen)

    def _innermost(self, frame: FrameType | None) -> ThreadActivity | None:
        while frame is not None:
            inspect_locals = self._known.get(frame.f_code)
            if inspect_locals is not None:
                return inspect_locals(frame.f_locals)
            frame = frame.f_back
        return None


def long_retry(now: float) -> UnderWay | None:
    """Return which file this process has been trying to read for long, and what is in the way, if there is one."""
    retrying = retries.longest()
    if retrying is None or now - retrying.since < LONG_S:
        return None
    return UnderWay(f"{retrying.path} has been tried again for {{seconds}}: {retrying.error}", retrying.since)


def count_from(under_way: UnderWay | None, moment: float, now: float) -> UnderWay | None:
    """Return what is under way as if it had begun at a moment, if that is later; None if it is not long since then."""
    if under_way is None or now - max(under_way.since, moment) < LONG_S:
        return None
    return replace(under_way, since=max(under_way.since, moment))
