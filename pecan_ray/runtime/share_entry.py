"""How a reader finds its group, and the two ways on which batches come from there: mapped memory and actor calls."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import ray

from pecan_ray.errors import ClusterError, PecanError
from pecan_ray.job.share_group import Place
from pecan_ray.job.share_trials import TrialRank
from pecan_ray.options import Config
from pecan_ray.runtime import cluster
from pecan_ray.runtime.calls import Calls, CallsClosedError, PendingResponse
from pecan_ray.runtime.host_names import named
from pecan_ray.runtime.long_wait import LongWait
from pecan_ray.runtime.share_messages import BatchFrame, Frame, GroupPlan, Joined, JoinRequest
from pecan_ray.runtime.shared_producer import producer_of
from pecan_ray.transport.message_pipe import MessageReader
from pecan_ray.transport.ring import ring_supported
from pecan_ray.transport.share_channel import ChannelAddress
from pecan_ray.transport.shared_slots import BatchDescriptor, SlotBorrower

AHEAD = 2
"""Batches that a reader may have before its loop asks for them: one comes while the other one is used."""
JOIN_S = 120.0
"""A group that has not let a reader in after so long does not: until then the one before it may end, and its actor
start."""
# Seconds between questions while the group before this one ends, which takes it seconds.
LOOK_AGAIN_S = 0.2
# Seconds between two signs of life: five of them may be lost within the shortest timeout of a reader.
SPEAK_S = 1.0


@dataclass(frozen=True)
class ShareRequest:
    """What a reader wants to share."""

    group: str
    plan: GroupPlan
    epochs: int | None
    config: Config
    of: TrialRank | None = None
    """None: it reads all batches."""

    def with_first_epoch(self, first_epoch: int) -> ShareRequest:
        """Return the request where a group that is to begin does so with an epoch."""
        return replace(self, plan=replace(self.plan, first_epoch=first_epoch))


class GroupPipeWay:
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


class GroupStoreWay:
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
        # A group that is not told misses this reader by its silence.
        with contextlib.suppress(ClusterError, ray.exceptions.RayError):
            self._calls.tell(self._producer.leave, self._reader)
        while self._pending:
            self._pending.pop().close()


GroupWay: TypeAlias = GroupPipeWay | GroupStoreWay


class GroupEntry:
    """Where a reader gets into its group, once or again."""

    def __init__(self, request: ShareRequest, calls: Calls) -> None:
        self.request, self._calls, self.reader = request, calls, ""
        self.producer: Any = None
        """The actor of the group that was joined last."""
        self._process = ("", 0)
        """Its node and process."""

    def join(self, epochs: int | None, behind: int, stopped: Callable[[], bool]) -> tuple[GroupWay, Place]:
        """Find or start the group and become one of its readers; return where the reader's epochs begin.

        Args:
            epochs: How many to read; None: without end.
            behind: Number of the last epoch that this reader has had; -1: there is none.
            stopped: Tells whether nobody wants to join any more.

        Raises:
            PecanError: The group has another pipeline, or cannot be joined.
            CallsClosedError: `stopped`.
        """
        group = self.request.group
        with LongWait(f"the shared group {group} is being started, or joined") as wait:
            until = time.monotonic() + JOIN_S
            while not stopped():
                try:
                    if (entered := self._try(epochs, behind)) is not None:
                        return entered
                except ray.exceptions.RayTaskError as error:
                    raise error.cause if isinstance(error.cause, PecanError) else error from None
                except (ray.exceptions.RayActorError, ray.exceptions.ActorAlreadyExistsError, OSError) as error:
                    if time.monotonic() > until:
                        raise ClusterError(f"the shared group {group} cannot be joined: {error}") from error
                wait.switch_to(f"the shared group {group} before this one is ending")
                if time.monotonic() > until:
                    raise ClusterError(f"the shared group {group} has been ending for {JOIN_S:.0f} s: `pecan stop`.")
                time.sleep(LOOK_AGAIN_S)
            raise CallsClosedError("the iterator was closed")

    def _try(self, epochs: int | None, behind: int) -> tuple[GroupWay, Place] | None:
        """Ask the group once; None: it is ending."""
        request = self.request
        self.producer = producer = producer_of(request.group)
        self._process = node, pid = ray.get(producer.place.remote())
        self.reader = f"{request.plan.pipeline}@{socket.gethostname()}:{os.getpid()}-{os.urandom(3).hex()}"
        by_pipe = _sees(node, pid, request.config)
        last = max(behind, _read_before.get(self.joined, -1))
        process = cluster.this_process()
        asked = JoinRequest(
            self.reader, cluster.this_node(), by_pipe, epochs, request.plan.parts, last, process, request.of
        )
        answer = ray.get(producer.join.remote(asked))
        if answer == "unopened":
            ray.get(producer.open.remote(request.with_first_epoch(max(request.plan.first_epoch, behind + 1)).plan))
            answer = ray.get(producer.join.remote(asked))
        if not isinstance(answer, Joined):
            return None
        if answer.channel is not None:
            return GroupPipeWay(answer.channel), answer.since
        return GroupStoreWay(producer, self.reader, Calls()), answer.since

    @property
    def joined(self) -> tuple[str, str]:
        """The group's actor, because another one of the same name has another, and the trial, if it has ranks."""
        return str(self.producer._actor_id.hex()), "" if self.request.of is None else self.request.of.trial

    def lost_reason(self) -> str:
        """Say what has become of a group that does not answer; raises ClusterError if Ray was shut down."""
        node, pid = self._process
        with self._calls.connection():
            pass
        try:
            gone = node not in cluster.alive_nodes()
        except ray.exceptions.RayError:
            gone = False
        return named(f"its node {node} was lost" if gone else f"its process {pid} on node {node} has ended")


def _sees(node: str, pid: int, config: Config) -> bool:
    """Tell whether batches can come in memory that is mapped."""
    # Decision 2: mapped memory is a file of the group's process, which another user's may not open.
    near = node == cluster.this_node() and config.transport != "object_store" and ring_supported()[0]
    return near and os.access(f"/proc/{pid}/fd", os.R_OK | os.X_OK)


_read_before: dict[tuple[str, str], int] = {}
"""By what was joined: the last epoch that an earlier reader of this process has read, which has left."""


def note_end(joined: tuple[str, str], epoch: int) -> None:
    """Note what a reader that is leaving has read: a later reader of this process begins behind it."""
    _read_before[joined] = max(epoch, _read_before.get(joined, -1))
