"""Does a function decide by the size of its numbers?  "Divide by 255 if anything is above 1" makes a jump somewhere.

A function of an array is asked for the strength (root mean square) of its result at several scales of its input.  Where
that changes by much from one scale to the next, the place is looked for; a jump stays one however near the scales come.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

SCALES = tuple(2.0**power for power in range(-3, 4))
NEAR = 1.001
"""Scales that differ by so little are the same but for a jump."""
JUMP = 4.0
"""Factor by which the strength then changes in a jump."""
COUNTS = 0.05
"""Share of the largest strength that the stronger side of a jump has at least: single values may come or go."""


def jumps(strength: Callable[[float], float]) -> bool:
    """Tell whether the strength of a result jumps at some scale of what it is made of."""
    known = {scale: strength(scale) for scale in SCALES}
    largest = max(known.values())
    for low, high in itertools.pairwise(SCALES):
        if _apart(known[low], known[high], largest) and _jumps_between(strength, low, high, largest):
            return True
    return False


def _jumps_between(strength: Callable[[float], float], low: float, high: float, largest: float) -> bool:
    at_low, at_high = strength(low), strength(high)
    while high > low * NEAR:
        middle = (low * high) ** 0.5
        between = strength(middle)
        if _apart(at_low, between, largest):
            high, at_high = middle, between
        elif _apart(between, at_high, largest):
            low, at_low = middle, between
        else:
            return False
    return True


def _apart(one: float, other: float, largest: float) -> bool:
    weak, strong = sorted((one, other))
    return strong > COUNTS * largest and strong > JUMP * weak
