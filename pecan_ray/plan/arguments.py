"""Arguments of operators, refused early where they make no sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pecan_ray.errors import PlanError


def a_function(what: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function; raises `PlanError` for anything else.  `what` names the argument."""
    if not callable(fn):
        raise PlanError(f"{what} needs a function, but got {type(fn).__name__}.")
    return fn


def positive(what: str, value: int) -> int:
    """Return a whole number from 1 on; raises `PlanError` for anything else.  `what` names the argument."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PlanError(f"{what} needs a whole number >= 1, but got {value!r}.")
    return value


def natural(what: str, value: int) -> int:
    """Return a whole number from 0 on; raises `PlanError` for anything else.  `what` names the argument."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise PlanError(f"{what} needs a whole number >= 0, but got {value!r}.")
    return value
