"""One reader of a shared group, as its trainer sees it: joins, iterates, reports, leaves."""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

import ray

from pecan_ray.errors import ClusterError, PecanError, PlanError
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.job.reader_position import GroupState, ReaderPosition, RestOfEpoch
from pecan_ray.job.stats import JobStats
from pecan_ray.options import Workers
from pecan_ray.runtime import cluster
from pecan_ray.runtime.calls import Calls, CallsClosedError
from pecan_ray.runtime.long_wait import LongWait
from pecan_ray.runtime.pickling import unpickle_here
from pecan_ray.runtime.received import Provenance, Received
from pecan_ray.runtime.session import check_no_loader_workers
from pecan_ray.runtime.share_entry import GroupEntry, ShareRequest, note_end
from pecan_ray.runtime.share_messages import EndFrame, Frame, NoticeFrame, RunMaker, SharedRun
from pecan_ray.transport.messages import Message
from pecan_ray.transport.shared_slots import BatchDescriptor

logger = logging.getLogger("pecan_ray.share")

# Seconds that the end of a loop waits for its group. A reader that could not say that it leaves is missed by its
# silence.
LEAVE_S = 10.0
MAX_FRUITLESS_JOINS = 3
"""A reader gives up when its group is lost so many times in a row before a batch has come."""


class ShareClient:
    """Takes one reader's batches; used by one thread at a time, but for `close`.

    If the group is lost, or goes on without this reader, it goes on with a run of its own to the end of the epoch, and
    then joins again.
    """

    def __init__(self, request: ShareRequest, entry: GroupEntry) -> None:
        """Join the group; raises PecanError if that cannot be."""
        self._entry = entry
        self._started = time.monotonic()
        self._over = self._stopped = False
        self._using = threading.RLock()
        """Held while batches are awaited, so that nothing is closed under its user."""
        self.first_batch_s: float | None = None
        self._rows = 0
        self._waited_s = 0.0
        self.position = ReaderPosition(request.epochs)
        self.own_run: SharedRun | None = None
        """Gives the rest of an epoch in which the group was lost."""
        self._rest: RestOfEpoch | None = None
        """How to go on, and not done yet: an interrupt may have come between."""
        self._fruitless = 0
        """How often the group was lost in a row before a batch came."""
        self._join()

    @property
    def group(self) -> str:
        """Name of the group."""
        return self._entry.request.group

    @property
    def read(self) -> int:
        """Batches that were read."""
        return self.position.read

    @property
    def skipped(self) -> int:
        """Batches that will not come."""
        return self.position.skipped

    def next(self) -> Received | None:
        """Return the next batch, waiting for it; None when this reader has had all.  Raises the group's error."""
        cluster.check_same_process()
        started = time.monotonic()
        with self._using, self._log_long_wait():
            received = self._next()
        self._waited_s += time.monotonic() - started
        if received is not None:
            self._rows += received.provenance.rows
            if self.first_batch_s is None:
                self.first_batch_s = time.monotonic() - self._started
        return received

    def _next(self) -> Received | None:
        while not (self._over or self._stopped):
            if self._rest is not None:
                self._go_on(self._rest)
                continue
            received = self._next_shared() if self.own_run is None else self._next_own(self.own_run)
            if received is not None:
                return received
        return None

    def _next_shared(self) -> Received | None:
        """Return the group's next batch; None: it gives no more."""
        came = self._receive()
        if came is None:
            if not self._stopped:
                self._rest = self._rest_of_lost()
            return None
        frame, batch, columns = came
        if isinstance(frame, NoticeFrame):
            logger.warning("%s", frame.text)
            return None
        self._fruitless = 0
        if isinstance(frame, EndFrame):
            self._take_end(frame)
            return None
        assert batch is not None
        state = None if frame.state is None else GroupState(pickle.loads(frame.state), frame.batches_since)
        self.position.take(batch.epoch, batch.spans, frame.skipped, state)
        provenance = Provenance(batch.epoch, batch.worker, batch.spans, batch.rows)
        return Received(columns, provenance, Message({}, batch.spans, batch.rows, batch.epoch))

    def _next_own(self, run: SharedRun) -> Received | None:
        """Return the next batch of the rest of an epoch; None: that is over."""
        try:
            received = run.next_received()
        except StopIteration:
            run.close()
            self.own_run, self._rest = None, RestOfEpoch(None)
            return None
        self.position.read += 1
        return received

    def _take_end(self, frame: EndFrame) -> None:
        """There is no more from this group: all was read, the run has failed, or the others have gone on."""
        self.position.note_skipped(frame.skipped)
        if frame.left_behind:
            cure = "Start the run again, with a longer Config(share_patience_s=...) if it reads nothing for so long."
            self._rest = self._rest_without(frame.left_behind, cure)
            return
        self._over = True
        if frame.error is not None:
            raise frame.error

    def _rest_of_lost(self) -> RestOfEpoch:
        """Return how to go on after the group was lost; raises ClusterError if that is not known."""
        self._fruitless += 1
        why = f"the shared group {self.group} is gone: {self._entry.lost_reason()}"
        return self._rest_without(why, "Start the run again: another group begins.")

    def _rest_without(self, why: str, cure: str) -> RestOfEpoch:
        """Return how to go on without the group; raises ClusterError if that is not known."""
        self._way.close()
        # A rank knows nothing of what the others of its trial have had: alone it would read that again.
        alone = self._entry.request.of is None and self._fruitless <= MAX_FRUITLESS_JOINS
        rest = self.position.rest() if alone else None
        if rest is None:
            raise ClusterError(f"{why}. {cure}")
        if rest.state is None:
            logger.warning("%s. This reader joins another one, if it has not had all", why)
        else:
            logger.warning(
                "%s. This reader goes on with a job of its own to the end of epoch %d, and shares again from then on",
                *(why, self.position.epoch),
            )
        return rest

    def _go_on(self, rest: RestOfEpoch) -> None:
        if rest.state is None:
            self._join()
        else:
            plan = self._entry.request.plan
            make: RunMaker = unpickle_here(plan.make, f"the pipeline of the shared group {self.group}")
            self.own_run = make(rest.run_epochs, None, rest.state)
        self._rest = None

    def _join(self) -> None:
        """Join a group, if there is more to read."""
        if self.position.epochs == 0:
            self._over = True
            return
        # It was closed while it waited to be let in: `_stopped` tells.
        with contextlib.suppress(CallsClosedError):
            self._way, since = self._entry.join(self.position.epochs, self.position.epoch, lambda: self._stopped)
            self.position.join(since)

    def note_end(self) -> None:
        """Let a later reader of this process begin behind what this one has read."""
        note_end(self._entry.joined, self.position.epoch)

    def drop(self) -> None:
        """Let go of the group without waiting for anything; batches that are held stay valid."""
        self._way.close()

    def close(self) -> None:
        """Take no more, and let the one go who waits."""
        self._stopped = True
        # Before the lock is taken, because whoever waits for a batch holds it.
        self._way.stop()
        if (run := self.own_run) is not None:
            run.close()
        with self._using:
            self._way.close()
            if self.own_run is not None:  # it has begun meanwhile
                self.own_run.close()

    def _receive(self) -> tuple[Frame, BatchDescriptor | None, dict[str, Any]] | None:
        try:
            return self._way.next()
        except CallsClosedError:
            return None
        except ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, PecanError) else error from None
        except (ray.exceptions.RayError, OSError):
            # The group is gone, or its way: the reader looks for another one where it is in the epochs.
            return None

    @contextlib.contextmanager
    def _log_long_wait(self) -> Iterator[None]:
        if self.read or self.own_run is not None:
            yield
            return
        with LongWait(f"the shared group {self.group} has no batch yet: its workers start, or readers lag behind"):
            yield

    def progress(self) -> TrainerProgress:
        """Return how the trainer is doing."""
        return TrainerProgress(self.read, self._rows, self._waited_s, time.monotonic() - self._started)


class ShareSession:
    """A reader of a group; `close` leaves it, and so does the end of the process."""

    def __init__(self, request: ShareRequest) -> None:
        check_no_loader_workers()
        cluster.attach()
        self.attach_time_s = time.monotonic()
        self.group = request.group
        self._calls = Calls()
        self._stats: JobStats | None = None
        self._report: Any = None
        self.readers = 0
        self.held_back_s: tuple[tuple[str, float], ...] = ()
        """Who has held the others of the group back, when it was asked last."""
        self._entry = GroupEntry(request, self._calls)
        self.client = ShareClient(request, self._entry)
        # Not at the interpreter's end: the group notices by itself that this process has ended.
        weakref.finalize(self, self.client.drop).atexit = False
        self._note_end = weakref.finalize(self, self.client.note_end)
        self._note_end.atexit = False

    @property
    def producer(self) -> Any:
        """The group's actor."""
        return self._entry.producer

    @property
    def closed(self) -> bool:
        """Return whether the group was left."""
        return self._stats is not None

    def stats(self) -> JobStats:
        """Return nothing but the name: the job is the group's."""
        return JobStats(self.group)

    def run_report(self) -> Any:
        """Return what the group's run reports; None where it cannot be asked any more."""
        if self._stats is None and (run := self.client.own_run) is not None:
            return run.report()
        if self._stats is None:
            # A group that is gone, or hangs, must not hold up the end of a training loop.
            with contextlib.suppress(ClusterError, TimeoutError, ray.exceptions.RayError):
                facts = self._calls.result(self._calls.begin(self.producer.stats, True), LEAVE_S)
                self._report, self.readers, self.held_back_s = facts.run, len(facts.readers), facts.held_back_s
        return self._report

    def scale(self, workers: Workers) -> None:
        """Change the numbers of workers, for all readers."""
        if (run := self.client.own_run) is not None:
            run.scale(local=workers.local, remote=workers.remote)
        else:
            self._calls.ask(self.producer.scale, workers.local, workers.remote)

    def set_remote_io(self, bytes_per_s: float | None) -> NoReturn:
        """Raise PlanError: the bound is the group's."""
        raise PlanError(
            "set_remote_io: the workers are those of a shared group, whose quota is Config(remote_io=...) of its "
            "first reader: give it there."
        )

    def close(self, *, keep: bool = False) -> None:
        """Leave the group, which ends if nobody else comes."""
        if self._stats is None:
            # While the group has this reader: it may end with its last one.
            self.run_report()
            self._stats = JobStats(self.group)
            self._note_end()
            self.client.close()
            with contextlib.suppress(ClusterError, TimeoutError, ray.exceptions.RayError):
                self._calls.result(self._calls.begin(self.producer.leave, self._entry.reader), LEAVE_S)
            self._calls.close()
