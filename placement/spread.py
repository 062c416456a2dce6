"""On which trainer's host each local worker runs."""

from __future__ import annotations

from collections.abc import Sequence


def spread_by_power(local: int, power: Sequence[float]) -> tuple[int, ...]:
    """Deal local workers out to unlike hosts: each to the one with the most CPU power for every worker it then has.

    `power` is any measure that is proportional, CPUs for instance.  Hosts of equal power get workers in turn (Pecan
    §5.1).
    """
    counts = [0] * len(power)
    for _ in range(local):
        host = max(range(len(power)), key=lambda place: (power[place] / (counts[place] + 1), -place))
        counts[host] += 1
    return tuple(counts)
