"""One reader of a shared group, as its trainer sees it: joins, iterates, reports, leaves."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import ray

from pecan_ray.errors import ClusterError, PecanError, PlanError
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.job.stats import JobStats
from pecan_ray.options import Config, Workers
from pecan_ray.runtime import cluster
from pecan_ray.runtime.calls import Calls, CallsClosedError, PendingResponse
from pecan_ray.runtime.long_wait import LongWait
from pecan_ray.runtime.received import Provenance, Received
from pecan_ray.runtime.session import check_no_loader_workers
from pecan_ray.runtime.share_messages import BatchFrame, Frame, GroupPlan, Joined, JoinRequest
from pecan_ray.runtime.shared_producer import producer_of
from pecan_ray.transport.message_pipe import MessageReader
from pecan_ray.transport.messages import Message
from pecan_ray.transport.ring import ring_supported
from pecan_ray.transport.share_channel import ChannelAddress
from pecan_ray.transport.shared_slots import BatchDescriptor, SlotBorrower

AHEAD = 2
"""Batches that a reader may have before its loop asks for them."""
JOIN_S = 120.0
"""A group that has not let a reader in after so long does not."""
LOOK_AGAIN_S = 0.2
SPEAK_S = 1.0
LEAVE_S = 10.0


@dataclass(frozen=True)
class ShareRequest:
    """What a reader wants to share."""

    group: str
    plan: GroupPlan
    epochs: int | None
    config: Config

    def with_first_epoch(self, first_epoch: int) -> ShareRequest:
        """Return the request where a group that is to begin does so with an epoch."""
        return replace(self, plan=replace(self.plan, first_epoch=first_epoch))


class _GroupPipeWay:
    """Batches of a group on this node, in memory that is mapped read-only."""

    def __init__(self, address: ChannelAddress) -> None:
        """Raises OSError where the group is gone."""
        self._messages = MessageReader(address.pipe)
        self._borrower = SlotBorrower(address.pipe.pid, address.releases)
        self._frames = iter(self._messages)
        self._messages.grant(AHEAD)

    def next(self) -> tuple[Frame, BatchDescriptor | None, dict[str, Any]] | None:
        """Return the next frame with what it brings; None: the group is gone, or this is closed."""
        data = next(self._frames, None)
        if data is None:
            return None
        frame: Frame = pickle.loads(data)
        if not isinstance(frame, BatchFrame):
            return frame, None, {}
        self._borrower.forget(frame.forget)
        batch: BatchDescriptor = pickle.loads(frame.batch)
        columns = self._borrower.open(batch)
        self._messages.grant(1)
        return frame, batch, columns

    def stop(self) -> None:
        """Let the one go who waits."""
        self._messages.stop()

    def close(self) -> None:
        """Leave; batches that are held stay valid."""
        self._messages.close()
        self._borrower.close()


class _GroupStoreWay:
    """Batches of a group elsewhere, through Ray's object store."""

    def __init__(self, producer: Any, reader: str, calls: Calls) -> None:
        self._producer, self._reader, self._calls = producer, reader, calls
        self._pending: deque[PendingResponse] = deque(calls.begin(producer.take, reader) for _ in range(AHEAD))
        self._closed = threading.Event()
        self._heartbeat_thread = threading.Thread(target=self._send_heartbeat, name="pecan-share-reader", daemon=True)
        self._heartbeat_thread.start()

    def _send_heartbeat(self) -> None:
        """Say now and then that this process lives."""
        with contextlib.suppress(ClusterError):  # Ray was shut down
            while not self._closed.wait(SPEAK_S):
                self._calls.tell(self._producer.note_alive, self._reader)

    def next(self) -> tuple[Frame, BatchDescriptor | None, dict[str, Any]] | None:
        """Return the next frame with what it brings."""
        data, references = self._calls.result(self._pending.popleft())
        frame: Frame = pickle.loads(data)
        if not isinstance(frame, BatchFrame):
            return frame, None, {}
        # Asked for before this batch is fetched, so that the next one is made meanwhile.
        self._pending.append(self._calls.begin(self._producer.take, self._reader))
        with self._calls.connection():
            # Popped, so that no other reference is left, which could go while Ray ends (see `calls`).
            fetched = PendingResponse(references.pop())
        return frame, pickle.loads(frame.batch), self._calls.result(fetched)

    def stop(self) -> None:
        """Let the one go who waits."""
        self._closed.set()
        self._calls.close()

    def close(self) -> None:
        """Leave, without waiting for anything."""
        self.stop()
        with contextlib.suppress(ClusterError, ray.exceptions.RayError):
            self._calls.tell(self._producer.leave, self._reader)
        while self._pending:
            self._pending.pop().close()


class ShareClient:
    """Takes one reader's batches; used by one thread at a time, but for `stop`."""

    def __init__(self, group: str, way: _GroupPipeWay | _GroupStoreWay) -> None:
        self.group, self._way = group, way
        self._started = time.monotonic()
        self._over = self._stopped = False
        self._using = threading.RLock()
        """Held while the way is used, so that it is not closed under its user."""
        self.first_batch_s: float | None = None
        self.read = self.skipped = self._rows = 0
        self.epoch = -1
        """Of the group, that was read last; -1: nothing was read."""
        self._waited_s = 0.0

    def next(self) -> Received | None:
        """Return the next batch, waiting for it; None when this reader has had all.  Raises the group's error."""
        cluster.check_same_process()
        if self._over:
            return None
        started = time.monotonic()
        with self._using, self._log_long_wait():
            came = None if self._stopped else self._receive()
        self._waited_s += time.monotonic() - started
        if self._stopped:
            return None
        if came is None:
            raise ClusterError(
                f"the shared group {self.group} is gone: its process or node was lost. Start the run again: another "
                "group begins."
            )
        frame, batch, columns = came
        self.skipped = max(self.skipped, frame.skipped)
        if not isinstance(frame, BatchFrame) or batch is None:
            self._over = True
            if not isinstance(frame, BatchFrame) and frame.error is not None:
                raise frame.error
            return None
        self.read += 1
        self.epoch = batch.epoch
        self._rows += batch.rows
        if self.first_batch_s is None:
            self.first_batch_s = time.monotonic() - self._started
        provenance = Provenance(batch.epoch, batch.worker, batch.spans, batch.rows)
        return Received(columns, provenance, Message({}, batch.spans, batch.rows, batch.epoch))

    def close(self) -> None:
        """Take no more, and let the one go who waits."""
        self._stopped = True
        # Before the lock is taken, because whoever waits for a batch holds it.
        self._way.stop()
        with self._using:
            self._way.close()

    def _receive(self) -> tuple[Frame, BatchDescriptor | None, dict[str, Any]] | None:
        try:
            return self._way.next()
        except CallsClosedError:
            return None
        except ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, PecanError) else error from None
        except (ray.exceptions.RayError, OSError):
            return None

    @contextlib.contextmanager
    def _log_long_wait(self) -> Iterator[None]:
        if self.read:
            yield
            return
        with LongWait(f"the shared group {self.group} has no batch yet: its workers start, or readers lag behind"):
            yield

    def progress(self) -> TrainerProgress:
        """Return how the trainer is doing."""
        return TrainerProgress(self.read, self._rows, self._waited_s, time.monotonic() - self._started)


_read_before: dict[str, int] = {}
"""By the actor of a group: the last epoch that an earlier reader of this process has read, which has left."""


def _note_end(group: str, client: ShareClient) -> None:
    """Note what a reader that is leaving has read: a later reader of this process begins behind it."""
    _read_before[group] = max(client.epoch, _read_before.get(group, -1))


class ShareSession:
    """A reader of a group; `close` leaves it, and so does the end of the process."""

    def __init__(self, request: ShareRequest) -> None:
        check_no_loader_workers()
        cluster.attach()
        self.attach_time_s = time.monotonic()
        self.group = request.group
        self.reader = f"{request.plan.pipeline}@{socket.gethostname()}:{os.getpid()}-{os.urandom(3).hex()}"
        self._calls = Calls()
        self._stats: JobStats | None = None
        self._report: Any = None
        self.readers = 0
        with LongWait(f"the shared group {self.group} is being started, or joined") as wait:
            self.producer, way = self._joined(request, wait)
        self.client = ShareClient(self.group, way)
        # Not at the interpreter's end: the group notices by itself that this process has ended.
        weakref.finalize(self, way.close).atexit = False
        self._note_end = weakref.finalize(self, _note_end, self.producer._actor_id.hex(), self.client)
        self._note_end.atexit = False

    def _joined(self, request: ShareRequest, wait: LongWait) -> tuple[Any, _GroupPipeWay | _GroupStoreWay]:
        """Find or start the group and become one of its readers; raises PecanError if that cannot be."""
        until = time.monotonic() + JOIN_S
        while True:
            try:
                producer = producer_of(self.group)
                node, pid = ray.get(producer.place.remote())
                by_pipe = self._sees(node, pid, request.config)
                mine = cluster.this_node()
                behind = _read_before.get(producer._actor_id.hex(), -1)
                process = cluster.this_process()
                asked = JoinRequest(self.reader, mine, by_pipe, request.epochs, request.plan.parts, behind, process)
                answer = ray.get(producer.join.remote(asked))
                if answer == "unopened":
                    ray.get(producer.open.remote(request.plan))
                    continue
                if isinstance(answer, Joined):
                    if answer.channel is not None:
                        return producer, _GroupPipeWay(answer.channel)
                    return producer, _GroupStoreWay(producer, self.reader, self._calls)
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, PecanError) else error from None
            except (ray.exceptions.RayActorError, ray.exceptions.ActorAlreadyExistsError, OSError) as error:
                if time.monotonic() > until:
                    raise ClusterError(f"the shared group {self.group} cannot be joined: {error}") from error
            wait.switch_to(f"the shared group {self.group} before this one is ending")
            if time.monotonic() > until:
                raise ClusterError(f"the shared group {self.group} has been ending for {JOIN_S:.0f} s: `pecan stop`.")
            time.sleep(LOOK_AGAIN_S)

    def _sees(self, node: str, pid: int, config: Config) -> bool:
        """Tell whether batches can come in memory that is mapped."""
        # Decision 2: mapped memory is a file of the group's process, which another user's may not open.
        near = node == cluster.this_node() and config.transport != "object_store" and ring_supported()[0]
        return near and os.access(f"/proc/{pid}/fd", os.R_OK | os.X_OK)

    @property
    def closed(self) -> bool:
        """Whether the group was left."""
        return self._stats is not None

    def stats(self) -> JobStats:
        """Return nothing but the name: the job is the group's."""
        return JobStats(self.group)

    def run_report(self) -> Any:
        """Return what the group's run reports; None where it cannot be asked any more."""
        if self._stats is None:
            with contextlib.suppress(ClusterError, TimeoutError, ray.exceptions.RayError):
                facts = self._calls.result(self._calls.begin(self.producer.stats, True), LEAVE_S)
                self._report, self.readers = facts.run, len(facts.readers)
        return self._report

    def scale(self, workers: Workers) -> None:
        """Change the numbers of workers, for all readers."""
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
                self._calls.result(self._calls.begin(self.producer.leave, self.reader), LEAVE_S)
            self._calls.close()
