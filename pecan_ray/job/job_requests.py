"""What workers ask of a job: for work and leases, about leftovers; answered at once, or when there is an answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any, Literal

from pecan_ray.errors import ClusterError, OpError
from pecan_ray.job import events
from pecan_ray.job.assign_leases import any_will_do, in_a_batch, peek_splits
from pecan_ray.job.core import JobCore
from pecan_ray.job.empty_pass_watchdog import EmptyPassWatchdog
from pecan_ray.job.error_budget import budget_error
from pecan_ray.job.instructions import Instruction, Log, Response, UseUsersOrder
from pecan_ray.job.lease_sizes import SideBySide
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_shape import Assignment
from pecan_ray.job.messages import (
    AskAssignment,
    AskLeases,
    Assigned,
    EndAssignment,
    EndData,
    LeftOutElement,
    Lookahead,
    NoMoreLeases,
    Reply,
    WorkerQuestion,
)
from pecan_ray.job.split_open_failures import SplitOpenFailures
from pecan_ray.job.worker_calls import WorkerCalls
from pecan_ray.plan.op_sequences import OpOrders
from pecan_ray.plan.splits import Lease, LeaseKey

# Decision 14: a worker that dies gives back up to this much work that it had not begun.
LEAST_LOT_S = 0.5
ALONE_S = 2.0
"""A run of the only worker takes so long, where it ends with what is made of it: nobody waits for its end."""
RUN_S = 0.2
"""A run is so long: others wait for it, and their batches take memory meanwhile."""
CALLS_PER_SECOND = 30.0
"""Calls for leases that a job answers each second: with many workers each asks for more at a time."""
MISSING_SHARE = 4
"""Of what is not at hand, workers that look get so many times less at once: others might bring it."""
MOST_OFFERED = 512
"""Splits that a worker may look at for one lot of leases."""
# Decision 78: of each file at most 1 MiB is fetched, so that at most 24 MiB are read in vain.
MOST_FORESEEN = 24
"""Of the splits that the next epoch begins with, so many are told."""
MOST_LOGGED = 100
"""Bad elements that are told one by one: a log of more is read by nobody."""


class JobRequests:
    """The part of a job that answers workers."""

    def __init__(self, job: JobCore) -> None:
        self._job, self._ledger = job, job.ledger
        self.calls, self.split_open_failures = WorkerCalls(), SplitOpenFailures(job, self.leave_out)
        self._seen_changes = -1
        self._static_distributed = False
        self.ordered = job.spec.ordered
        """The order of operators is known."""
        self._plan_versions: list[tuple[OpOrders, tuple[str, ...]]] = [(job.spec.op_order, ())]
        """The order of operators, and the decoders that take over what follows them, of each version of the plan."""
        self._versions: list[tuple[int, int]] = []
        """The epoch from which on each version of the plan is run, and that version."""
        self._latest_epoch = -1
        """The newest epoch that has begun."""
        self.fallback_reason = ""
        """Why every assignment is of the plan as the user wrote it, which is version 0."""
        self._empty_pass_state = EmptyPassWatchdog(
            job.ledger, job.spec.empty_passes, continues=job.spec.start is not None
        )
        self._left_out = 0
        """Reports of bad elements, each of which may be of many."""
        self.handlers: dict[type, Callable[[Any, float, list[Instruction]], None]] = {
            events.WorkerRequestReceived: self._on_worker_request,
            events.PlanChanged: self._on_plan_changed,
            events.OrderDropped: self._on_order_dropped,
        }

    def _on_order_dropped(self, event: events.OrderDropped, now: float, done: list[Instruction]) -> None:
        self.restore_user_order(event.message, now, done)

    @property
    def idle(self) -> bool:
        """Return whether workers wait for an answer."""
        return len(self.calls) > 0

    def note_order(self, event: events.OrderKnown) -> None:
        """Note the order of operators, unless it was known."""
        if not self.ordered:
            self.ordered = True
            self._plan_versions += [(event.order, event.decoders)] * event.changed
            # Workers have waited for the order (`_assignment`), so their questions are looked at again.
            self._job.placement.op_seconds = event.op_seconds
            self._ledger.changes += 1

    def _on_plan_changed(self, event: events.PlanChanged, now: float, done: list[Instruction]) -> None:
        self._plan_versions.append((event.order, event.decoders))
        if not self.fallback_reason:
            self._job.tell("reorder", f"{event.message}; {self._run_from()}", now)

    def _run_from(self) -> str:
        """Say which epochs run the newest version of the plan."""
        first, end = max(self._latest_epoch + 1, self._ledger.epoch), self._job.spec.shape.end_epoch
        if end is not None and first >= end:
            return "no epoch of this job is left to run it, but later jobs do"
        return f"it is run from epoch {first} on (the first one is 0)"

    def restore_user_order(self, message: str, now: float, done: list[Instruction]) -> None:
        """Let everybody run the plan as the user wrote it from now on."""
        if not self.fallback_reason:
            self.fallback_reason = message
            self._job.tell("reorder", message, now)
            done.append(Log("warning", message))
            done += [UseUsersOrder(name) for name in self._job.worker_table.workers]

    def op_order(self, epoch: int) -> tuple[OpOrders, tuple[str, ...]]:
        """Return the order of operators, and the decoders that take over what follows them, of an epoch.

        They are the newest ones, if nothing of it was given out.
        """
        return self._plan_versions[0 if self.fallback_reason else self._version_of(epoch)]

    def _version_of(self, epoch: int) -> int:
        started = self._versions if epoch <= self._latest_epoch else []
        return next((version for first, version in reversed(started) if first <= epoch), len(self._plan_versions) - 1)

    def _begin_epoch(self, epoch: int) -> None:
        """Note that an epoch has begun, unless it had: it keeps the version that it runs."""
        newest = len(self._plan_versions) - 1
        # Decision 139: within an epoch states name places that belong to one order of operators.
        if epoch > self._latest_epoch:
            self._latest_epoch = epoch
            if not self._versions or self._versions[-1][1] != newest:
                self._versions.append((epoch, newest))

    def distribute_static(self, workers: list[str]) -> None:
        """With static sharding, distribute the splits once all workers have come: then work may begin."""
        if not self._static_distributed:
            self._static_distributed = True
            self._ledger.assign_static(workers)

    def _on_worker_request(self, event: events.WorkerRequestReceived, now: float, done: list[Instruction]) -> None:
        worker = self._job.worker_table.workers.get(event.worker)
        if worker is None:
            done.append(Response(event.worker, event.channel, event.number, stale_worker_reply(event.request)))
            return
        worker.hearing = worker.hearing.heard(now)
        # Decision 22: a question may come twice. Then it is answered as before, and what it tells is not noted again.
        found = self.calls.arrived(event)
        if not isinstance(found, events.WorkerRequestReceived):
            done += [found] if found is not None else []
            return
        # First, because the answer depends on what the question tells: lengths, and splits that cannot be opened.
        self._note(found, now, done)
        reply = self._reply(found)
        if reply is None:
            self.calls.wait(found)
        else:
            done.append(self.calls.response(found, reply))

    def send_responses(self, now: float, done: list[Instruction]) -> None:
        """Answer the questions that have an answer now."""
        self.split_open_failures.settle(now, done)
        self.leave_out(_handle_fatal_elements(self._job, now, done), now, done, keep=True)
        _say_order(self._job, now, done)
        self._empty_pass_state.check(self._job, now, done)
        # An answer changes the ledger, too, so that another question that waits may have an answer then.
        while self._seen_changes != self._ledger.changes:
            self._seen_changes = self._ledger.changes
            # With many workers each change would ask the ledger once for each that waits. If one of those that are
            # alike waits in vain, all do.
            in_vain: set[Hashable] = set()
            for asked in self.calls.waiting():
                request = asked.request
                alike = any_will_do(asked.worker, self._ledger.shape, self._ledger.workers)
                # A worker that is barred from some leases does not wait for the same as the others.
                alike = alike and not self._ledger.queues.bars(asked.worker)
                kind: Hashable = _kind(request, self._ledger, asked.worker)
                if alike and kind in in_vain:
                    continue
                reply = self._reply(asked)
                if reply is not None:
                    done.append(self.calls.response(asked, reply))
                elif alike:
                    in_vain.add(kind)
        # Again, because leases that were just given may have held elements that kill workers.
        self.leave_out(_handle_fatal_elements(self._job, now, done), now, done, keep=True)

    def forget(self, worker: str) -> None:
        """Drop what a worker has asked that is gone."""
        self.calls.forget(worker)

    def _note(self, asked: events.WorkerRequestReceived, now: float, done: list[Instruction]) -> None:
        """Take over what a question tells, once."""
        request, worker = asked.request, asked.worker
        if isinstance(request, AskAssignment):
            asks = self._job.worker_table.workers[worker]
            asks.own_progress = request.progress
            asks.hearing = asks.hearing.heard(now, request.progress.in_line_share)
            if request.progress.fallback_reason:
                self.restore_user_order(request.progress.fallback_reason, now, done)
        elif isinstance(request, EndData):
            self._ledger.consumed(worker, request.epoch, request.spans, left_out=request.rows)
            self.leave_out(request.left_out, now, done, keep=True)
        else:
            self._note_lengths(worker, request.epoch, request.lengths, now, done)
            self.split_open_failures.take_back(worker, request.epoch, request.split_open_failures, now, done)

    def _note_lengths(
        self, worker: str, epoch: int, lengths: Iterable[tuple[LeaseKey, int]], now: float, done: list[Instruction]
    ) -> None:
        for key, elements in lengths:
            self.split_open_failures.read(worker, key, elements, now, done)
            self._ledger.ended(worker, epoch, key, elements)

    def _reply(self, asked: events.WorkerRequestReceived) -> Reply | None:
        request, worker = asked.request, asked.worker
        if isinstance(request, AskAssignment):
            return self._assignment(worker)
        if isinstance(request, AskLeases):
            return self._leases(worker, request)
        if isinstance(request, EndAssignment):
            if self._job.error is not None or request.epoch != self._ledger.epoch:
                return "return"  # it was told that there is no more, and there may be
            return self._ledger.assignment_ended(worker, request.remainder_part, request.batches, request.rows)
        return "noted"

    def _assignment(self, worker: str) -> Assigned | Literal["stop"] | None:
        if self._job.error is not None:
            return "stop"
        if not self.ordered or (self._job.spec.shape.static and not self._static_distributed):
            return None if worker in self._ledger.workers else "stop"
        answer = self._ledger.next_assignment(worker)
        if not isinstance(answer, Assignment):
            return None if answer == "wait" else "stop"
        if answer.behind and self._job.bad.digests(answer.epoch):
            answer = replace(answer, behind=0)  # what was left out is in no batch, so that its elements do not tell
        self._begin_epoch(answer.epoch)
        version = 0 if self.fallback_reason else self._version_of(answer.epoch)
        return Assigned(answer, version, _lot_s(self._job))

    def _leases(self, worker: str, request: AskLeases) -> tuple[Lease, ...] | Lookahead | NoMoreLeases | None:
        leases = self._taken(worker, request)
        # No lease beside others is no end of the branch (decision 148), so nothing of the next epoch is told with it.
        if leases == () and not request.reading:
            return self._next_epoch_splits(worker, request)
        if not leases or not request.look:
            return leases
        most, workers = min(request.look, MOST_OFFERED), self._ledger.workers
        return Lookahead(leases, peek_splits(worker, request.branch, most, workers, self._ledger.queues))

    def _next_epoch_splits(self, worker: str, request: AskLeases) -> tuple[()] | NoMoreLeases:
        """Return what ends a branch: with what is read of object stores next, which may be fetched meanwhile.

        Who looks at what it has at hand begins with that.
        """
        queues, branch = self._ledger.queues, request.branch
        if request.look or self._job.error is not None or request.epoch != self._ledger.epoch:
            return ()
        first = queues.listings[branch][0] if len(queues.listings[branch]) else None
        # Decision 78: this hint is for object stores, whose files are fetched ahead.
        if first is None or "://" not in first.path or worker not in self._ledger.workers:
            return ()
        splits = queues.projected(worker, branch, len(self._ledger.workers), MOST_FORESEEN)
        return NoMoreLeases(tuple(splits)) if splits else ()

    def _taken(self, worker: str, request: AskLeases) -> tuple[Lease, ...] | None:
        if self._job.error is not None or request.epoch != self._ledger.epoch:
            return ()
        state = self._ledger.workers.get(worker)
        if self._ledger.runs.kept and not (state is not None and state.grouped):
            expected = _expected_workers(self._job)
            run = self._ledger.take_run(worker, request.most, expected, waits=request.holds_nothing)
            # Taking a run may show that the order cannot be kept. Then leases follow as in any other job.
            if self._ledger.runs.kept:
                return () if run is None and request.reading else run
        return self._take_leases(worker, request)

    def _take_leases(self, worker: str, request: AskLeases) -> tuple[Lease, ...] | None:
        """Take leases one by one; None if the worker has to wait for some."""
        leases: list[Lease] = []
        wanted = deque(request.local_splits)
        most = _max_leases(request, self._ledger.share(worker, request.branch))
        workers = _expected_workers(self._job)
        # Near the end of an epoch a lot goes on until it fills a batch. A worker that got only the short rest of a
        # split would find nothing to fill its batch with later.
        while len(leases) < most or (leases and in_a_batch(worker, self._ledger.shape, self._ledger.workers)):
            if leases and request.local_splits and not wanted:
                break  # while these are worked on others may bring more
            side = SideBySide(request.streams, request.reading + len(leases), workers)
            answer = self._ledger.take(worker, request.branch, wanted, side)
            if not isinstance(answer, Lease):
                return tuple(leases) if leases or request.reading or answer != "wait" else None
            leases.append(answer)
        return tuple(leases)

    def leave_out(
        self, elements: tuple[LeftOutElement, ...], now: float, done: list[Instruction], *, keep: bool = False
    ) -> None:
        """Count elements that were left out, and end the job where they are too many.

        `keep`: no trainer has them, so that one must be told of them where they are to be kept.
        """
        # What was in hand at the end of an epoch has come, or was dropped: so it is looked at again.
        epoch_ended = self._job.bad.begin_epoch(self._ledger.epoch)
        fresh = self._job.bad.add(elements)
        if keep and self._job.spec.errors.on_error == "quarantine":
            self._job.quarantine.add(fresh)
        for one in fresh:
            self._left_out += 1
            if self._left_out <= MOST_LOGGED:
                done.append(Log("warning", f"left out {one.where} in {one.op}: {one.error}"))
        if (fresh or epoch_ended) and (over := budget_error(self._job)) is not None:
            self._job.fail(over, now, done)


def _say_order(job: JobCore, now: float, done: list[Instruction]) -> None:
    """Say once that rows do not come in order any more; fail where that was promised."""
    if job.ledger.runs.fatal_reason:
        message = f'job {job.spec.name}: order="strict" cannot be kept: {job.ledger.runs.fatal_reason}'
        job.fail(ClusterError(message), now, done)
    if job.ledger.runs.report_given_up_once():
        message = f"rows come as workers finish them from now on, and not in order: {job.ledger.runs.given_up}"
        job.tell("order", message, now)
        done.append(Log("warning", message))


def _expected_workers(job: JobCore) -> int:
    """Return how many workers are there, or are being started, and stay."""
    return sum(not one.draining for one in job.worker_table.workers.values())


def _handle_fatal_elements(job: JobCore, now: float, done: list[Instruction]) -> tuple[LeftOutElement, ...]:
    """Do with elements that kill workers what is done with other bad ones; return what is left out for that."""
    fatal_elements, words = job.ledger.fatal_elements, job.worker_table.losses.exit_reason
    last_words = f"The last one, {words}" if words else "Look at the workers' logs."
    found, fatal_elements.found = fatal_elements.found, []
    left_out = tuple(one.left_out() for one in found)
    raises = bool(found) and job.spec.errors.on_error == "raise"
    if raises:
        first = left_out[0]
        error = OpError(f"{first.where} cannot be processed: {first.error}. {last_words}", op=first.op)
        split, element = found[0].lease.split, found[0].element
        error.fields.update(file=split.file_of(element), element=split.number_of(element))
        job.fail(error, now, done)
    elif found:
        job.ledger.changes += 1
        job.worker_table.losses.delivered()  # workers come further again
        for one in left_out:
            job.tell("bad", f"{one.where} is left out: {one.error}", now)
    if fatal_elements.fatal_reason:
        job.fail(ClusterError(f"job {job.spec.name}: {fatal_elements.fatal_reason}. {last_words}"), now, done)
    return () if raises else left_out


def stale_worker_reply(request: WorkerQuestion) -> Reply:
    """Return what a worker is told that is fenced off: nothing that it says counts."""
    if isinstance(request, AskAssignment):
        return "stop"
    if isinstance(request, AskLeases):
        return ()
    return "return" if isinstance(request, EndAssignment) else "noted"


def _kind(request: WorkerQuestion, ledger: Ledger, worker: str) -> Hashable:
    """Return what workers have in common that wait for the same."""
    # Workers on one node serve the same ranks first.
    state = ledger.workers.get(worker)
    node = state.node if state is not None and ledger.rank_nodes.matter else ""
    return (request.epoch, request.branch, node, request.holds_nothing) if isinstance(request, AskLeases) else node


def _lot_s(job: JobCore) -> float:
    """Return how many seconds of work a worker asks for at a time."""
    runs = job.ledger.runs
    if not runs.kept:
        least_s = LEAST_LOT_S
    elif runs.joins and _expected_workers(job) == 1:
        least_s = ALONE_S
    else:
        least_s = RUN_S
    return max(least_s, len(job.ledger.workers) / CALLS_PER_SECOND)


def _max_leases(request: AskLeases, share: int) -> int:
    """Return how many leases a worker gets at a time, but for those that fill a batch."""
    fewer = MISSING_SHARE if request.look and not request.local_splits else 1
    if request.streams > 1:
        # Half of an even share may be fewer splits than it reads at a time. `Queues.interleave_size` leaves others
        # theirs.
        share = max(share, request.streams - request.reading)
    return min(max(1, request.most // fewer), share)
