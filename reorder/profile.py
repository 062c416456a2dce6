"""What was measured of one transformation: the facts that every ordering decision works from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
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
    seconds: float | None = None
    """Time per element that it is given, at its measured input size; None: not measured."""
    creates: frozenset[str] = frozenset()
    """Columns that its output has and its input lacks; those it writes without reading them count too."""
    drops: frozenset[str] = frozenset()
    """Columns that its input has and its output lacks."""
    elements: float = 1.0
    """Elements out per element in: below 1 for a filter, above 1 for a flat_map."""
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
        if self.seconds is not None:
            self._check_number("seconds", self.seconds, positive=False)
        for what in ("reads", "writes", "creates", "drops"):
            # A frozen dataclass can only be normalized past its own `__setattr__`.
            object.__setattr__(self, what, _names(self.name, what, getattr(self, what)))

    def _check_number(self, what: str, value: object, *, positive: bool) -> None:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
        if math.isfinite(number) and (number > 0 or (number == 0 and not positive)):
            return
        rule = "a finite number > 0" if positive else "a finite number >= 0"
        hint = " It let nothing through: measure it on more elements." if number == 0 else ""
        raise PlanError(f"op {self.name!r}: {what} must be {rule}, but got {value!r}.{hint}")

    @property
    def columns(self) -> frozenset[str]:
        """Columns that it has to do with."""
        return self.reads | self.writes | self.creates | self.drops

    @property
    def defines(self) -> frozenset[str]:
        """Columns whose content it makes afresh: created, or written without being read."""
        # A column that is written without being read has nothing of its old content left.
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
        # `<=`: with a band of 0, the paper's rule, a factor of exactly 1 is neutral.
        if abs(self.inflation - 1.0) <= neutral_band:
            return "neutral"
        return "deflates" if self.inflation < 1.0 else "inflates"


def _names(op: str, what: str, value: Iterable[str]) -> frozenset[str]:
    # A text is an iterable of names of one letter, which is never meant.
    if isinstance(value, str):
        raise PlanError(f"op {op!r}: {what} must be a set of column names, but got the string {value!r}.")
    return frozenset(value)


def sections(ops: Sequence[ProfiledOp]) -> list[range]:
    """Return the stretches of free ops between fixed ones, as ranges of indices in the user's order."""
    fixed = [number for number, op in enumerate(ops) if op.fixed_reason]
    found = (range(before + 1, end) for before, end in itertools.pairwise([-1, *fixed, len(ops)]))
    return [section for section in found if section]
