"""Which nonsense is refused in which field of a value, for tables that are written down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

from pecan_ray.errors import PlanError

NONSENSE: tuple[Any, ...] = (-1, 0, 1.5, math.nan, math.inf, True, "x", "", None)


def refused_fields(values: Iterable[Any]) -> Iterator[str]:
    """Yield for each field with a number or a text what is refused there, and what is said of the first of it."""
    for value in values:
        names = [field.name for field in fields(value)]
        for name in (one for one in names if isinstance(getattr(value, one), (float, str, int, type(None)))):
            said = {repr(wrong): refusal(partial(replace, value, **{name: wrong})) for wrong in NONSENSE}
            found = {wrong: text for wrong, text in said.items() if text}
            if found:
                kind, message = type(value).__name__, next(iter(found.values()))
                yield f"{kind}.{name} refuses {', '.join(found)}: {message}"


def refusal(call: Callable[[], object]) -> str:
    """Return what is said of a call; empty where it is not refused."""
    try:
        call()
    except (PlanError, TypeError) as error:
        return str(error) if isinstance(error, PlanError) else "TypeError"
    return ""
