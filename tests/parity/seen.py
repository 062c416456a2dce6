"""What passes have in common whatever the random numbers are: this is compared with peers, whose generators differ."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Row: TypeAlias = "dict[str, float]"
Batch: TypeAlias = "list[Row]"
Pass: TypeAlias = "list[Batch]"
Facts: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class Seen:
    """Passes that were seen, each of which is cut into `parts` before they are compared."""

    passes: Sequence[Pass]
    parts: int = 1


def facts_of(seen: Seen | Facts) -> Facts:
    return facts(seen.passes, seen.parts) if isinstance(seen, Seen) else seen


def batch_of(columns: Mapping[str, Any]) -> Batch:
    arrays = {name: np.atleast_1d(np.asarray(values)) for name, values in columns.items()}
    return [dict(zip(arrays, row, strict=True)) for row in zip(*(a.tolist() for a in arrays.values()), strict=True)]


def numbers(one: Pass) -> list[float]:
    return [row["i"] for batch in one for row in batch]


def facts(passes: Sequence[Pass], parts: int = 1) -> Facts:
    """Return what holds of passes; each is cut into so many parts, which are looked at as passes are."""
    cut = [piece for one in passes for piece in _cut([row for batch in one for row in batch], parts)]
    orders = [tuple(row["i"] for row in piece) for piece in cut]
    found: Facts = {
        "batches": [[len(batch) for batch in one] for one in passes],
        "elements": [len(order) for order in orders],
        "distinct": [len(set(order)) for order in orders],
        "in source order": [list(order) == sorted(order) for order in orders],
        "equal orders": labels(orders),
        "equal elements": labels(map(frozenset, orders)),
    }
    everything = [row for piece in cut for row in piece]
    if everything and "x" in everything[0]:
        found["draws of an element"] = _draws(everything)
    if everything and "j" in everything[0]:
        found["pairs"] = "kept" if all(row["i"] == row["j"] for row in everything) else "torn"
    return found


def labels(values: Iterable[Hashable]) -> str:
    known: dict[Hashable, str] = {}
    return "".join(known.setdefault(value, chr(ord("a") + len(known))) for value in values)


def _cut(flat: list[Row], parts: int) -> list[list[Row]]:
    size = -(-len(flat) // parts)
    return [flat[at * size : (at + 1) * size] for at in range(parts)]


def _draws(everything: list[Row]) -> str:
    """Tell whether an element that comes several times has another random number each time."""
    of: dict[float, list[float]] = defaultdict(list)
    for row in everything:
        of[row["i"]].append(row["x"])
    several = [draws for draws in of.values() if len(draws) > 1]
    if not several:
        return "one"
    distinct = {len(set(draws)) == len(draws) for draws in several}
    return "other each time" if distinct == {True} else "the same" if distinct == {False} else "some repeat"


class Repeated(ABC):
    """A loader that is iterated over: `again` gives what begins a pass."""

    @abstractmethod
    def again(self) -> Any:
        """Return what begins a pass."""

    def __iter__(self) -> Iterator[Batch]:
        return map(batch_of, self.again())

    def __len__(self) -> int:
        return len(self.again())

    def run(self, *most: int | None) -> list[Pass]:
        """Begin a pass for each, and leave it behind so many batches; None: at its end."""
        return [list(itertools.islice(self, count)) for count in most]

    def epochs(self, count: int) -> list[Pass]:
        return self.run(*[None] * count)
