"""Rows that two workers make: all others wait for them, and the worker that was given them is slow or silent.

The rows belong to the second worker from then on: they are taken off the first one, and given out again before anything
new.  The first worker does not know, and may bring them all the same.  The trainer takes whichever batch comes first,
and drops the other one (`pecan_ray.job.row_sequence`).  What it has acknowledged belongs to nobody, whoever brought it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from pecan_ray.job.lease_rows import has_row
from pecan_ray.job.lease_sizes import elements_in
from pecan_ray.job.pending_leases import LeaseSpans, WorkerLeaseState, within, without
from pecan_ray.job.queues import Queues
from pecan_ray.job.row_runs import RowRuns
from pecan_ray.plan.splits import Lease, LeaseKey
from pecan_ray.sampling.spans import Spans


# Why only here: docs/decisions/order-and-rows.md#152-a-second-worker-for-the-next-rows, and
# docs/decisions/exactly-once.md#73-a-split-is-with-one-worker for all other data.
class SecondWorkers:
    """Which rows of an epoch were given to a second worker."""

    def __init__(self, queues: Queues, runs: RowRuns, batch_size: int) -> None:
        self._queues, self._runs, self._batch_size = queues, runs, batch_size
        self._twice: dict[LeaseKey, Spans] = {}
        self._dropped: dict[LeaseKey, Spans] = {}
        """Rows that fill no batch, and with which a worker has ended."""
        self._late = ""
        """The worker whose rows another one was given last."""
        self._use: bool | None = None
        """Whether that other one was faster; None: neither has brought the rows yet."""

    def take_use(self) -> bool | None:
        """Tell, once, whether a second worker was faster than the late one; None: that is not known."""
        use, self._use = self._use, None
        return use

    def begin_epoch(self) -> None:
        """Forget the last epoch."""
        self._twice.clear()
        self._dropped.clear()

    def help(self, workers: Mapping[str, WorkerLeaseState], row: int) -> str:
        """Let another worker make what the one holds that has a row; return the name of that, if there is any.

        No row is given to a third worker: an element that never ends would hold up all of them.  Nor are rows of
        leftovers: they are no batch of the sequence.
        """
        if (late := self._next_leases(workers, row)) is None:
            # Nobody has the row, because it is for ranks of a node whose workers do not ask for it.
            self._runs.open_before(row + 1)
            return ""
        name, leases = late
        self._late, self._use = name, None
        self._reassign_leases(workers[name], leases)
        return name

    def rows_with(self, workers: Mapping[str, WorkerLeaseState], row: int) -> int:
        """Return how many rows the worker has that has the next one, as far as it brings them together: a batch."""
        late, size = self._next_leases(workers, row), self._batch_size
        return size if late is None else min(size, sum(elements_in(lease) or 0 for lease in late[1]))

    def _next_leases(self, workers: Mapping[str, WorkerLeaseState], row: int) -> tuple[str, list[Lease]] | None:
        """Return the worker that has the next row, and all that a second one could make for it."""
        living = {name: state for name, state in workers.items() if state.unresolved is None and not state.grouped}
        for name, state in living.items() if len(living) > 1 else ():
            mine = without([held.rest() for held in state.pending_leases.values()], self._twice)
            if any(self._is_next(lease, row) for lease in mine):
                return name, mine
        return None

    def _is_next(self, lease: Lease, row: int) -> bool:
        """Tell whether a lease holds what comes next: a row, or where rows are joined what lies behind their place."""
        return self._runs.is_next(lease.key, lease.spans) if self._runs.joins else has_row(lease, row)

    def replace(self, state: WorkerLeaseState) -> None:
        """Let others make all that a worker was given in its assignment, of which it cannot make a part."""
        leases = [held.rest() for held in state.pending_leases.values()]
        self._reassign_leases(state, without(leases, state.earlier))

    def _reassign_leases(self, state: WorkerLeaseState, leases: list[Lease]) -> None:
        for lease in leases:
            state.revoke_lease(lease)
            twice = self._twice.setdefault(lease.key, Spans())
            for span in lease.spans:
                twice.add(*span)
        self._runs.put_back(leases)

    def drops(self, spans: LeaseSpans) -> bool:
        """Note that a worker drops rows; tell whether another one, which was given them too, has done so before."""
        again = False
        for key, done in spans.items():
            dropped = self._dropped.setdefault(key, Spans())
            for span in done:
                again = again or dropped.contains_all(*span)
                dropped.add(*span)
        return again

    def delivered(self, workers: Mapping[str, WorkerLeaseState], by: str, spans: LeaseSpans) -> None:
        """Note that positions are delivered, whoever they belong to."""
        if not self._twice:
            return
        if any(self._are_twice(key, *span) for key, done in spans.items() for span in done):
            self._use = by != self._late
        for name, state in workers.items():
            if name != by:
                state.remove_positions(spans)
        queue = self._queues.common[0]
        # The late worker may bring rows that still wait for a second one: then nobody has to make them.
        queue.returned = deque(without(queue.returned, spans))

    def _are_twice(self, key: LeaseKey, start: int, stop: int) -> bool:
        """Tell whether positions that came were given to two workers, at their beginning or at their end."""
        twice = self._twice.get(key)
        return twice is not None and (start in twice or stop - 1 in twice)

    def keep(self, workers: Mapping[str, WorkerLeaseState]) -> None:
        """Let what no second worker has taken belong to the first one again: the order is given up.

        From now on batches of the same rows would not hold the same ones any more.
        """
        queue = self._queues.common[0]
        for state in workers.values():
            if state.unresolved is None and state.stale_spans:
                for lease in queue.returned:
                    for mine in within([lease], state.stale_spans):
                        state.assign(replace(mine, row=lease.row))
                queue.returned = deque(without(queue.returned, state.stale_spans))
