"""Passes of a repeat without an end of which no trainer has had anything: too many of them end the job."""

from __future__ import annotations

from collections.abc import Iterator

from pecan_ray.errors import PlanError
from pecan_ray.job.core import JobCore
from pecan_ray.job.instructions import Instructions
from pecan_ray.job.ledger import Ledger
from pecan_ray.plan.empty_pass import EmptyPasses, EmptyPassTracker


# Why it is an error: docs/decisions/randomness-and-passes.md#105-each-pass-of-a-repeat-runs-anew
class EmptyPassWatchdog:
    """Watches a job whose epochs have passes without end; it is asked after each event.

    A pass is over when all of its splits were given out and every position of them is dealt with: delivered, or of
    elements that yield nothing.  So neither a slow worker nor a batch on its way makes it look empty.
    """

    def __init__(self, ledger: Ledger, empty: EmptyPasses | None, *, continues: bool) -> None:
        """`empty`: what is said then; None: no passes without end are dealt out.

        `continues`: a run before this one may have delivered some of the first epoch.
        """
        self._ledger, self._empty_pass_state = ledger, None if empty is None else EmptyPassTracker.begin(empty)
        self._epoch, self._counts, self._workers = ledger.epoch, tuple(ledger.counts), set(ledger.workers)
        if continues and self._empty_pass_state is not None:
            self._empty_pass_state = self._empty_pass_state.behind(max(self._at(), default=0))

    def check(self, job: JobCore, now: float, done: Instructions) -> None:
        """End a job of which too many passes one after the other have yielded nothing."""
        if (error := self.too_many()) is not None:
            job.fail(error, now, done)

    def too_many(self) -> PlanError | None:
        """Return the error that ends the job, if there have been too many."""
        ledger, vain = self._ledger, self._empty_pass_state
        if vain is None:
            return None
        counts, workers = tuple(ledger.counts), set(ledger.workers)
        if ledger.epoch != self._epoch:
            vain = EmptyPassTracker.begin(vain.empty)
        # A batch has come, so the passes up to those at hand were not empty.
        elif counts != self._counts:
            vain = vain.behind(max(self._at(), default=0))
        if not workers >= self._workers:
            vain = vain.with_tolerance()  # something of theirs may be left out that is no fault of the pipeline
        self._empty_pass_state, self._epoch, self._counts, self._workers = vain, ledger.epoch, counts, workers
        at = min(self._at(), default=0)
        if ledger.finished or vain.too_many(at) is None:  # mostly so: what is held is not looked at
            return None
        return vain.too_many(min((at, *self._started_passes())))

    def _at(self) -> Iterator[int]:
        """Yield the passes at which queues are that have splits."""
        return (queue.pass_index for queue in self._ledger.queues.all_queues() if queue.splits)

    def _started_passes(self) -> Iterator[int]:
        """Yield the passes of what was begun, or came back, and is not dealt with."""
        ledger = self._ledger
        for queue in ledger.queues.all_queues():
            yield from (rest.pass_index for rest in queue.remaining_parts())
            yield from (queue.pass_index for _ in queue.cursor().missing)
        for state in ledger.workers.values():
            yield from (held.lease.pass_index for held in state.pending_leases.values())
            yield from (lease.pass_index for lease in state.group)
        for (_, pass_index, _), _ in (*ledger.leftovers.positions(), *ledger.fatal_elements.positions()):
            yield pass_index
