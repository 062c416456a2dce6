"""What flows between the stages of the python engine: a value, and which positions of the data it stands for."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pecan_ray.engines.contract import BadElement, Spans
from pecan_ray.plan.splits import Lease

Key = tuple[int, int, int]
Part = tuple[Key, int, int]
"""An interval of positions: lease key, start, stop."""


@dataclass
class Item:
    """An element or a batch under way."""

    value: Any
    parts: list[Part]
    lease: Lease
    element: int
    """Number of the (first) element in its split: names it in errors and seeds its random numbers."""
    rows: int = 1
    row_parts: list[list[Part]] | None = None
    """For a batch: the positions of each of its rows."""
    partial: bool = False

    def where(self) -> str:
        """Say in words which element this is."""
        return self.lease.split.where(self.element)


@dataclass
class Loose:
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


def merge(parts: Iterable[Part]) -> Spans:
    """Group positions by split, as few sorted intervals."""
    spans: Spans = {}
    for key, start, stop in sorted(parts):
        intervals = spans.setdefault(key, [])
        if intervals and start <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], max(stop, intervals[-1][1]))
        else:
            intervals.append((start, stop))
    return spans
