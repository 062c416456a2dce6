"""Workers that make the rows that come next, where whole splits are under way, and one that makes way for them.

A whole split, such as a compressed file, has any number of rows, and one worker makes all of them.  Several are under
way at a time, so a trainer gets rows long before their turn.  It takes these only while it has room for them
(`pecan_ray.job.trainer`); their makers wait in the middle of their splits meanwhile.  The makers of the next rows never
wait for room.

So the next rows need a maker that is not one of those that wait.  Where all workers are, because one was lost or let go
and none has come in its place, the one with the last rows is let go: another one takes its place.
"""

from __future__ import annotations

from pecan_ray.job.blocks import PLACE_BITS
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.messages import NextMakers
from pecan_ray.job.pending_leases import WorkerLeaseState
from pecan_ray.plan.splits import Lease, LeaseKey
from pecan_ray.sampling.spans import Spans

BLOCKED_S = 2.0
"""Nobody has been able to make the next rows for so long before a worker makes way;"""
COMING_S = 20.0
"""for so long, if a worker is being started, which could."""


# Why nothing else bounds whole splits: docs/decisions/order-and-rows.md#234-whole-splits
def next_makers(ledger: Ledger) -> NextMakers | None:
    """Return whose rows may be waited for, where whole splits are under way; None: nobody waits for room."""
    if not (ledger.runs.joins and ledger.queues.listings[0].has_whole):
        return None
    workers = tuple(name for name, state in ledger.workers.items() if _never_waits(state, ledger))
    return NextMakers(ledger.runs.place_in_turn >> PLACE_BITS, workers)


def _never_waits(state: WorkerLeaseState, ledger: Ledger) -> bool:
    # What a worker has finished that drains waits for its turn elsewhere, because its process is about to end.
    if state.unresolved is not None or _makes_next(state, ledger):
        return True
    # What is given out of other splits is bounded by the window.  A worker that has nothing may be given a whole split
    # before the trainer hears of it.
    return bool(_at_hand(state)) and not _has_whole(state, ledger)


def _at_hand(state: WorkerLeaseState) -> list[tuple[LeaseKey, Spans]]:
    """Return what a worker has, and what was taken off it while it was late: it works on that all the same."""
    return [*((key, held.missing) for key, held in state.pending_leases.items()), *state.stale_spans.items()]


def _makes_next(state: WorkerLeaseState, ledger: Ledger) -> bool:
    return any(ledger.runs.is_next(key, spans) for key, spans in _at_hand(state))


def _has_whole(state: WorkerLeaseState, ledger: Ledger) -> bool:
    return any(ledger.queues.listings[0][index].whole for (_, _, index), _ in _at_hand(state))


class NextMaker:
    """For how long nobody has been able to make the next rows."""

    def __init__(self) -> None:
        self._since: float | None = None

    def makes_way(self, ledger: Ledger, now: float, *, coming: bool) -> str:
        """Return the worker that shall make way for one that makes the next rows; empty: none, now.

        `coming`: a worker is being started.
        """
        lease = _without_maker(ledger)
        if lease is None:
            self._since = None
            return ""
        self._since = now if self._since is None else self._since
        if now - self._since < (COMING_S if coming else BLOCKED_S):
            return ""
        self._since = None
        # One that could not open the split leaves its place to another one that cannot.
        able = {name: state for name, state in ledger.workers.items() if not _is_barred(name, lease, ledger)}
        waiting = [name for name, state in able.items() if state.unresolved is None and _has_whole(state, ledger)]
        return max(waiting, key=lambda name: _first_split(ledger.workers[name]), default="")


def _without_maker(ledger: Ledger) -> Lease | None:
    """Return the lease of the next rows, if no worker will ask for it or makes it; None: there is no such."""
    if next_makers(ledger) is None or ledger.finished:
        return None
    lease = next(iter(ledger.queues.common[0].returned), None)
    if lease is None or not ledger.runs.is_next(lease.key, lease.spans):
        return None
    if any(_may_make(name, state, lease, ledger) for name, state in ledger.workers.items()):
        return None
    return lease


def _may_make(name: str, state: WorkerLeaseState, lease: Lease, ledger: Ledger) -> bool:
    if state.unresolved is not None or _makes_next(state, ledger):
        return True  # the data of a worker that is gone may have the next rows in it
    # One that works and has nothing works on what others have brought, perhaps without room.
    waits = _has_whole(state, ledger) or (state.working and not _at_hand(state))
    return not (waits or _is_barred(name, lease, ledger))


def _is_barred(name: str, lease: Lease, ledger: Ledger) -> bool:
    return lease.key in ledger.queues.excluded(name) and not ledger.runs.skipped_rows.has(lease)


def _first_split(state: WorkerLeaseState) -> LeaseKey:
    return min(key for key, _ in _at_hand(state))
