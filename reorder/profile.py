"""What was measured of one transformation: the facts that every ordering decision works from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pecan_ray.errors import PlanError

Verdict: TypeAlias = Literal["deflates", "neutral", "inflates"]

NEUTRAL_BAND = 0.05
"""Distance from 1 within which a *sampled* factor counts as 1, as in the code that Pecan's authors released.

Without it the noise of a sample decides: an augmentation that keeps the size on average would be called
inflationary at 1.003 and be moved behind the padding."""


@dataclass(frozen=True, kw_only=True)
class ColumnUse:
    """What a transformation has to do with which columns."""

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    creates: frozenset[str] = frozenset()
    """Columns that its output has and its input lacks; those it writes without reading them count too."""
    drops: frozenset[str] = frozenset()
    """Columns that its input has and its output lacks."""
    arrays: frozenset[str] = frozenset()
    """Of the columns that it reads: arrays of numbers (boxes, points, masks, images), not single numbers."""
    filtered_columns: frozenset[str] = frozenset()
    """Columns of which it takes rows, numbers or characters away (or adds them) by what they are."""
    changed_axes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """The axes whose length it changes, by column."""

    @property
    def changes(self) -> frozenset[str]:
        """Columns that it changes, creates or drops."""
        return self.writes | self.creates | self.drops

    @property
    def columns(self) -> frozenset[str]:
        """Columns that it has to do with."""
        return self.reads | self.changes

    @property
    def defines(self) -> frozenset[str]:
        """Columns whose content it makes afresh: created, or written without being read."""
        # A column that is written without being read has nothing of its old content left.
        return self.creates | (self.writes - self.reads)


@dataclass(frozen=True)
class ProfiledOp(ColumnUse):
    """One transformation and what is known of it.

    Columns that are not known (all sets empty) put no constraint on the order.  Raises `PlanError` for a number that
    cannot be a measurement.
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
    seconds: float | None = None
    """Time per element that it is given, at its measured input size; None: not measured."""
    elements: float = 1.0
    """Elements out per element in: below 1 for a filter, above 1 for a flat_map."""
    random: bool | None = None
    """Whether equal inputs give different outputs, for explanations; None: not known.

    The order does not depend on it: random numbers belong to the op's name and the element, not to a place."""
    fixed: str = ""
    """Why it is a barrier for another reason than those above (batch, shuffle, a join, state); empty: it is not."""
    decides: bool = False
    """Whether it decides which elements there are."""
    draws: bool = False
    """Whether it draws from a generator that other functions share."""
    unequal: bool = False
    """Whether it makes something else of an equal element each time, and not by such a generator."""
    pointwise: bool = False
    """Whether it makes of each value what it makes of it at any other place: it moves, mixes and cuts nothing."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise PlanError(f"ProfiledOp(name=...) must be a non-empty string, but got {self.name!r}.")
        hint = " It let nothing through: measure it on more elements."
        for what, value in (("inflation", self.inflation), ("elements", self.elements)):
            check_number(f"op {self.name!r}: {what}", value, positive=True, hint=hint)
        if self.seconds is not None:
            check_number(f"op {self.name!r}: seconds", self.seconds, positive=False)
        for what in ("reads", "writes", "creates", "drops"):
            # A text is an iterable of names of one letter, which is never meant.
            if isinstance(given := getattr(self, what), str):
                raise PlanError(f"op {self.name!r}: {what} must be a set of column names, not the string {given!r}.")

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


def check_number(what: str, value: object, *, positive: bool, hint: str = "") -> None:
    """Raise `PlanError` for what is no amount; `hint`: what to do about 0."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if math.isfinite(number) and (number > 0 or (number == 0 and not positive)):
        return
    rule = "a finite number > 0" if positive else "a finite number >= 0"
    raise PlanError(f"{what} must be {rule}, but got {value!r}.{hint if number == 0 else ''}")


def sections(ops: Sequence[ProfiledOp]) -> list[range]:
    """Return the stretches of free ops between fixed ones, as ranges of indices in the user's order."""
    fixed = [number for number, op in enumerate(ops) if op.fixed_reason]
    found = (range(before + 1, end) for before, end in itertools.pairwise([-1, *fixed, len(ops)]))
    return [section for section in found if section]


# --- the factor, where shapes are known ----------------------------------------------------------------------

ShapeAndType: TypeAlias = tuple[Sequence[int | None] | None, npt.DTypeLike]
"""Shape and dtype of a column; None for a shape or a dimension that is not known beforehand."""

CUSTOM_BITS = {"bfloat16": 16, "int4": 4, "uint4": 4}
"""Bits of a number of types that NumPy does not have."""
CUSTOM_BITS |= {f"float8_{kind}": 8 for kind in ("e4m3fn", "e4m3b11fnuz", "e4m3fnuz", "e5m2", "e5m2fnuz")}
"""Bits of an atomic element for types that NumPy does not know by name."""


def inflation_factor(
    before: Mapping[str, ShapeAndType] | float,
    after: Mapping[str, ShapeAndType] | float,
    *,
    elements_in: float = 1,
    elements_out: float = 1,
) -> float | None:
    """Return I = (c_out · Σ_out bytes) / (c_in · Σ_in bytes), over all columns.

    `before` and `after` describe one element: column -> (shape, dtype), or its measured number of bytes (a
    mean).  `elements_in` and `elements_out` are the counts c: a filter that keeps 30 of 100 elements, or a
    batch of 64, differs in them.  With totals in place of means leave the counts at 1.

        inflation_factor({"image": ((480, 360, 3), "uint8")}, {"image": ((224, 224, 3), "float32")})
        inflation_factor(518_400, 602_112, elements_in=300, elements_out=290)

    None: not static, since a shape or a dimension is None or a column holds text, bytes or objects; sample it
    then.  Raises `PlanError` where nothing came in.  Pecan §5.2, "Calculating inflation factors".
    """
    # Nothing that came in gives no ratio.
    check_number("inflation_factor: elements_in", elements_in, positive=True)
    check_number("inflation_factor: elements_out", elements_out, positive=False)
    size_in, size_out = _size("before", before), _size("after", after)
    if size_in is None or size_out is None:
        return None
    if size_in == 0:
        raise PlanError("inflation_factor: `before` has no bytes, so there is nothing to compare with.")
    return (elements_out * size_out) / (elements_in * size_in)


def _size(what: str, side: Mapping[str, ShapeAndType] | float) -> float | None:
    if not isinstance(side, Mapping):
        check_number(f"inflation_factor: {what}", side, positive=False)
        return float(side)
    sizes = [_column_bytes(f"{what}[{column!r}]", spec) for column, spec in side.items()]
    return None if None in sizes else sum(size or 0.0 for size in sizes)


def _column_bytes(what: str, spec: ShapeAndType) -> float | None:
    try:
        shape, dtype = spec
        # NumPy holds a 4-bit number in a byte; here its bits count.
        bits = CUSTOM_BITS.get(str(dtype)) or _bit_width(dtype)
    except (TypeError, ValueError):
        message = f"{what} must be (shape, dtype), of a dtype that NumPy knows, but got {spec!r}."
        raise PlanError(f"inflation_factor: {message}") from None
    if shape is None or bits is None or None in shape:
        return None
    sides = [side for side in shape if side is not None]
    if any(side < 0 for side in sides):
        raise PlanError(f"inflation_factor: {what} has a negative dimension: {tuple(shape)}; write None for unknown.")
    return math.prod(sides) * bits / 8


def _bit_width(dtype: npt.DTypeLike) -> int | None:
    """Return None for objects and texts, which have no size before a value is seen; raises TypeError for no dtype."""
    if dtype is None or dtype in ("string", "bytes", "object"):
        return None
    known = np.dtype(dtype)
    return None if known.kind in "OSUT" else CUSTOM_BITS.get(known.name, known.itemsize * 8)
