"""What was measured of one transformation: the facts that every ordering decision works from."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Literal, TypeAlias

from pecan_ray.errors import PlanError

Verdict: TypeAlias = Literal["deflates", "neutral", "inflates"]

NEUTRAL_BAND = 0.05
"""Distance from 1 within which a *sampled* factor counts as 1, as in the code that Pecan's authors released.

Without it the noise of a sample decides: an augmentation that keeps the size on average would be called
inflationary at 1.003 and be moved behind the padding."""


@dataclass(frozen=True)
class CostCurve:
    """Seconds per element as a function of its input bytes: measured points, joined by straight lines.

    Beyond the points the outer lines go on; below the first one the time is never taken to be less than in
    proportion to the bytes, and nowhere to fall while the bytes grow.  A single point means proportion.
    """

    points: tuple[tuple[float, float], ...]
    """(bytes, seconds), sorted by bytes when the curve is made."""

    def __post_init__(self) -> None:
        points = tuple(sorted((float(size), float(seconds)) for size, seconds in self.points))
        if not points:
            raise PlanError("CostCurve(points=...) needs at least one (bytes, seconds).")
        for size, seconds in points:
            if not (0 < size < math.inf and 0 <= seconds < math.inf):
                raise PlanError(f"CostCurve: bytes must be positive and seconds not negative: ({size}, {seconds}).")
        if len({size for size, _ in points}) < len(points):
            raise PlanError(f"CostCurve: two points have the same number of bytes; average them: {list(points)}.")
        object.__setattr__(self, "points", points)

    def at(self, size: float) -> float:
        """Return the seconds for an element of `size` bytes."""
        points = self.points
        first, last = points[0], points[-1]
        if size <= first[0]:
            share = first[1] * size / first[0]
            if len(points) == 1:
                return share
            return min(first[1], max(share, _on_line(first, points[1], size)))
        if size >= last[0]:
            if len(points) == 1:
                return last[1] * size / last[0]
            return max(last[1], _on_line(points[-2], last, size))
        right = bisect_right(points, (size, math.inf))
        return _on_line(points[right - 1], points[right], size)


def _on_line(a: tuple[float, float], b: tuple[float, float], size: float) -> float:
    return a[1] + (b[1] - a[1]) * (size - a[0]) / (b[0] - a[0])


@dataclass(frozen=True)
class ProfiledOp:
    """One transformation and what is known of it.

    Columns that are not known (all sets empty) put no constraint on the order.  Sets may be given as any
    iterable of names.  Raises `PlanError` for a number that cannot be a measurement.
    """

    name: str
    inflation: float
    """Bytes out over bytes in, over all columns and elements."""
    keep_position: bool = False
    """The user wants it where it is."""
    changes_kind: bool = False
    """It converts between numbers and text or bytes (decoding, tokenizing)."""
    changes_rank: bool = False
    """It changes the number of dimensions of a column."""
    custom_dtype_cast: bool = False
    """It casts to a type such as bfloat16, with which CPUs compute slowly."""
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    seconds: float | CostCurve | None = None
    """Time per element that it is given: at its measured input size, or as a function of it; None: not measured."""
    creates: frozenset[str] = frozenset()
    """Columns that its output has and its input lacks; those it writes without reading them count too."""
    drops: frozenset[str] = frozenset()
    """Columns that its input has and its output lacks."""
    elements: float = 1.0
    """Elements out per element in: below 1 for a filter, above 1 for a flat_map."""
    bytes_in: float | None = None
    """Bytes of an element that it is given, where it was measured; a `CostCurve` needs it."""
    random: bool | None = None
    """Whether equal inputs give different outputs, for explanations; None: not known.

    The order does not depend on it: random numbers belong to the op's name and the element, not to a place."""
    fixed: str = ""
    """Why it is a barrier for another reason than those above (batch, shuffle, a join, state); empty: it is not."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise PlanError(f"ProfiledOp(name=...) must be a non-empty string, but got {self.name!r}.")
        self._check_number("inflation", self.inflation, positive=True)
        self._check_number("elements", self.elements, positive=True)
        if self.bytes_in is not None:
            self._check_number("bytes_in", self.bytes_in, positive=True)
        if isinstance(self.seconds, CostCurve):
            if self.bytes_in is None:
                raise PlanError(f"op {self.name!r}: seconds as a CostCurve needs bytes_in, the measured input size.")
        elif self.seconds is not None:
            self._check_number("seconds", self.seconds, positive=False)
        for what in ("reads", "writes", "creates", "drops"):
            object.__setattr__(self, what, _names(self.name, what, getattr(self, what)))

    def _check_number(self, what: str, value: object, *, positive: bool) -> None:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
        if math.isfinite(number) and (number > 0 or (number == 0 and not positive)):
            return
        rule = "a finite number > 0" if positive else "a finite number >= 0"
        hint = " It let nothing through: measure it on more elements." if number == 0 else ""
        raise PlanError(f"op {self.name!r}: {what} must be {rule}, but got {value!r}.{hint}")

    @property
    def defines(self) -> frozenset[str]:
        """Columns whose content it makes afresh: created, or written without being read."""
        return self.creates | (self.writes - self.reads)

    @property
    def fixed_reason(self) -> str:
        """Why it keeps its place, and nothing moves across it; empty if it is free."""
        reasons = (
            (self.keep_position, "keep_position=True"),
            (self.fixed, self.fixed),
            (self.changes_kind, "converts between numbers and text or bytes"),
            (self.changes_rank, "changes the number of dimensions"),
        )
        return "; ".join(reason for holds, reason in reasons if holds)

    def comparison_result(self, neutral_band: float = 0.0) -> Verdict:
        """Return whether it shrinks or grows the data; a factor within `neutral_band` of 1 does neither."""
        if abs(self.inflation - 1.0) <= neutral_band:
            return "neutral"
        return "deflates" if self.inflation < 1.0 else "inflates"

    def seconds_at(self, ratio: float) -> float | None:
        """Return the seconds per element for `ratio` times the input bytes that it was measured with."""
        if self.seconds is None:
            return None
        if isinstance(self.seconds, CostCurve):
            return self.seconds.at((self.bytes_in or 0.0) * ratio)
        return self.seconds * ratio


def _names(op: str, what: str, value: Iterable[str]) -> frozenset[str]:
    if isinstance(value, str):
        raise PlanError(f"op {op!r}: {what} must be a set of column names, but got the string {value!r}.")
    return frozenset(value)


def sections(ops: Iterable[ProfiledOp]) -> list[range]:
    """Return the stretches of free ops between fixed ones, as ranges of indices in the user's order."""
    found: list[range] = []
    start = stop = 0
    for op in ops:
        if op.fixed_reason:
            found.append(range(start, stop))
            start = stop + 1
        stop += 1
    found.append(range(start, stop))
    return [section for section in found if section]


def check_ops(ops: Iterable[ProfiledOp]) -> tuple[ProfiledOp, ...]:
    """Return the ops as a tuple; raises `PlanError` for two of one name or something else than a ProfiledOp."""
    out = tuple(ops)
    seen: set[str] = set()
    for op in out:
        if not isinstance(op, ProfiledOp):
            raise PlanError(f"auto_order needs ProfiledOp(name, inflation, ...), but got {type(op).__name__}.")
        if op.name in seen:
            raise PlanError(f"two ops are named {op.name!r}: give each op a name of its own.")
        seen.add(op.name)
    return out
