"""On which trainer's host each local worker runs."""

from __future__ import annotations

from collections.abc import Sequence

from pecan_ray.errors import PlanError


def spread_local(local: int, clients: int) -> tuple[int, ...]:
    """Deal local workers out to clients in turn (Pecan §5.1), so that no host is crowded before the others."""
    if local < 0 or clients < 1:
        raise PlanError(f"local must be at least 0 and clients at least 1, but got {local} and {clients}.")
    each, rest = divmod(local, clients)
    return tuple(each + (client < rest) for client in range(clients))


def spread_by_power(local: int, power: Sequence[float]) -> tuple[int, ...]:
    """Deal local workers out to unlike hosts: each to the one with the most CPU power for every worker it then has.

    `power` is any measure that is proportional, CPUs for instance.  Equal powers give what `spread_local` gives.
    """
    if local < 0 or not power or not all(0 < value < float("inf") for value in power):
        raise PlanError(f"local must be at least 0 and every power positive, but got {local} and {list(power)}.")
    counts = [0] * len(power)
    for _ in range(local):
        host = max(range(len(power)), key=lambda place: (power[place] / (counts[place] + 1), -place))
        counts[host] += 1
    return tuple(counts)
