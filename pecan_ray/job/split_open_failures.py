"""Splits that a worker cannot open: another one may, on whose node the file is or which is allowed to read it.

Such a split goes back into its queue, barred for that worker.  If no living worker is left that could try it, it is
left out.  A worker that has opened nothing, and could not open several splits that others have read, is taken out:
what it is given costs time only.

Where the order of data tells on the result, or every worker has all of it, a split is left out at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pecan_ray.job.core import JobCore
from pecan_ray.job.instructions import Instructions, Log
from pecan_ray.job.lease_sizes import elements_in
from pecan_ray.job.messages import LeftOutElement, SplitOpenFailure
from pecan_ray.job.pending_leases import WorkerLeaseState
from pecan_ray.job.worker_table import WorkerRecord
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, LeaseKey, Split
from pecan_ray.sampling.spans import Span, Spans

MOST_UNOPENED = 3
"""A worker that has opened nothing is taken out when others have read so many splits that it could not open."""


PLACE_S = 60.0
"""Seconds that a split waits for a worker that has no place yet; then it is left out, if nobody else can open it."""


@dataclass
class _Lengths:
    """How many elements splits of one source hold for a byte (or what else it counts)."""

    elements: int = 0
    size: int = 0

    def estimated(self, split: Split) -> int | None:
        """Return about how many elements a split holds; None where nothing tells."""
        if split.stop is None or not self.size:
            return None
        return max(1, round((split.stop - split.start) * self.elements / self.size))


@dataclass
class _FailedSplit:
    """A split that waits for a worker that can open it."""

    error: LeftOutElement
    """What is told where no worker can open it."""
    lease: Lease
    """What this worker was given."""
    since: float
    """When the last worker was there that had not tried."""
    workers: set[str] = field(default_factory=set)
    """Those that could not."""


class LeaveOut(Protocol):
    """Counts elements that were left out, as `JobRequests.leave_out`."""

    def __call__(
        self, elements: tuple[LeftOutElement, ...], now: float, done: Instructions, *, keep: bool = False
    ) -> None:
        """Count them; `keep`: no trainer has them, and one is to be told of them."""
        ...


# Why nodes are not barred: docs/decisions/faults-and-silence.md#98-splits-that-a-worker-cannot-open
class SplitOpenFailures:
    """The part of a job that deals with splits that cannot be opened."""

    def __init__(self, job: JobCore, leave_out: LeaveOut) -> None:
        """`leave_out`: counts elements that nobody can open."""
        self._job, self._ledger, self._leave_out_elements = job, job.ledger, leave_out
        self._workers_to_drain: list[WorkerRecord] = []
        self._waiting: dict[LeaseKey, _FailedSplit] = {}
        """Of the epoch at hand."""
        self._epoch = -1
        self._opened: set[str] = set()
        """Workers that have read something."""
        self._failed_reads: Counter[str] = Counter()
        """How many splits that others have read each worker could not open."""
        self._lengths: dict[int, _Lengths] = {}

    def read(self, worker: str, key: LeaseKey, elements: int, now: float, done: Instructions) -> None:
        """Note that a worker has read a split to its end."""
        if not elements:
            return
        branch, _, index = key
        self._opened.add(worker)
        split = self._ledger.queues.listings[branch][index]
        if split.stop is not None:
            known = self._lengths.setdefault(branch, _Lengths())
            known.elements, known.size = known.elements + elements, known.size + split.stop - split.start
        rejected = self._waiting.pop(key, None) if self._epoch == self._ledger.epoch else None
        # Sorted, because a set has another order in another process, and a replay must do the same (decision 37).
        for other in () if rejected is None else sorted(rejected.workers - self._opened):
            self._failed_reads[other] += 1
            # Equal and not more, so that a worker is taken out once.
            if self._failed_reads[other] == MOST_UNOPENED and rejected is not None:
                self._take_out(other, rejected.error, now, done)

    def take_back(
        self, worker: str, epoch: int, split_open_failures: Iterable[SplitOpenFailure], now: float, done: Instructions
    ) -> None:
        """Take splits back that a worker cannot open: others may have them, or they are left out."""
        if epoch != self._ledger.epoch:
            return
        if epoch != self._epoch:
            self._epoch = epoch
            self._waiting.clear()
        for one in split_open_failures:
            state = self._ledger.workers.get(worker)
            # It was given to others meanwhile, or told before: what a worker does not hold is not
            # its own to give back.
            if state is None or state.unresolved is not None:
                continue
            if one.key not in state.pending_leases:
                if self._ledger.runs.joins:  # it drops all else that it makes in this assignment
                    self._ledger.seconds.replace(state)
                    self._ledger.changes += 1
                continue
            lease = replace(state.pending_leases[one.key].lease, spans=one.spans)
            rejected = self._waiting.setdefault(one.key, _FailedSplit(self._named(worker, one), lease, now))
            rejected.workers.add(worker)
            if self._ledger.runs.joins:
                self._reject_in_order(worker, state, one.key)
                continue
            # Decision 135: numbered rows are given up if one worker cannot open what others may.
            self._ledger.runs.drop_order(f"{worker} cannot open {one.error.where}, which is left to others")
            if self._can_continue and self._may_try(rejected, now):
                self._ledger.queues.bar(worker, one.key)
                self._deliver(state, one)
                self._ledger.changes += 1
            else:
                del self._waiting[one.key]
                self._ledger.consumed(worker, epoch, {one.key: one.spans})
                self._leave_out(rejected, [lease], now, done)

    def _reject_in_order(self, worker: str, state: WorkerLeaseState, key: LeaseKey) -> None:
        """Let others have a split and all else of its run, which comes before anything new; `settle` leaves it out."""
        self._ledger.queues.bar(worker, key)
        self._ledger.seconds.replace(state)
        self._ledger.changes += 1

    def _deliver(self, state: WorkerLeaseState, one: SplitOpenFailure) -> None:
        """Let others have a split; one of a group goes with the group, when the worker's assignment ends."""
        if state.rank is not None:
            state.rejected[one.key] = one.spans
            return
        for lease, spans in state.take_back({one.key: one.spans}):
            rest = replace(lease, spans=tuple(spans))
            if state.suspicious:
                self._ledger.fatal_elements.put_back([rest])
            else:
                self._ledger.queues.put_back(rest)

    def settle(self, now: float, done: Instructions) -> None:
        """Leave out what no worker that is there can open any more."""
        if not self._waiting or self._epoch != self._ledger.epoch:
            return
        worker = next(iter(self._living), None)
        for key, rejected in list(self._waiting.items()):
            if not rejected.workers.issuperset(self._living):
                # A worker that runs may have it. If that is lost, those that come after it have their time, too.
                rejected.since = now
            if worker is None or self._may_try(rejected, now):
                continue
            # Of none somebody has it.
            if left := self._left_out(worker, key, rejected):
                del self._waiting[key]
                self._leave_out(rejected, left, now, done)

    def _left_out(self, worker: str, key: LeaseKey, rejected: _FailedSplit) -> Sequence[Lease]:
        """Let what waits of a split yield nothing; return it, where rows come in order what was told."""
        ledger = self._ledger
        if ledger.runs.joins and ledger.queues.has_returned(key):
            ledger.runs.skipped_rows.leave_out(key)
            ledger.changes += 1
            return [rejected.lease]
        waited = ledger.fatal_elements.take_out(key)
        while not ledger.runs.joins and (lease := ledger.queues.take_returned_lease(key)) is not None:
            waited.append(lease)  # several times, because it may have been cut
        for lease in waited:
            # The ledger takes as dealt with only what a worker holds, so any living one stands in.
            ledger.workers[worker].assign(lease)
            ledger.consumed(worker, self._epoch, {key: lease.spans})
        return waited

    def _leave_out(self, rejected: _FailedSplit, left: Sequence[Lease], now: float, done: Instructions) -> None:
        """Count what is left of a split that nobody can open, by how much it holds as far as others tell."""
        error, split, branch = rejected.error, rejected.lease.split, rejected.lease.branch
        known = self._lengths.get(branch)
        elements = None if known is None else known.estimated(split)
        # Since it was told, a worker that can open it may have delivered elements of it, or died of one.
        if split.counted is not None:
            error = replace(error, elements=sum(elements_in(lease) or 0 for lease in left))
        elif error.open_end and elements is not None:
            elements = max(0, elements - _missing_elements([(0, END)], left))
            message = f"{error.error} About {elements} elements are left out, estimated by its bytes."
            error = replace(error, error=message, elements=elements, estimated=True, open_end=False)
        elif dealt_with := min(error.elements, _missing_elements(rejected.lease.spans, left)):
            message = f"{error.error} Of these {dealt_with} came before, or are counted."
            error = replace(error, error=message, elements=error.elements - dealt_with)
        self._leave_out_elements((error,), now, done, keep=True)

    def _take_out(self, name: str, error: LeftOutElement, now: float, done: Instructions) -> None:
        """Let a worker go that is of no use, and ask for none in its place."""
        worker_table = self._job.worker_table
        worker = worker_table.workers.get(name)
        if worker is None or worker.draining:
            return
        message = (
            f"{name} on node {worker.node} is taken out: it can open none of the splits that other workers read; the "
            f"last one, {error.where}: {error.error} Files must lie where the nodes of all workers see them; "
            "Workers(remote=0) keeps to the trainers' nodes"
        )
        self._job.tell("worker", message, now)
        done.append(Log("warning", message))
        # Another worker in the same place would see no more of the files.
        worker_table.taken_out[worker.host] += 1
        self._workers_to_drain.append(worker)

    def take_workers_to_drain(self) -> list[WorkerRecord]:
        """Return the workers that are to be let go since this was asked last."""
        useless, self._workers_to_drain = self._workers_to_drain, []
        return useless

    @property
    def _can_continue(self) -> bool:
        """Return whether a split may be read later, and by another worker."""
        shape = self._ledger.shape
        # Decision 98: elsewhere a split cannot change its worker, and is left out at once.
        return shape.sharding != "off" and not (shape.one_at_a_time or shape.runs_whole or shape.in_order)

    @property
    def _living(self) -> list[str]:
        return [name for name, state in self._ledger.workers.items() if state.unresolved is None]

    def _may_try(self, rejected: _FailedSplit, now: float) -> bool:
        """Tell whether a worker that runs, or may come soon, has not tried to open a split."""
        patient = now - rejected.since < PLACE_S
        worker_table = self._job.worker_table.workers.values()
        # Decision 98: a worker without a place may come late or never, so patience with it ends.
        coming = any(not (one.running or one.draining) and (patient or not one.pending.reason) for one in worker_table)
        # Decision 237: in place of lost ones others come later.
        later = patient and self._job.worker_table.losses.starts_later
        return coming or later or not rejected.workers.issuperset(self._living)

    def waiting(self) -> dict[Hashable, str]:
        """Return what is waited for: workers to come, which may open what the ones that run could not."""
        living = self._living
        rejected = [one.error for one in self._waiting.values() if living and one.workers.issuperset(living)]
        if not rejected or self._epoch != self._ledger.epoch:
            return {}
        message = (
            f"{len(rejected)} split(s) that no worker that runs can open wait, {{seconds}} so far, for workers that "
            f"are yet to come: {rejected[0].where}: {rejected[0].error}"
        )
        return {"unopened": message}

    def _named(self, worker: str, one: SplitOpenFailure) -> LeftOutElement:
        """Return what a worker could not open, with its node."""
        node = self._job.worker_table.workers[worker].node
        return replace(one.error, error=f"{one.error.error} ({worker} on node {node} could not open it)")


def _missing_elements(spans: Iterable[Span], left: Iterable[Lease]) -> int:
    """Count the whole elements of some positions of which nothing is left."""
    missing = Spans(spans)
    for lease in left:
        for start, stop in lease.spans:
            missing.remove(start, stop)
    known = ((start, stop) for start, stop in missing if stop != END)
    return sum(max(0, (stop >> OUTPUT_BITS) - -(-start >> OUTPUT_BITS)) for start, stop in known)
