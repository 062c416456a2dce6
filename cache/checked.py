"""Numbers that are refused by name where they cannot be what they are given for."""

from __future__ import annotations

import math
from numbers import Integral, Real

from pecan_ray.errors import PlanError


def checked_count(name: str, value: object, *, least: int = 1) -> int:
    """Return a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise PlanError(f"{name} must be a whole number >= {least}, but got {value!r}.")
    return int(value)


def checked_amount(name: str, value: object, *, positive: bool = False, endless: bool = False) -> float:
    """Return a number >= 0, or > 0 if `positive`, that is finite unless `endless`."""
    # NaN fails every comparison below, so all that is no number is refused in one place.
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if (number > 0 or (number == 0 and not positive)) and (endless or number < math.inf):
        return number
    raise PlanError(
        f"{name} must be a {'' if endless else 'finite '}number {'>' if positive else '>='} 0, but got {value!r}."
    )


def checked_share(name: str, value: object) -> float:
    """Return a number from 0 to 1."""
    if not checked_amount(name, value) <= 1:
        raise PlanError(f"{name} must be a share from 0 to 1, but got {value!r}.")
    return checked_amount(name, value)
