"""The trainer's side of a job: its queue, what it may use of it, credits for workers, and what it reports.

A batch is *received* when it is in the queue (and then acknowledged), *used* when the training loop has it.  With
several ranks a batch may be used once every rank has received as many of its epoch; at the end of an epoch those that
have more give the rest back.

What is queued takes memory of its worker's, unless the rank waits for others: then it counts as the trainer's, for in
that memory the batches are made that the others need.  So does what has come before its turn, where rows are numbered,
while the loop waits for rows before it.

Workers send against *credits*, so that whatever is under way is received: what a trainer has no room for stays with
the worker, where other ranks can have it.  The queue is bounded by `prefetch_bytes`, which one message of each worker
may exceed, and while leftovers are regrouped the batches of that.  Where batches are for certain ranks, so may what
workers that drain have left for this one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from pecan_ray.job.credits import MessageQuota
from pecan_ray.job.joins import Joins
from pecan_ray.job.loop_steps import LoopSteps
from pecan_ray.job.messages import TrainerProgress, TrainerUpdate
from pecan_ray.job.outgoing import Outgoing
from pecan_ray.job.report_pace import Need
from pecan_ray.job.trainer_events import (
    BatchesReceived,
    BatchRequested,
    CloseStream,
    DeliverBatch,
    Discard,
    EndOfData,
    EndOfEpoch,
    EpochLeft,
    Grant,
    OpenStream,
    Quarantine,
    RaiseError,
    ReceivedBatch,
    RecordedInfo,
    ReportAccepted,
    ReportRequested,
    SendReport,
    StreamEnded,
    TrainerClosed,
    TrainerEvent,
    TrainerFailed,
    TrainerInstruction,
    TrainerLog,
    TrainerTime,
    TransferMemory,
    UpdateReceived,
)
from pecan_ray.job.trainer_queue import TrainerQueue
from pecan_ray.job.waiting import UNHEARD, WaitLog

# What a trainer waits for: for its training loop, and for an answer to a report.
BATCH, CONTROLLER = "batch", "controller"
UNANSWERED = "the job's controller has not answered this trainer for {seconds}: " + UNHEARD


class TrainerState:
    """What one rank knows, and what it does about what happens."""

    def __init__(
        self, rank: int, world_size: int, incarnation: str, prefetch_bytes: int, now: float, joins: Joins | None = None
    ) -> None:
        """`joins`: how rows are joined to batches; None: batches come as a whole."""
        self.rank, self.world_size = rank, world_size
        self.update = TrainerUpdate()
        self.yielded = self.rows = 0
        self.first_batch_s: float | None = None
        self.waited_s, self.steps = 0.0, LoopSteps(world_size)
        self.queue = TrainerQueue(world_size, joins)
        self.unused = 0
        """Batches that were in it when the training loop ended."""
        self.outgoing = Outgoing(rank, world_size, incarnation, now)
        self._credits = MessageQuota(prefetch_bytes)
        self._streams, self._settled = set[str](), set[str]()
        self._seen: set[str] = set()
        """Workers whose streams were opened, or never will be."""
        self._requested_since: float | None = None
        self._within: int | None = None  # the last epoch of which the training loop wants its next batch
        self._started, self._closed = now, False
        self._error: BaseException | None = None
        self._waiting = WaitLog()
        self.due = self.outgoing.due(self._need())
        """The time at which `TrainerTime` must be handled if nothing else happens."""
        self._handlers: dict[type, Callable[[Any, float, list[TrainerInstruction]], None]] = {
            UpdateReceived: lambda event, now, done: self._apply_order_update(event.update, done),
            BatchesReceived: self._on_batches,
            StreamEnded: self._on_stream_ended,
            RecordedInfo: lambda event, now, done: self.outgoing.note(event.text),
            BatchRequested: self._on_batch_requested,
            EpochLeft: self._on_left,
            ReportAccepted: self._on_report_accepted,
            ReportRequested: lambda event, now, done: self.outgoing.want(),
            TrainerFailed: self._on_failed,
            TrainerClosed: self._on_closed,
            TrainerTime: lambda event, now, done: None,
        }

    def handle(self, event: TrainerEvent, now: float) -> list[TrainerInstruction]:
        """Take an event and return what must be done, in this order."""
        # Batches may come after the iterator was closed, and their memory must go back, too.
        if self._closed:
            return [Discard(batch) for batch in event.batches] if isinstance(event, BatchesReceived) else []
        done: list[TrainerInstruction] = []
        self._handlers[type(event)](event, now, done)
        done.extend(map(Discard, self.queue.duplicate_batches()))
        # Before the loop is served: what it has left must not be its next batch.
        if passed := self.queue.pass_over(self.update):
            done.extend(map(Discard, passed))
            self._grant_freed(done)
        self._serve(now, done)
        # What waits here must not fill its worker's ring: the batch that is waited for would find no room in that.
        if self.world_size > 1 or self.queue.waiting_for_rows:
            self._transfer_held_memory(done)
        if self.update.settle and not self.update.addressed:
            _let_go(self, done)
        waits_due = _report_waiting(self, now, done)
        # Last, so that the report tells what the steps before it have changed.
        self.due = min(self._report(now, done), waits_due)
        return done

    def begin(self, now: float) -> None:
        """Note that the training loop can ask from now on: what was before is no waiting of its."""
        self._started = now

    @property
    def over(self) -> bool:
        """Return whether nothing more has to be fetched or told."""
        return self._closed or self._error is not None or self.update.finished

    def _apply_order_update(self, update: TrainerUpdate, done: list[TrainerInstruction]) -> None:
        # Decision 22: orders say what holds now, so those that come late are of the past.
        if update.number <= self.update.number:
            return
        has_all = self.update.finished and not self.queue  # what others have not come to is no error here
        self.update = update
        if self._error is None and not has_all:
            self._error = update.error
        if fresh := self.outgoing.to_keep(update):
            done.append(Quarantine(fresh))
        if update.unordered:
            self.outgoing.acknowledge(*self.queue.stop_ordering())
        # Decision 144: the rows that are left of an epoch are its smaller batch.
        self.queue.end_epoch(update.epoch)
        self.outgoing.deliver(self.queue.joined())
        # Before lost workers: a batch that has its turn is used, whoever made it.
        self.queue.apply_schedule(update.first_turn, update.schedule)
        for worker in update.lost_workers:  # this rank has settled about it
            self._return_batches(self.queue.revoke(worker), done)
        if update.level is not None and self.queue.place.closed <= update.epoch:
            self._return_batches(self.queue.close(update.epoch, update.level), done)
            done.extend(map(Discard, self.queue.early.leave(self.queue.place.closed)))
            # Also if nothing goes back: the job forgets the epoch when every rank has said that it takes nothing more.
            self.outgoing.want()
        if not update.finished:
            self._open_streams(update, done)
        self._maybe_return_batches(done)
        for worker in update.settle:
            self._settle(worker, done)
        self.queue.forget_before(update.epoch - 1)
        self._grant_freed(done)

    def _open_streams(self, update: TrainerUpdate, done: list[TrainerInstruction]) -> None:
        for worker in update.new_workers:
            if worker not in self._seen:
                self._seen.add(worker)
                self._streams.add(worker)
                done.append(OpenStream(worker))
                # Decision 22: a rank without batches has a credit with every worker, so whatever is finished may come.
                _grant(self._credits.opened(worker, self._may_send), done)

    def _on_batches(self, event: BatchesReceived, now: float, done: list[TrainerInstruction]) -> None:
        # Also what is discarded: it has travelled.
        self.outgoing.note_sent(event.worker, event.sent_bytes)
        for batch in event.batches:
            # This rank has said that it takes nothing more of that epoch, which the job may have forgotten by now.
            if batch.epoch < self.queue.place.closed:
                done.append(Discard(batch))
                continue
            self.outgoing.acknowledge(*self.queue.receive(batch, in_turn=not self.update.coordinated))
        self.outgoing.deliver(self.queue.joined())
        self.outgoing.left_out(event.left_out, self.queue.place.closed)
        nbytes = sum(batch.nbytes for batch in event.batches)
        # A message has used its credit, also if all of its batches were discarded.
        _grant(self._credits.used(event.worker, nbytes, self.queue.nbytes, self._may_send(event.worker)), done)

    def _on_stream_ended(self, event: StreamEnded, now: float, done: list[TrainerInstruction]) -> None:
        self._streams.discard(event.worker)
        self._credits.closed(event.worker)
        if event.stream_failed:
            self.outgoing.broken(event.worker)
        # Settling has waited for the end of the stream (`_settle`).
        if event.worker in self.update.settle:
            self._settle(event.worker, done)

    def _on_batch_requested(self, event: BatchRequested, now: float, done: list[TrainerInstruction]) -> None:
        if self._requested_since is None:
            self._requested_since = now
            self.steps.note_request(len(self.queue))
        self._within = event.within

    def _on_left(self, event: EpochLeft, now: float, done: list[TrainerInstruction]) -> None:
        done.extend(map(Discard, self.queue.leave(event.epoch)))
        self.steps.pause()
        self.outgoing.want()

    def _on_report_accepted(self, event: ReportAccepted, now: float, done: list[TrainerInstruction]) -> None:
        self.outgoing.note_acknowledged(event.number, now)
        if event.update is not None:
            self._apply_order_update(event.update, done)
        self._maybe_return_batches(done)
        # Also without news: a rank that others hold up takes more than it has room for, as much as their order allows.
        if not self.update.unordered:
            self._grant_freed(done)

    def _on_failed(self, event: TrainerFailed, now: float, done: list[TrainerInstruction]) -> None:
        self.outgoing.cut_off = True
        # A job that has finished owes this loop nothing more, so no failure concerns it.
        if self._error is None and not self.update.finished:
            self._error = event.error

    def _on_closed(self, event: TrainerClosed, now: float, done: list[TrainerInstruction]) -> None:
        self.unused = len(self.queue)
        done.extend(map(Discard, self.queue.clear()))
        self._closed = True
        self._error, self.update = None, replace(self.update, error=None)  # an error that was raised holds its frames

    def _serve(self, now: float, done: list[TrainerInstruction]) -> None:
        """Give the training loop what it has asked for, if there is something."""
        if self._requested_since is None:
            return
        if self._error is not None and not self.queue.is_before_error(self._error, self.update):
            done.append(RaiseError(self._error))
        elif self._within is not None and self.queue.has_left(self._within, self.update.epoch):
            done.append(EndOfEpoch())
        elif self.queue.usable(self.update):
            self._deliver(self._requested_since, now, done)
        elif self.update.finished and not self.queue:
            done.append(EndOfData())
        else:
            self.steps.note_wait(now, in_line=bool(self.queue.early))
            return
        self._requested_since = None

    def _deliver(self, asked: float, now: float, done: list[TrainerInstruction]) -> None:
        batch = self.queue.use()
        self.yielded, self.rows = self.yielded + 1, self.rows + batch.rows
        self.waited_s += now - asked
        self.steps.note_taken(self.yielded, asked, now)
        if self.first_batch_s is None:
            self.first_batch_s = now - self._started
        done.append(DeliverBatch(batch))
        self._grant_freed(done)

    def _grant_freed(self, done: list[TrainerInstruction]) -> None:
        if self._credits.lacking:
            _grant(self._credits.freed(self._may_send), done)

    def _may_send(self, worker: str) -> bool:
        """Tell whether to take more of a worker."""
        # Decision 234: what others make of whole splits comes before its turn, and has a bound that nothing lifts.
        if not self.queue.makes_next(worker, self.update):
            return self._credits.room(self.queue.held_bytes) and self._credits.room_early(self.queue.early.nbytes)
        return self._room() or bool(self.queue.starved(self.update, [worker]))

    def _held(self) -> bool:
        return bool(self.queue) and self._requested_since is not None and not self.queue.usable(self.update)

    def _transfer_held_memory(self, done: list[TrainerInstruction]) -> None:
        """While this rank waits for others, or rows, its batches must not take the memory that these are made in."""
        if self._held() or (self.queue.waiting_for_rows and self._requested_since is not None):
            done.extend(map(TransferMemory, self.queue.not_yet_transferred()))

    def _room(self, *, answered: bool = False) -> bool:
        """Tell whether to take more; `answered`: now, or when the job has answered."""
        up_to_date = answered or not self.outgoing.has_pending
        return self._credits.room(self.queue.held_bytes) or self.queue.accepts_without_room(self.update, up_to_date)

    def _maybe_return_batches(self, done: list[TrainerInstruction]) -> None:
        """Return the newest batches of an epoch beyond those to keep: none of them was used, since this bounds use.

        The job asks for them when all batches are acknowledged: with one that is not, these orders are of the past.
        """
        keep, epoch = self.update.keep, self.update.epoch
        if keep is None or self.outgoing.has_pending:
            return
        self._return_batches(self.queue.take_unused(epoch, keep), done)

    def _return_batches(self, mine: Sequence[ReceivedBatch], done: list[TrainerInstruction]) -> None:
        if mine:
            self.outgoing.return_batches(mine[0].epoch, mine)
            done.extend(map(Discard, mine))

    def _settle(self, worker: str, done: list[TrainerInstruction]) -> None:
        # An open stream may still bring batches. The rank settles about its worker when it has ended.
        if worker not in self._streams and worker not in self._settled:
            # Late orders that name it as new must not open its stream.
            self._seen.add(worker)
            self._settled.add(worker)
            done.extend(map(Discard, self.queue.early.lose(worker)))
            self.outgoing.settle(worker)

    def _need(self) -> Need:
        used, full = self.queue.used(self.update.epoch), not self._credits.room(self.queue.nbytes)
        held, waits = self.world_size > 1 and self._held(), self._requested_since is not None
        return self.outgoing.need(
            self.update, used, held=held, full=full, waits_for_rows=waits and self.queue.waiting_for_rows
        )

    def _report(self, now: float, done: list[TrainerInstruction]) -> float:
        """Send the report that is due; return when the next one is."""
        need = self._need()
        if now < (due := self.outgoing.due(need)):
            return due
        told = self.progress(now), self.queue.place, self.queue.joiner.rest
        done.append(SendReport(self.outgoing.next(now, need, self.update.met, *told)))
        return self.outgoing.due(self._need())

    def progress(self, now: float) -> TrainerProgress:
        """Return how the trainer is doing; a wait that is not over counts so far."""
        waited_s = self.waited_s + (0.0 if self._requested_since is None else now - self._requested_since)
        told = len(self.queue), self.steps.totals, self.queue.passed, self.queue.passed_rows
        return TrainerProgress(self.yielded, self.rows, waited_s, now - self._started, *told)


def _report_waiting(trainer: TrainerState, now: float, done: list[TrainerInstruction]) -> float:
    """Say what is waited for for long; return when something must be said if nothing else happens."""
    since: dict[Hashable, float | None] = {
        BATCH: trainer._requested_since,
        CONTROLLER: trainer.outgoing.awaiting_reply_since,
    }
    awaited = {thing: started for thing, started in since.items() if started is not None}
    due = trainer._waiting.due_with(awaited)
    # Most batches come before a wait is worth telling, so waits are not looked at with each of them.
    if not trainer._waiting and now < due:
        return due
    texts: dict[Hashable, str] = {CONTROLLER: UNANSWERED, BATCH: _waited_for(trainer, trainer._held())}
    waits = {thing: texts[thing] for thing in awaited}
    done.extend(TrainerLog("warning", text) for text in trainer._waiting.look(now, waits, awaited))
    return trainer._waiting.due_with(awaited)


def _let_go(trainer: TrainerState, done: list[TrainerInstruction]) -> None:
    """Settle about workers that drain while other ranks hold this one up, and nothing can be on its way from them.

    Else a batch that such a worker has left might be what those ranks wait for, who have never met it.  Of batches with
    an address all that is left is fetched instead (`TrainerQueue.starved`).
    """
    # It may have room as soon as the job has answered.
    if not trainer.queue or trainer._room(answered=True) or trainer.queue.usable(trainer.update):
        return
    for worker in trainer.update.settle:
        if worker in trainer._streams and not trainer._credits.granted(worker):
            trainer._streams.discard(worker)
            trainer._credits.closed(worker)
            done.append(CloseStream(worker))
            trainer._settle(worker, done)


def _waited_for(trainer: TrainerState, held: bool) -> str:
    """Say what a training loop waits for that has no batch."""
    rank, update = trainer.rank, trainer.update
    if update.waiting_for:
        return "the trainer waits for a batch since {seconds}: " + "; ".join(update.waiting_for)
    if trainer.queue.place.left > update.epoch:
        return (
            f"rank {rank} has left epoch {update.epoch} and waited {{seconds}} for the ranks that go on in it: the "
            "next epoch begins when all have left it, or are at its end"
        )
    if held:
        return (
            f"rank {rank} has waited {{seconds}} for the other ranks: it may use {update.allowed} batches of "
            f"epoch {update.epoch}, as many as the slowest rank has received"
        )
    if trainer.queue.early:
        return (
            f"the trainer has waited {{seconds}} for its next batch, and has {len(trainer.queue.early)} of later rows: "
            'they come in the order of the source (order="relaxed" takes them as workers finish them)'
        )
    workers = (
        f"{update.running} of {sum(update.target)} workers run" if sum(update.target) else "no worker is wanted yet"
    )
    return f"the trainer has waited {{seconds}} for a batch: {workers}"


def _grant(credits: dict[str, int], done: list[TrainerInstruction]) -> None:
    done.extend(Grant(worker, count) for worker, count in credits.items())
