"""Positions of the data on their way through an engine: with a batch, or without one."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from pecan_ray.engines.contract import BadElement, SpansByKey
from pecan_ray.plan.splits import LeaseKey

Part = tuple[LeaseKey, int, int]
"""An interval of positions: lease key, start, stop."""


@dataclass
class UndeliveredPositions:
    """Positions that were dealt with and yield nothing: filtered and bad elements.  The next batch carries them."""

    parts: list[Part] = field(default_factory=list)
    bad: list[BadElement] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, parts: Iterable[Part], bad: BadElement | None = None) -> None:
        """Add positions, and the reason if they are bad."""
        with self.lock:
            self.parts.extend(parts)
            if bad is not None:
                self.bad.append(bad)

    def take(self) -> tuple[list[Part], list[BadElement]]:
        """Return and forget what was added."""
        with self.lock:
            parts, bad = self.parts, self.bad
            self.parts, self.bad = [], []
        return parts, bad


def join(held: list[Part], parts: Iterable[Part]) -> None:
    """Add positions to a list; those that begin where the last ones end become one interval with them."""
    for key, start, stop in parts:
        if held and held[-1][2] == start and held[-1][0] == key:
            held[-1] = (key, held[-1][1], stop)
        else:
            held.append((key, start, stop))


def merge(parts: Iterable[Part]) -> SpansByKey:
    """Group positions by split, as few sorted intervals."""
    spans: SpansByKey = {}
    for key, start, stop in sorted(parts):
        intervals = spans.setdefault(key, [])
        if intervals and start <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], max(stop, intervals[-1][1]))
        else:
            intervals.append((start, stop))
    return spans
