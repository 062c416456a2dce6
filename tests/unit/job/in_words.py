"""Values in words, for tables that are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from pecan_ray.plan.splits import END, OUTPUT_BITS
from tests.protocol.engine import Made


def words(value: Any) -> str:
    """Write a value shortly: of a dataclass its first field and what is not as usual, of a position its element."""
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, Made):
        return f"{value.rows} rows of {words(value.spans)}"
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}({', '.join(_fields(value))})"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and value >= 1 << OUTPUT_BITS:
        return "end" if value >= END else f"#{value >> OUTPUT_BITS}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{words(key)}: {words(held)}" for key, held in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return f"({' '.join(map(words, value))})"
    if isinstance(value, (set, frozenset)):
        return words(sorted(value))
    return str(value).removeprefix("pecan:job:").removeprefix("pecan:simulated:")


def _fields(value: Any) -> Iterator[str]:
    fields = dataclasses.fields(value)
    # A field that is always given by its name is told with it.
    first = next((one for one in fields if not one.kw_only), None)
    if first is not None:
        yield words(getattr(value, first.name))
    for one in fields:
        held = getattr(value, one.name)
        usual = one.default_factory() if callable(one.default_factory) else one.default
        if one is not first and one.repr and held != usual and held not in ((), "", 0):
            yield f"{one.name} {words(held)}"
