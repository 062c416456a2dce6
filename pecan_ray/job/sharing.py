"""Which workers of shared nodes are a job's: it hears what others bid, deals for itself, and obeys its own share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pecan_ray.job.messages import Placement
from pecan_ray.placement.pool import Demand, shares

ROUND_S = 5.0
"""Seconds after which jobs ask each other again."""
STALE_S = 3 * ROUND_S
"""What was heard so long ago does not count any more."""


@dataclass(frozen=True)
class PoolBid:
    """What one job bids for workers of one kind."""

    placement: Placement
    nodes: tuple[str, ...]
    """Where these may run: sorted, and the same for all jobs that share them."""
    demand: Demand


# Why there is no arbiter: docs/decisions/placement.md#26-one-pool-for-many-jobs
class Sharing:
    """What was heard of other jobs, and the shares that follow from it."""

    def __init__(self) -> None:
        self.nodes: dict[Placement, tuple[str, ...]] = {}
        """Where the job's own workers of each kind may run."""
        self.applied_shares: dict[Placement, int | None] = {}
        """Most workers of each kind that the job has beside others that bid, as was heard last; None: not bounded."""
        self._cpus: dict[str, float] = {}
        self._received: dict[tuple[str, Placement], tuple[PoolBid, float]] = {}

    def handle_update(
        self,
        pool_requests: Iterable[PoolBid],
        nodes: Mapping[Placement, tuple[str, ...]],
        cpus: Mapping[str, float],
        now: float,
    ) -> None:
        """Take over what other jobs bid, and the nodes with their CPUs as they are now."""
        self.nodes, self._cpus = dict(nodes), dict(cpus)
        for bid in pool_requests:
            self._received[bid.demand.job, bid.placement] = bid, now
        for key in [key for key, (_, heard) in self._received.items() if now - heard > STALE_S]:
            del self._received[key]

    def forget(self, jobs: Iterable[str]) -> None:
        """Drop what jobs have bid that are gone."""
        gone = set(jobs)
        for key in [key for key in self._received if key[0] in gone]:
            del self._received[key]

    def shares(self, mine: Iterable[PoolBid]) -> dict[Placement, int | None]:
        """Return the most workers of each kind that the job may have; None where nothing bounds it."""
        found: dict[Placement, int | None] = {}
        for own in mine:
            # Decision 26: sets of nodes that overlap in part are not dealt out.
            rivals = [bid for bid, _ in self._received.values() if bid.nodes == own.nodes]
            named = {_name(bid): replace(bid.demand, job=_name(bid)) for bid in (own, *rivals)}
            cpus = sum(self._cpus.get(node, 0.0) for node in own.nodes)
            found[own.placement] = shares(named, cpus)[_name(own)] if rivals else None
        return found


def _name(bid: PoolBid) -> str:
    """Name a bid: one job's own nodes may be another one's remote ones."""
    return f"{bid.demand.job} {bid.placement}"
