"""The trainer's side: turns what happens into events of `pecan_ray.job.trainer`, and performs what that says.

One thread for each worker reads; one reports to the controller, one waits for its orders.  An error in any of them
reaches the training loop.
"""

from __future__ import annotations

import errno
import functools
import logging
import pickle
import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import ray

from pecan_ray.engines.contract import BadElement
from pecan_ray.engines.counting import element_bytes
from pecan_ray.engines.python.deferral import Finisher
from pecan_ray.errors import ClusterError, CutError, PecanError, describe_error
from pecan_ray.job import trainer_events as events
from pecan_ray.job.joins import Joins
from pecan_ray.job.messages import TrainerProgress, TrainerReport, TrainerUpdate
from pecan_ray.job.trainer import TrainerState
from pecan_ray.plan.splits import Element
from pecan_ray.runtime import cluster
from pecan_ray.runtime.calls import Calls, CallsClosedError
from pecan_ray.runtime.host_use import host_use
from pecan_ray.runtime.long_wait import SAY_AFTER_S
from pecan_ray.runtime.messages import WorkerInfo, bad_element, left_out
from pecan_ray.runtime.received import CannotJoinError, Provenance, Received, joined_batch, messages_of, shape_error
from pecan_ray.runtime.streams import TrainerIdentity, WorkerStream
from pecan_ray.runtime.wakeup_event import WakeupEvent
from pecan_ray.transport.messages import BatchReader, Message

logger = logging.getLogger("pecan_ray.client")

END_S = 10.0
"""How long `close` waits for a thread."""


KeepBad: TypeAlias = Callable[[Sequence[BadElement]], None]
"""What keeps bad elements."""


Answered: TypeAlias = events.DeliverBatch | events.EndOfEpoch | events.EndOfData | events.RaiseError
"""What the training loop gets when it has asked for a batch."""


# Why a signal does not end the job: docs/decisions/running-on-ray.md#88-a-signal-ends-the-wait-not-the-job
class ForLoop:
    """Batches that have come, and what the training loop gets of them next; the client's lock guards it.

    A signal's handler may end the loop's wait by an exception.  So a batch counts as used once the loop has it, and
    until then comes again with the next call.
    """

    def __init__(self) -> None:
        self.batches: dict[int, Received] = {}
        """By id: those that came as a whole, and joined ones that were looked at."""
        self.delivered: Answered | None = None
        """A batch stays until the loop has it."""
        self.thread = 0
        """The native number of the training loop's thread, from its first look on."""

    @property
    def has_delivery(self) -> bool:
        """Return whether a batch was handed over that the loop does not have: a signal's handler has ended its wait."""
        return isinstance(self.delivered, events.DeliverBatch)

    def look(self) -> Received | events.EndOfEpoch | events.EndOfData | events.RaiseError | None:
        """Return what there is for the loop."""
        # Decision 126: the loop's time in line for a CPU counts, and the kernel knows threads by this number.
        self.thread = self.thread or threading.get_native_id()
        answer = self.delivered
        if isinstance(answer, events.DeliverBatch):
            return self.received(answer.batch)
        self.delivered = None
        return answer

    def add(self, number: int, received: Received, nbytes: int) -> events.ReceivedBatch:
        """Take what has come; return what the trainer's state needs to know of it."""
        message, places = received.message, received.message.row_range
        batch = _received(number, received.provenance.worker, message, nbytes)
        # Decision 144: a block is no batch: the batches that are joined of it hold it.
        if places is not None and places.are_joined:
            return replace(batch, payload=received)
        self.batches[number] = received
        return batch

    def received(self, batch: events.ReceivedBatch) -> Received:
        """Return a batch with its columns, which are joined if they are not yet."""
        # Not before it is looked at: an error of joining is raised where its batch is used.
        if batch.slices and batch.id not in self.batches:
            self.batches[batch.id] = joined_batch(batch)
        return self.batches[batch.id]

    def next_columns(self, batch: events.ReceivedBatch) -> Element | None:
        """Return the columns of a batch whose turn has not come; None where it has an error, which has its turn too."""
        try:
            return self.received(batch).columns
        except CannotJoinError:
            return None

    def forget(self, batch: events.ReceivedBatch) -> Sequence[Message]:
        """Forget a batch, or a block; return the messages that it came with."""
        received = self.batches.pop(batch.id, None)
        return messages_of(batch) or (() if received is None else (received.message,))

    def take(self) -> Sequence[Message]:
        """Forget the batch that was handed over; return the messages that it came with."""
        answer, self.delivered = self.delivered, None
        return self.forget(answer.batch) if isinstance(answer, events.DeliverBatch) else ()


@dataclass(frozen=True)
class StatePlace:
    """On what it depends which state a loop is told."""

    used: int
    """Batches that the loop has, or has left."""
    left: int
    """It has left the epochs before this one."""
    epoch: int
    """Of the job."""
    finished: bool
    """The job has come to its end."""


class BatchClient:
    """Feeds one trainer (rank) of a job."""

    def __init__(
        self,
        controller: Any,
        me: TrainerIdentity,
        prefetch_bytes: int,
        keep: KeepBad,
        joins: Joins | None = None,
        finisher: Finisher | None = None,
    ) -> None:
        """`keep`: called with bad elements before the job hears of them.

        `joins`: how rows are joined to batches, where they are; `finisher`: runs what workers leave to the trainer.
        """
        self._controller, self._me, self._keep = controller, me, keep
        self.calls, self._reader = Calls(), BatchReader(finisher, self.note)
        self._lock = threading.Lock()
        """Guards the state and all below."""
        self._serving, self._reported, self._something_happened = WakeupEvent(), WakeupEvent(), WakeupEvent()
        """For the loop's thread: there is an outcome, the job knows more of what it has; for one that looks ahead."""
        self._to_report = threading.Condition(self._lock)
        self.state = TrainerState(me.rank, me.world_size, me.incarnation, prefetch_bytes, time.monotonic(), joins)
        self._for_loop = ForLoop()
        self._streams: dict[str, WorkerStream] = {}
        self._workers: dict[str, WorkerInfo] = {}
        self._report: TrainerReport | None = None
        self._wakes_at = 0.0
        """When the thread that reports looks again by itself."""
        self._number, self.closed = 0, False
        self._threads = [
            threading.Thread(target=self._run_reporting_errors, args=(talk,), name=name, daemon=True)
            for talk, name in ((self._keep_reporting, "pecan-report"), (self._keep_listening, "pecan-orders"))
        ]

    def start(self) -> None:
        """Begin to talk with the controller, and to fetch."""
        for thread in self._threads:
            thread.start()

    def begin(self) -> None:
        """What was before is no waiting of the trainer's."""
        with self._lock:
            self.state.begin(time.monotonic())

    # --- the trainer's thread ------------------------------------------------------------------------------

    def next(self, within: int | None = None) -> Received | events.EndOfEpoch | None:
        """Return the next batch, up to that epoch, waiting for it; None when the job is over.  Raises its error."""
        # A forked child has neither the threads of this object nor its connection to Ray, and would wait for ever.
        cluster.check_same_process()
        try:
            outcome = self._outcome(within)
        except CannotJoinError as failed:
            # Raised below, outside of the handler, which would hold the batch.
            outcome = events.RaiseError(shape_error(failed, self._controller, self.calls))
        if isinstance(outcome, events.RaiseError):
            try:
                raise outcome.error
            finally:
                del outcome  # or the error would hold this frame and the frame the error, and both the last batch
        return outcome if isinstance(outcome, (Received, events.EndOfEpoch)) else None

    def _outcome(self, within: int | None) -> Received | Answered | None:
        """Wait for what there is for the loop; None: it is closed."""
        with self._lock:
            if self.closed:
                return None
            if (outcome := self._for_loop.look()) is None:
                self._handle(events.BatchRequested(within))
                outcome = self._for_loop.look()
        while outcome is None and not self.closed:
            self._serving.wait()
            with self._lock:
                outcome = self._for_loop.look()
        return outcome

    def note_taken(self) -> None:
        """Note that the training loop has the batch that `next` has returned."""
        with self._lock:
            messages = self._for_loop.take()
        for message in messages:
            self._reader.taken(message)

    def on_next_batch(self, prepare: Callable[[Element], None]) -> None:
        """Call a function, on a thread of its own, with each batch that is used next, once it has come."""
        looks = functools.partial(self._run_reporting_errors, functools.partial(_prepare_next, self, prepare))
        self._threads.append(threading.Thread(target=looks, name="pecan-ahead", daemon=True))
        self._threads[-1].start()

    def note(self, text: str) -> None:
        """Note something for the job's report."""
        self._happened(events.RecordedInfo(text))

    def tell_all(self) -> int:
        """Wait until the job knows of all that was received; return how many batches the loop has."""
        outgoing = self.state.outgoing
        with self._lock:
            used = _used(self)
            report = outgoing.complete_report
            if outgoing.acknowledged < report:
                self._handle(events.ReportRequested())
        # A job that has finished may have yet to hear of the last batches, which were joined when it told its end.
        while outgoing.acknowledged < report and not (self.closed or outgoing.cut_off or self.state.update.error):
            self._reported.wait()
        return used

    def progress(self) -> TrainerProgress:
        """Return how the trainer is doing."""
        with self._lock:
            return self.state.progress(time.monotonic())

    def close(self) -> None:
        """Stop fetching; batches that are still held stay valid."""
        with self._lock:
            if self.closed:
                return
            self._handle(events.TrainerClosed())
            self.closed = True
            streams = list(self._streams.values())
            for bell in (self._serving, self._reported, self._something_happened):
                bell.ring()
            self._to_report.notify_all()
        self.calls.close()
        for stream in streams:
            stream.stop()

    def join(self) -> None:
        """Wait for the threads to end: none is left when Ray ends."""
        threads = (*self._threads, *(stream.thread for stream in self._streams.values()))
        _wait_for_end(self._me.job, [thread for thread in threads if thread is not threading.current_thread()])
        # Streams and client know each other: memory would stay until Python looks for such circles.
        with self._lock:
            self._for_loop.batches.clear()
        self._reader.close()

    # --- events in, instructions out -----------------------------------------------------------------------

    def _happened(self, event: events.TrainerEvent) -> None:
        with self._lock:
            self._handle(event)

    def _handle(self, event: events.TrainerEvent) -> None:
        """Take an event and do what must be done; the caller has the lock."""
        now = time.monotonic()
        for instruction in self.state.handle(event, now):
            self._perform(instruction)
        # Decision 14: nobody is woken for nothing.
        if self.state.due < self._wakes_at:
            self._to_report.notify()
        if self.state.over or isinstance(event, events.ReportAccepted):
            self._reported.ring()
        self._something_happened.ring()

    def _perform(self, instruction: events.TrainerInstruction) -> None:
        if isinstance(instruction, (events.DeliverBatch, events.EndOfEpoch, events.EndOfData, events.RaiseError)):
            self._for_loop.delivered = instruction
            self._serving.ring()
        elif isinstance(instruction, events.Grant):
            self._streams[instruction.worker].grant(instruction.credits)
        elif isinstance(instruction, events.SendReport):
            self._report = _with_host_use(instruction.report, self._for_loop.thread)
            self._to_report.notify()
        elif isinstance(instruction, events.Discard):
            for message in self._for_loop.forget(instruction.batch):
                self._reader.taken(message)
        elif isinstance(instruction, events.TransferMemory):
            # Decision 2: what the trainer has taken does not count against its worker's memory.
            adopted = messages_of(instruction.batch) or (self._for_loop.batches[instruction.batch.id].message,)
            for message in adopted:
                self._reader.taken(message)
        elif isinstance(instruction, events.CloseStream):
            self._streams[instruction.worker].stop()
        elif isinstance(instruction, events.OpenStream):
            _open(self, self._workers[instruction.worker])
        elif isinstance(instruction, events.Quarantine):
            self._keep(tuple(map(bad_element, instruction.elements)))
        else:
            logger.log(logging.getLevelName(instruction.level.upper()), "job %s: %s", self._me.job, instruction.text)

    def _deliver(self, worker: str, messages: list[Message]) -> bool:
        """Put the batches of a message into the queue; False if they can no longer be read."""
        try:
            opened, sent_bytes = _opened(self._reader, messages)
        except CutError as refused:
            # Before the stream ends: a worker whose stream breaks is replaced by one that does the same again.
            self.calls.retry(self._controller.failed, worker, refused)
            return False
        bad = [one for message, _, _ in opened for one in message.bad]
        self._keep(bad)  # before they are acknowledged: who is killed then has lost none
        with self._lock:
            if self.closed:
                return False
            batches = []
            for message, columns, nbytes in opened:
                self._number += 1
                provenance = Provenance(message.epoch, worker, message.spans, message.rows)
                batches.append(self._for_loop.add(self._number, Received(columns, provenance, message), nbytes))
            self._handle(events.BatchesReceived(worker, tuple(batches), tuple(map(left_out, bad)), sent_bytes))
        return len(opened) == len(messages)

    def _stream_ended(self, worker: str, stream_failed: bool, trouble: BaseException | None) -> None:
        with self._lock:
            if trouble is not None:
                self._handle(events.TrainerFailed(_as_error(trouble, f"what reads from {worker}")))
            self._handle(events.StreamEnded(worker, stream_failed))

    # --- the threads that talk with the controller ---------------------------------------------------------

    def _run_reporting_errors(self, talk: Callable[[], None]) -> None:
        """Run a thread; whatever goes wrong in it is an error of the training loop."""
        try:
            talk()
        except CallsClosedError:
            # The loop was closed, which is what ends this thread.
            return
        except ray.exceptions.RayError as error:
            self._happened(events.TrainerFailed(self.calls.lost_error(error)))
        except BaseException as error:  # a thread must not end in silence
            self._happened(events.TrainerFailed(_as_error(error, "a thread of the iterator")))

    def _keep_listening(self) -> None:
        """Wait for orders: the controller answers when they have changed."""
        while not (self.closed or self.state.over):
            listen, update = self._controller.listen, self.state.update
            self._take_update(self.calls.retry(listen, self._me.rank, self._me.incarnation, update.number, update.met))

    def _take_update(self, pickled: bytes, answered: int | None = None) -> None:
        """Take orders, and handles of workers that come with them; `answered`: the number of a report."""
        update: TrainerUpdate
        update, handles = pickle.loads(pickled)
        # Each is a pickle of its own, which the controller makes once for all trainers
        # (`UpdateCalls`).
        new_workers: list[WorkerInfo] = [pickle.loads(worker) for worker in handles]
        with self._lock:
            self._workers.update({worker.name: worker for worker in new_workers})
            # Orders may name a worker that is gone meanwhile, whose handle the controller has no more.
            reachable = tuple(worker for worker in update.new_workers if worker in self._workers)
            update = replace(update, new_workers=reachable) if reachable != update.new_workers else update
            self._handle(events.UpdateReceived(update) if answered is None else events.ReportAccepted(answered, update))

    def _keep_reporting(self) -> None:
        """Send the reports, and let time pass for the state."""
        while True:
            with self._lock:
                while self._report is None and not self.closed:
                    now = time.monotonic()
                    self._wakes_at = self.state.due
                    if self._wakes_at <= now:
                        self._handle(events.TrainerTime())
                        # Without this error the thread would spin, and keep the lock from the training loop.
                        if self._report is None and self.state.due <= now:
                            raise PecanError("a trainer's state has asked for time and done nothing with it")
                    else:
                        self._to_report.wait(self._wakes_at - now)
                # While it sends a report this thread need not be woken: it looks at the state again behind the answer.
                self._wakes_at = 0.0
                report, self._report = self._report, None
                if report is None:
                    return
            # Ray passes bytes on as they are, which costs the controller less than an object.
            # Meanwhile time passes for the state, which says who does not answer.
            answer = self.calls.retry(
                self._controller.report, pickle.dumps(report), meanwhile=lambda: self._happened(events.TrainerTime())
            )
            self._take_update(answer, report.number)


def _used(client: BatchClient) -> int:
    # Decision 88: a batch that was handed over when a signal ended the wait is not used.
    return client.state.yielded + client.state.queue.passed - client._for_loop.has_delivery


def state_place(client: BatchClient, ahead: int) -> tuple[StatePlace, int]:
    """Return where the loop is, and of how many batches the job is known to know.

    `ahead`: so many of the batches that the loop has are not used yet.
    """
    with client._lock:
        queue, update = client.state.queue, client.state.update
        place = StatePlace(max(0, _used(client) - ahead), queue.place.left, update.epoch, update.finished)
        return place, client.state.outgoing.acknowledged_batches


def _open(client: BatchClient, worker: WorkerInfo) -> None:
    stream = client._streams[worker.name] = WorkerStream(
        worker,
        client._me,
        client._reader,
        client.calls,
        deliver=client._deliver,
        tell=client.note,
        ended=client._stream_ended,
    )
    stream.thread.start()


def next_columns(client: BatchClient) -> Element | None:
    """Return the columns of the batch that is used next, if it has come; it is not taken by that."""
    with client._lock:
        head = client.state.queue.head
        return client._for_loop.next_columns(head) if head is not None and not client.closed else None


def _prepare_next(client: BatchClient, prepare: Callable[[Element], None]) -> None:
    seen: int | None = None
    while True:
        with client._lock:
            if client.closed:
                return
            head = client.state.queue.head
            columns = client._for_loop.next_columns(head) if head is not None and head.id != seen else None
        if head is None or columns is None:
            # Decision 90: what was prepared stays in the queue, so states and lost workers know nothing of it.
            client._something_happened.wait()
            continue
        seen = head.id
        prepare(columns)
        del columns  # while this waits its memory is the loop's alone


def has_left(client: BatchClient, epoch: int) -> bool:
    """Tell whether a training loop has had all of an epoch."""
    with client._lock:
        return client.state.queue.has_left(epoch, client.state.update.epoch)


def leave_epoch(client: BatchClient, epoch: int) -> None:
    """Want nothing more of an epoch: what has come of it is dropped, and so is what comes."""
    with client._lock:
        answer = client._for_loop.delivered
        if isinstance(answer, events.DeliverBatch) and answer.batch.epoch <= epoch:
            for message in client._for_loop.take():  # a signal's handler has ended the wait for it
                client._reader.taken(message)
        if not client.closed:
            client._handle(events.EpochLeft(epoch))


def _wait_for_end(job: str, threads: Sequence[threading.Thread]) -> None:
    """Wait for threads of an iterator that is closed, and say so if that takes long."""
    started = time.monotonic()
    for until_s in (SAY_AFTER_S, END_S):
        left = [thread for thread in threads if thread.is_alive()]
        if left and until_s == END_S:
            names = ", ".join(thread.name for thread in left)
            logger.warning("waiting: job %s: it is being closed, and these threads must end: %s", job, names)
        for thread in left:
            thread.join(max(0.0, started + until_s - time.monotonic()))


def _opened(reader: BatchReader, messages: Sequence[Message]) -> tuple[list[tuple[Message, Element, int]], int]:
    """Return the batches that can be read, with their bytes behind all operators, and those that have travelled."""
    opened: list[tuple[Message, Element, int]] = []
    sent_bytes = 0
    for message in messages:
        # Decision 2: the worker is gone and its memory was not mapped before: this counts as not received.
        if (came := reader.open(message)) is None:
            break
        columns, travelled = reader.finish(message, came), element_bytes(came)
        opened.append((message, columns, travelled if columns is came else element_bytes(columns)))
        sent_bytes += travelled
    return opened, sent_bytes


def _received(number: int, worker: str, message: Message, nbytes: int) -> events.ReceivedBatch:
    """Return what the trainer's state needs to know of a batch."""
    return events.ReceivedBatch(
        number, worker, message.epoch, message.spans, message.rows, nbytes, message.without_data, message.row_range
    )


def _as_error(error: BaseException, where: str) -> BaseException:
    """Return an error that says what has failed; ours are passed on as they are."""
    if isinstance(error, PecanError):
        return error
    hint = ""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        hint = f". This process may have {most} files open: raise the limit (`ulimit -n`), or have fewer workers"
    return ClusterError(f"{where} has failed: {describe_error(error)}{hint}").with_traceback(error.__traceback__)


def _with_host_use(report: TrainerReport, loop_thread: int) -> TrainerReport:
    """Add what this process uses of its node to a report; `loop_thread`: the native number of the loop's thread."""
    return replace(report, progress=replace(report.progress, host=host_use(loop_thread or None)))
