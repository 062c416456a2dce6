"""Whose batches a worker makes first: those of ranks on its own node, so that their bytes do not cross the network.

Batch n of a sequence is for rank n mod w.  A worker is given the next rows of ranks on its node, and passes over the
rows between them, which wait for workers on the nodes of their ranks.  It takes the oldest row of all instead

- if that row is for a rank on whose node no worker runs, or is open to all workers, because a worker was lost or is
  late with it (decision 152),
- if the next row of its own ranks lies more than half of a window, or 256 batches, behind it: the workers of the other
  node are slower,
- or if its own ranks have no row left in the epoch, and no worker stands by on the node of that row's rank.

So no worker stands by while others have work to leave to it, and the oldest row has a taker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.pending_leases import WorkerLeaseState
from pecan_ray.sampling.spans import Span

MANY_BATCHES = 16
"""A run of more batches is one interval, whomever its batches are for: as many leases, each with its own beginning,
would cost the controller and the worker more than small batches cost the network."""
MAX_BATCHES_AHEAD = 256
"""Batches that a node's workers may be ahead of those of other nodes: the controller looks at all that were passed over
each time it gives out a run, at 20 us each."""


@dataclass(frozen=True)
class OwnRanks:
    """The ranks that a worker serves before all others."""

    ranks: frozenset[int]
    """Those on its node, and those on nodes without a worker."""
    idle: frozenset[int]
    """Of the others, those on whose node a worker stands by."""
    world_size: int
    batch_size: int
    ahead: int
    """Rows of the ranks may be given out so far ahead of the oldest row."""

    def serves(self, row: int) -> bool:
        """Tell whether a row is for one of the ranks."""
        return self._rank(row) in self.ranks

    def stands_by(self, row: int) -> bool:
        """Tell whether a worker on the node of a row's rank has nothing to do."""
        return self._rank(row) in self.idle

    def end_of(self, row: int) -> int:
        """Return the first row behind one that is for other ranks than this one where that is served, and else not."""
        batch, served = row // self.batch_size, self.serves(row)
        while self.serves(batch * self.batch_size) == served:
            batch += 1
        return batch * self.batch_size

    def next_from(self, row: int) -> int:
        """Return the first row from one on that is for one of the ranks."""
        return row if self.serves(row) else self.end_of(row)

    def _rank(self, row: int) -> int:
        return row // self.batch_size % self.world_size


class RankNodes:
    """On which nodes the ranks of a job run."""

    def __init__(self, shape: LedgerShape) -> None:
        self._shape = shape
        self._nodes: dict[int, str] = {}
        self.matter = False
        """Whether workers are given rows of ranks on their nodes first."""

    def put(self, rank: int, node: str) -> None:
        """Note where a rank runs."""
        self._nodes[rank] = node
        several = len(self._nodes) == self._shape.world_size and len(set(self._nodes.values())) > 1
        # Decision 203: of sources that do not seek each node would read everything.
        self.matter = several and self._shape.seeks and self._shape.in_row_order and not self._shape.joined

    def own(self, worker: str, workers: Mapping[str, WorkerLeaseState], window: int) -> OwnRanks | None:
        """Return the ranks that a worker serves first; None: it takes rows as they come."""
        if not self.matter:
            return None
        node = workers[worker].node
        others = [state for state in workers.values() if state.unresolved is None and state.node != node]
        served = self._ranks_on({state.node for state in others})
        if not served or not self._ranks_on({node}):
            return None
        idle = self._ranks_on({state.node for state in others if not state.working})
        own, size = frozenset(self._nodes.keys() - served), self._shape.batch_size
        return OwnRanks(own, idle, self._shape.world_size, size, min(window // 2, MAX_BATCHES_AHEAD * size))

    def _ranks_on(self, nodes: Set[str]) -> frozenset[int]:
        return frozenset(rank for rank, node in self._nodes.items() if node in nodes)


@dataclass(frozen=True)
class RowsToGive:
    """Which rows of an epoch may be given out now."""

    passed: Sequence[Span]
    """Rows that nobody has, before others that were given out, in order."""
    fresh: int
    """The first row behind all that were given out."""
    limit: int
    """Rows may be given out up to here."""
    end: int
    """The row behind the last one of the epoch, as far as that is known."""
    open_before: int
    """All rows before this one are for any worker."""

    @property
    def passed_rows(self) -> int:
        """How many rows nobody has before others that were given out."""
        return sum(end - first for first, end in self.passed)


@dataclass(frozen=True)
class RunBegin:
    """With which row a worker's next run begins."""

    row: int
    own: OwnRanks | None
    """It holds rows of these ranks alone; None: whatever follows."""


def run_begin(rows: RowsToGive, own: OwnRanks | None) -> RunBegin | None:
    """Return with what the next run of a worker begins; None if nothing is for it now."""
    if not rows.passed and rows.fresh >= rows.limit:
        return None
    oldest = rows.passed[0][0] if rows.passed else rows.fresh
    if own is None or oldest < rows.open_before:
        return RunBegin(oldest, None)
    if own.serves(oldest):
        return RunBegin(oldest, own)
    mine = _next_own(rows, own)
    if mine is None:
        return None if own.stands_by(oldest) else RunBegin(oldest, None)
    if mine - oldest > own.ahead:
        return RunBegin(oldest, None)
    return RunBegin(mine, own) if mine < max(rows.fresh, rows.limit) else None


def _next_own(rows: RowsToGive, own: OwnRanks) -> int | None:
    """Return the next row of a worker's own ranks, also if it may not be given out yet; None if there is none."""
    passed = (first for first, _ in rows.passed if own.serves(first))
    if (first := next(passed, None)) is not None:
        return first
    fresh = own.next_from(rows.fresh)
    return fresh if fresh < rows.end else None
