"""How a pipe, or a room, is divided among demands: in turn, or evenly.  Arrays in, arrays out.

No sum exceeds its limit, also where rounding would have it so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pecan_ray.cache.store_model import Numbers

LEAST_SHARE = 0.02
"""Of a pipe that is given in turn, what is dealt out evenly before, so that nobody is told to stop."""
# A factor just below 1: floats that were scaled to a limit may add up to a little more than it.
ROUNDING = 1e-12


def within(given: Numbers, limit: float) -> Numbers:
    """Return what was given, less what rounding has given too much."""
    total = sum(given.tolist())
    return given if total <= limit else given * ((1 - ROUNDING) * limit / total)


def in_order(demand: Numbers, order: NDArray[np.intp], limit: float) -> Numbers:
    """Give each all that it wants, one after the other, until nothing is left."""
    wanted = demand[order]
    given = np.empty_like(demand)
    given[order] = np.clip(limit - (np.cumsum(wanted) - wanted), 0.0, wanted)
    return within(given, limit)


def in_turn(demand: Numbers, rank: NDArray[np.generic], limit: float) -> Numbers:
    """Give each all that it wants, in ascending order of rank; those of one rank share evenly what is left for them."""
    _, group = np.unique(rank, return_inverse=True)
    wanted = np.bincount(group, weights=demand)
    before = np.cumsum(wanted) - wanted
    given = np.where(before[group] < limit, demand, 0.0)
    short = (before < limit) & (before + wanted > limit)
    for number in np.flatnonzero(short):
        mine = group == number
        given[mine] = evenly(demand[mine], limit - before[number])
    return within(given, limit)


def evenly(demand: Numbers, limit: float, weight: Numbers | None = None) -> Numbers:
    """Give each the same (times its weight), but nobody more than it wants: max-min fair."""
    if demand.sum() <= limit:
        return within(demand, limit)
    share = np.ones_like(demand) if weight is None else weight
    full_at = np.divide(demand, share, out=np.zeros_like(demand), where=share > 0)
    order = np.argsort(full_at, kind="stable")
    wanted, shares = demand[order], share[order]
    # In the order in which they would be full: from the first one on that is not, all are cut off at one
    # level.
    left = limit - (np.cumsum(wanted) - wanted)
    level = np.divide(left, np.cumsum(shares[::-1])[::-1], out=np.full_like(left, np.inf), where=shares > 0)
    first = int(np.argmax(level <= full_at[order]))
    return within(np.minimum(demand, level[first] * share), limit)


def in_turn_but_some_for_all(demand: Numbers, rank: NDArray[np.generic], limit: float) -> Numbers:
    """Give in turn what is left after a small share that is dealt out evenly."""
    # Decision 42: a job that is told to stop shows no change of its speed, so nobody is given nothing.
    least = np.minimum(demand, LEAST_SHARE * limit / max(len(demand), 1))
    return within(least + in_turn(demand - least, rank, limit - float(least.sum())), limit)
