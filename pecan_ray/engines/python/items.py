"""What flows between the stages of the python engine: a value, and which positions of the data it stands for."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pecan_ray.engines.contract import BadElement, Spans
from pecan_ray.plan.splits import Lease

Key = tuple[int, int, int]
Part = tuple[Key, int, int]
"""An interval of positions: lease key, start, stop."""


@dataclass(slots=True)
class Item:
    """An element or a batch under way."""

    value: Any
    parts: list[Part]
    """Positions that count as delivered with it: those that it stands for and that are still missing."""
    lease: Lease
    element: int
    """Number of the (first) element in its split: names it in errors and seeds its random numbers."""
    output: int = 0
    """Which output of that element it is: 0, or its place among the element's positions behind flat_map."""
    width: int = 0
    """How many positions it stands for from there on, missing or not; 0: a batch or a pair, not to be divided."""
    rows: int = 1
    members: list[Item] | None = None
    """For a batch: the items that it was made of, without their values."""
    partial: bool = False

    def where(self) -> str:
        """Say in words which element this is."""
        return self.lease.split.where(self.element)

    def without_value(self) -> Item:
        """Return what is known of the item beside its value."""
        return replace(self, value=None)


def copied(value: dict[str, Any]) -> dict[str, Any]:
    """Return an element whose arrays may be written into without changing the given one."""
    return {name: column.copy() if isinstance(column, np.ndarray) else column for name, column in value.items()}


def leading(value: dict[str, Any]) -> int:
    """Return the number of rows of a batch: the first dimension of its first column that has one."""
    return next((len(column) for column in value.values() if has_rows(column)), 1)


def has_rows(column: Any) -> bool:
    """Tell whether a column of a batch has a first dimension."""
    return isinstance(column, (list, tuple)) or getattr(column, "ndim", 0) > 0


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


def join(held: list[Part], parts: Iterable[Part]) -> None:
    """Add positions to a list; those that begin where the last ones end become one interval with them."""
    for key, start, stop in parts:
        if held and held[-1][2] == start and held[-1][0] == key:
            held[-1] = (key, held[-1][1], stop)
        else:
            held.append((key, start, stop))


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
