"""The worker's side of a job: the assignments and leases that it asks for, and what becomes of what its engine makes.

A worker asks for an *assignment*, takes leases of its epoch until there are none, and asks what becomes of elements
that fill no batch.  Its engine makes batches meanwhile, of which the job learns from the trainers that receive them: a
worker tells the job only of data that yields no batch.  So nothing is lost with a worker.

Whoever drives this performs instructions in their order, and tells what happens (`pecan_ray.job.worker_events`).  A
batch that has no room keeps the engine, and the questions of the channel "run", waiting until there is room for it.
Leases come by channels of their own, a channel for each source, also while a batch waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from pecan_ray.job.assignment_batches import AssignmentBatches
from pecan_ray.job.blocks import RunBlocks
from pecan_ray.job.heartbeat import Heartbeat
from pecan_ray.job.lease_requests import LeaseRequests
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import (
    AskAssignment,
    AskLeases,
    Assigned,
    EndAssignment,
    EndData,
    Reply,
    WorkerQuestion,
)
from pecan_ray.job.worker_channels import RUN, WorkerChannels
from pecan_ray.job.worker_events import (
    AssignmentFinished,
    BatchProduced,
    DrainRequested,
    DropEpochs,
    EndWork,
    EngineBatch,
    EpochsLeft,
    LeaseRequested,
    LoadPlan,
    LocalSplitsFound,
    ProvideLease,
    PutOut,
    Release,
    ReplyReceived,
    RunAssignment,
    SplitOpenFailed,
    SplitRead,
    StopAssignment,
    TellJob,
    WorkerEvent,
    WorkerInstruction,
    WorkerTime,
    WorkStarted,
)
from pecan_ray.job.worker_progress_reporter import WorkerProgressReporter


# Why it never waits: docs/decisions/control-plane.md#157-the-worker-is-a-state-machine
class WorkerState:
    """What one worker knows, and what it does about what happens."""

    def __init__(
        self, shape: LedgerShape, heartbeat: Heartbeat, hung_after_s: float, *, one_sequence: bool = False
    ) -> None:
        """`hung_after_s`: the job is told at once of an element that takes longer.

        `one_sequence`: the engine gives its batches in the order of what it reads.
        """
        self._shape = shape
        self._channels = WorkerChannels(heartbeat)
        # `take` and `zip` may leave some of a whole plan's splits unread.
        self._lease_requests = LeaseRequests(
            self._channels,
            ahead=not shape.serial,
            one_sequence=one_sequence,
            batch_rows=shape.batch_size if shape.one_row_each else None,
        )
        self._updates = WorkerProgressReporter(heartbeat, hung_after_s)
        self._current_assignment: AssignmentBatches | None = None
        self._to_ask: deque[WorkerQuestion] = deque()
        """What waits for the channel of assignments."""
        self._built = (0, 0)
        """The version of the plan that the engine was built for, and behind how many of its batches it begins."""
        self._left = 0
        """Nobody wants anything of epochs before this one."""
        self._has_started = self._draining = self.over = False
        self._handlers: dict[type, Callable[[Any, float, list[WorkerInstruction]], None]] = {
            WorkStarted: self._on_work_started,
            ReplyReceived: self._on_reply_received,
            LeaseRequested: self._on_lease_requested,
            LocalSplitsFound: lambda event, now, done: self._lease_requests.found(
                event.branch, event.indices, now, done
            ),
            SplitRead: lambda event, now, done: self._lease_requests.read(event.key, event.elements),
            SplitOpenFailed: lambda event, now, done: self._lease_requests.fail_open(event.split),
            BatchProduced: self._on_batch_produced,
            AssignmentFinished: self._on_assignment_finished,
            EpochsLeft: self._on_left,
            DrainRequested: self._on_drain_requested,
            WorkerTime: self._on_time,
        }

    @property
    def failing_row(self) -> int | None:
        """The first row that is in no batch, if the engine fails now; None where rows are not numbered."""
        return self._lease_requests.failing_row()

    def handle(self, event: WorkerEvent, now: float) -> list[WorkerInstruction]:
        """Take an event and return what must be done, in this order."""
        done: list[WorkerInstruction] = []
        self._handlers[type(event)](event, now, done)
        # One question at a time on a channel, so that the job meets them in the order in which
        # things happened.
        if self._to_ask and self._channels.is_free(RUN):
            done.append(self._channels.ask(RUN, self._to_ask.popleft(), now))
        return done

    def _on_work_started(self, event: WorkStarted, now: float, done: list[WorkerInstruction]) -> None:
        if not self._has_started:
            self._has_started = True
            self._ask_for_work(done)

    def _ask_for_work(self, done: list[WorkerInstruction]) -> None:
        if self._draining:
            self._end(done)
        else:
            self._to_ask.append(AskAssignment(self._updates.progress))

    def _end(self, done: list[WorkerInstruction]) -> None:
        self.over = True
        done.append(EndWork())

    def _on_reply_received(self, event: ReplyReceived, now: float, done: list[WorkerInstruction]) -> None:
        # An answer to `EndData` needs nothing but its channel to be free again.
        request = self._channels.pop_request(event)
        if isinstance(request, AskLeases):
            self._lease_requests.on_reply(request, event.reply, now, done)
        elif isinstance(request, AskAssignment):
            self._begin_assignment(event.reply, done)
        elif isinstance(request, EndAssignment):
            self._settle_leftovers(event.reply, now, done)

    def _begin_assignment(self, reply: Reply, done: list[WorkerInstruction]) -> None:
        # The job has taken back all that a draining worker held, so an assignment that was on its
        # way is not begun.
        if self._draining or not isinstance(reply, Assigned):
            self._end(done)
            return
        wanted = reply.plan_version, reply.assignment.behind
        if wanted != self._built:
            self._built = wanted
            done.append(LoadPlan(*wanted))
        # Before the engine runs, whose first request is for a lease of this assignment.
        self._lease_requests.begin(reply, done)
        self._current_assignment = AssignmentBatches(reply.assignment, self._shape)
        done.append(RunAssignment(reply.assignment))

    def _on_lease_requested(self, event: LeaseRequested, now: float, done: list[WorkerInstruction]) -> None:
        if self._draining or self._current_assignment is None:
            done.append(ProvideLease(event.branch, None))
        else:
            self._lease_requests.want(event, now, done)

    def _on_batch_produced(self, event: BatchProduced, now: float, done: list[WorkerInstruction]) -> None:
        stretch, batch = self._current_assignment, event.batch
        assert stretch is not None, "a batch of no assignment"
        if self._should_stop_assignment(stretch):
            self._leave(done)
        # Other workers make all rows of these runs, so what was made of them here is not wanted.
        elif self._lease_requests.has_rejected:
            done.append(Release(batch))
        elif batch.ends_run:
            self._go_on_behind_run(stretch, event, now, done)
        elif batch.partial:
            stretch.leftovers.append(event)
        elif not batch.rows:
            self._end_data(stretch, event, done)
        else:
            self._put_out(stretch, batch, now, done)

    def _should_stop_assignment(self, stretch: AssignmentBatches) -> bool:
        """Tell whether nobody wants what the engine makes."""
        return self._draining or stretch.assignment.epoch < self._left

    def _leave(self, done: list[WorkerInstruction]) -> None:
        """Stop with an assignment: the job gives what it had to others, unless nobody wants it."""
        self._current_assignment = None
        # A thread of the engine may wait for a lease. It must have an answer, or the stretch cannot stop.
        self._lease_requests.send_no_lease(done)
        done.append(StopAssignment(for_good=self._draining))
        self._ask_for_work(done)

    def _put_out(
        self, stretch: AssignmentBatches, batch: EngineBatch, now: float, done: list[WorkerInstruction]
    ) -> None:
        if (blocks := self._lease_requests.blocks) is not None:
            self._updates.count(batch.rows)
            self._lease_requests.note_produced(batch.rows, now)
            done += stretch.put_blocks(batch, blocks.next(batch.row_parts))
            return
        put_out = stretch.put_out(batch, self._lease_requests.row_range(batch, now))
        if isinstance(put_out, PutOut):
            self._updates.count(batch.rows)
        done.append(put_out)

    def _go_on_behind_run(
        self, stretch: AssignmentBatches, made: BatchProduced, now: float, done: list[WorkerInstruction]
    ) -> None:
        """Give up what is left of a run: the engine goes on with the next one."""
        blocks = self._lease_requests.blocks
        assert blocks is not None, "the end of a run whose rows are not joined"
        self._lease_requests.end_run(now)
        if (rest := blocks.end_run()) is not None:
            # With it, for the epoch may end with this block: the trainer tells of bad elements that come with it.
            done.append(PutOut(made.batch, stretch.assignment.epoch, None, rest.row_range, rest.spans))
        else:
            self._end_data(stretch, made, done)

    def _end_data(self, stretch: AssignmentBatches, made: BatchProduced, done: list[WorkerInstruction]) -> None:
        """Tell the job of data that yields no batch."""
        done.append(Release(made.batch))
        if self._lease_requests.blocks is None:
            self._to_ask.append(stretch.end_data(made))
        elif made.left_out:  # the next block stands for the positions
            self._to_ask.append(EndData(stretch.assignment.epoch, {}, left_out=made.left_out))

    def _on_assignment_finished(self, event: AssignmentFinished, now: float, done: list[WorkerInstruction]) -> None:
        stretch = self._current_assignment
        assert stretch is not None, "the end of no assignment"
        if self._should_stop_assignment(stretch):
            self._leave(done)
            return
        if self._lease_requests.blocks is not None:
            self._end_run(stretch, self._lease_requests.blocks, now, done)
            return
        # What a whole plan does not read of its leases ends with its last batch.
        if event.unresolved_spans and not self._shape.serial:
            self._to_ask.append(EndData(stretch.assignment.epoch, event.unresolved_spans))
        self._to_ask.append(stretch.ending(*self._lease_requests.take_notes()))

    def _end_run(
        self, stretch: AssignmentBatches, blocks: RunBlocks, now: float, done: list[WorkerInstruction]
    ) -> None:
        """Give up all rows of the last run, and what lies behind them: the trainer joins them with those of others."""
        self._lease_requests.end_run(now)
        leftovers, stretch.leftovers = stretch.leftovers, []
        if self._lease_requests.has_rejected:
            done += [Release(one.batch) for one in leftovers]
            self._to_ask.append(stretch.ending(*self._lease_requests.take_notes()))
            return
        for one in leftovers:
            if not one.batch.rows:
                self._end_data(stretch, one, done)
        remaining_parts = [one.batch for one in leftovers if one.batch.rows]
        for batch in remaining_parts[:-1]:
            self._put_out(stretch, batch, now, done)
        # Decision 144: the last block reaches to the end of the run even without rows, because the trainer lets a block
        # have its turn only behind the one before it.
        last = remaining_parts[-1] if remaining_parts else None
        if last is not None:
            self._updates.count(last.rows)
            self._lease_requests.note_produced(last.rows, now)
        done += stretch.put_blocks(last, blocks.rest(last.row_parts if last is not None else ()))
        self._to_ask.append(stretch.ending(*self._lease_requests.take_notes()))

    def _settle_leftovers(self, reply: Reply, now: float, done: list[WorkerInstruction]) -> None:
        stretch, self._current_assignment = self._current_assignment, None
        assert stretch is not None, "an answer about the leftovers of no assignment"
        for remainder_part in stretch.leftovers:
            if reply != "flush":
                done.append(Release(remainder_part.batch))
            elif stretch.is_batch(remainder_part.batch):
                self._put_out(stretch, remainder_part.batch, now, done)
            else:
                self._end_data(stretch, remainder_part, done)
        self._ask_for_work(done)

    def _on_left(self, event: EpochsLeft, now: float, done: list[WorkerInstruction]) -> None:
        # The engine is stopped with the next batch, which it makes at once where it waits for room.
        self._left = max(self._left, event.before)
        done.append(DropEpochs(self._left))

    def _on_drain_requested(self, event: DrainRequested, now: float, done: list[WorkerInstruction]) -> None:
        self._draining = True
        # As in `_leave`: an engine's thread that waits for a lease could not stop.
        self._lease_requests.send_no_lease(done)

    def _on_time(self, event: WorkerTime, now: float, done: list[WorkerInstruction]) -> None:
        if self._updates.is_due(event.condition, now, self._lease_requests.lot_s, over=self.over):
            done.append(TellJob(self._updates.next_progress(event.condition, now)))
