"""The inflation factor of a transformation: how much it grows or shrinks the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pecan_ray.errors import PlanError

ShapeAndType: TypeAlias = tuple[Sequence[int | None] | None, npt.DTypeLike]
"""Shape and dtype of a column; None for a shape or a dimension that is not known beforehand."""

CUSTOM_BITS = {"bfloat16": 16, "int4": 4, "uint4": 4}
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
    # 1e-12 stands for "above zero": nothing that came in gives no ratio.
    _count("elements_in", elements_in, least=1e-12)
    _count("elements_out", elements_out, least=0.0)
    size_in, size_out = _size("before", before), _size("after", after)
    if size_in is None or size_out is None:
        return None
    if size_in == 0:
        raise PlanError("inflation_factor: `before` has no bytes, so there is nothing to compare with.")
    return (elements_out * size_out) / (elements_in * size_in)


def _size(what: str, side: Mapping[str, ShapeAndType] | float) -> float | None:
    if not isinstance(side, Mapping):
        _count(what, side, least=0.0)
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


def _count(what: str, value: object, *, least: float) -> None:
    if not isinstance(value, Real) or isinstance(value, bool) or not least <= float(value) < math.inf:
        rule = "a finite number > 0" if least else "a finite number >= 0"
        raise PlanError(f"inflation_factor: {what} must be {rule}, but got {value!r}.")
