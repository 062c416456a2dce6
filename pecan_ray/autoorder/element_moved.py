"""By how much one element's results differ: behind an exchange, or where a decoder takes over work."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pecan_ray.autoorder.element_spec import equal, leaves
from pecan_ray.reorder.relative_bound import EQUAL, Moved, moved, step_of

# docs/decisions/rewrites.md#11-push-down-into-the-decoder
REWRITTEN = 0.15
"""Standard deviations of a column by which a value may differ from itself where a decoder takes over the work behind
it, in the mean of all elements: of photographs for targets of 224 to 96 pixels it is 0.01 to 0.10."""
REWRITTEN_MOST = 2.0
"""In the mean of the element that differs most, so many times as much."""


def element_moved(
    user: Mapping[str, Any],
    exchanged: Mapping[str, Any],
    without: Sequence[Mapping[str, Any] | None],
    given: Mapping[str, Any],
    mixing: int = 2,
) -> Moved:
    """Return what an exchange moves most in an element, and in which column.

    `given`: the element that entered both operators; `mixing`: how many of the two mix values.
    """
    before, after = leaves(user), leaves(exchanged)
    others = [leaves(one) for one in without if one is not None]
    enters = leaves(given)
    worst = EQUAL
    for column in sorted(before.keys() | after.keys()):
        if column not in before or column not in after:
            return Moved(math.inf, why="it is there in one order only", column=column)
        effects = [one.get(column) for one in others]
        found = _value_moved(before[column], after[column], effects, enters.get(column), mixing)
        # A difference with a reason (another shape, other names) says more than a number that is as large.
        if found.excess > worst.excess or (found.why and not worst.why):
            worst = replace(found, column=column, subtle=False)
        elif not worst.excess:
            worst = replace(worst, subtle=worst.subtle or found.subtle)
    return worst


def _value_moved(user: Any, exchanged: Any, without: Sequence[Any], enters: Any, mixing: int) -> Moved:
    """Return what an exchange moves a column of an element by."""
    if not isinstance(user, np.ndarray) or not isinstance(exchanged, np.ndarray):
        return EQUAL if same(user, exchanged) else Moved(math.inf, why="it becomes another one")
    step = step_of(enters, user) if isinstance(enters, np.ndarray) else 0.0
    return moved(user, exchanged, [one for one in without if isinstance(one, np.ndarray)], step, mixing)


def same(first: Any, second: Any) -> bool:
    """Tell whether two values are equal; objects of one type that only compare by identity are."""
    if equal(first, second):
        return True
    # Two runs make two objects: by identity they are never equal, though nothing has changed.
    return type(first) is type(second) and "__eq__" not in {
        name for kind in type(first).__mro__[:-1] for name in vars(kind)
    }


@dataclass(frozen=True)
class ColumnDifference:
    """By how much a column differs where decoders take over work, over the elements that were compared."""

    column: str
    elements: int
    changed: int
    """Of those, how many are not exactly equal."""
    distance: float = 0.0
    """Distance of a value from itself, in standard deviations of the column: the mean of the elements' means."""
    most: float = 0.0
    """That of the element that differs most."""

    def description(self) -> str:
        """Say it in words."""
        if not self.changed:
            return f"{self.column!r}: equal on {self.elements} elements"
        return (
            f"{self.column!r}: {self.changed} of {self.elements} elements differ, a value by {self.distance:.2g} "
            f"standard deviations in the mean, by {self.most:.2g} in the element that differs most"
        )


class RewriteCheck:
    """Pairs of results: of an order as it is, and with decoders that take over work in it."""

    def __init__(self) -> None:
        self._distance_pairs: dict[str, list[tuple[float, float]]] = {}

    def add(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Take one more element into account."""
        usual, new = leaves(before), leaves(after)
        for column in usual.keys() | new.keys():
            self._distance_pairs.setdefault(column, []).append(_distance(usual.get(column), new.get(column)))

    def detected_changes(self) -> tuple[ColumnDifference, ...]:
        """Return by how much each column differs."""
        found = []
        for column, pairs in sorted(self._distance_pairs.items()):
            # By the column's own spread: pixels from 0 to 255 and from 0 to 1 are judged alike.
            scale = float(np.mean([spread for _, spread in pairs])) or 1.0
            shares = [apart / scale for apart, _ in pairs]
            changed = sum(one > 0 for one in shares)
            found.append(ColumnDifference(column, len(shares), changed, float(np.mean(shares)), max(shares)))
        return tuple(found)

    def rejection_reason(self) -> str:
        """Return why decoders may not take over that work; empty if they may."""
        for one in self.detected_changes():
            if math.isinf(one.most):
                return f"column {one.column!r} becomes another one"
            if one.distance > REWRITTEN or one.most > REWRITTEN_MOST * REWRITTEN:
                return (
                    f"column {one.column!r}: a value of an element differs from itself by {one.most:.2g} standard "
                    "deviations in the mean"
                )
        return ""


def _distance(u: Any, x: Any) -> tuple[float, float]:
    """Return the mean distance of two values' numbers, infinite for what is no amount, and the spread of the first."""
    if not (isinstance(u, np.ndarray) and isinstance(x, np.ndarray)):
        return (0.0 if same(u, x) else math.inf), 0.0
    # Without results to compare with: equal but for rounding, or a distance.
    found = moved(u, x, [])
    spread = float(np.nan_to_num(u.astype(np.float64)).std()) if u.dtype.kind in "biuf" and u.size else 0.0
    return (0.0 if not found.rejected else found.by or math.inf), spread
