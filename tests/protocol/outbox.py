"""A model of what a worker has finished and not sent: batches that wait for the credits of trainers."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tests.protocol.engine import Made
from tests.protocol.stream import MESSAGE_BYTES, MOST_IN_MESSAGE, Stream, StreamMessage

if TYPE_CHECKING:
    from tests.protocol.worker import WorkerModel

GATHER_S = 0.005
"""A message is put together so long after something came at the latest."""


class OutboxModel:
    """The batches of one worker, each for one rank or for any."""

    def __init__(self, worker: WorkerModel) -> None:
        self._worker, self._world = worker, worker.world
        self._row_bytes, self._room = worker.world.scenario.row_bytes, worker.world.scenario.outbox
        self._batches: deque[tuple[int | None, Made]] = deque()
        self.without_room: list[tuple[int | None, Made]] = []
        """What has no room among them."""
        self._attached: list[Stream] = []
        self._dispatching = False

    def put(self, rank: int | None, made: Made) -> None:
        """Take a batch, as soon as there is room for it."""
        self.without_room.append((rank, made))
        self._fill()

    def leave_epochs(self, before: int) -> None:
        """Drop the batches of epochs before one."""
        self._batches = deque(item for item in self._batches if item[1].epoch >= before)
        kept = [item for item in self.without_room if item[1].epoch >= before]
        waited, self.without_room = len(kept) < len(self.without_room), kept
        self._fill()
        if waited and not kept:  # else it goes on when there is room
            self._worker.go_on()

    def attach(self, stream: Stream) -> None:
        """A trainer reads from here now."""
        if not stream.over:
            self._attached.append(stream)
            self.dispatch_soon()

    def detach(self, stream: Stream) -> None:
        """A trainer reads no more."""
        if stream in self._attached:
            self._attached.remove(stream)
            self.dispatch_soon()

    def credit(self, stream: Stream, credits: int) -> None:
        """A trainer lets so many more messages come."""
        stream.credits += credits
        self.dispatch_soon()

    def dispatch_soon(self) -> None:
        """Send what can be sent, after what comes at the same time."""
        if not self._dispatching:
            self._dispatching = True
            clock = self._world.clock
            clock.after(GATHER_S * clock.random.random(), self._worker, self._dispatch)

    def _fill(self) -> None:
        waited = bool(self.without_room)
        while self.without_room and len(self._batches) < self._room:
            self._batches.append(self.without_room.pop(0))
            self.dispatch_soon()
        if waited and not self.without_room:
            self._worker.go_on()

    def _dispatch(self) -> None:
        self._dispatching = False
        while self._send_one():
            pass
        self._fill()
        if self._worker.state.over:
            for stream in self._attached:
                if not stream.ended and not any(rank in (None, stream.trainer.rank) for rank, _ in self._batches):
                    stream.end()

    def _send_one(self) -> bool:
        """Send a message to the rank that was given least, of those that may have one."""
        for stream in sorted(self._attached, key=lambda stream: stream.given):
            chosen = self._for(stream.trainer.rank) if stream.credits else []
            if chosen:
                taken = {id(item) for item in chosen}
                self._batches = deque(item for item in self._batches if id(item) not in taken)
                stream.credits -= 1
                stream.given += len(chosen)
                nbytes = sum(made.rows for _, made in chosen) * self._row_bytes
                stream.send(StreamMessage(tuple(made for _, made in chosen), nbytes))
                return True
        return False

    def _for(self, rank: int) -> list[tuple[int | None, Made]]:
        """Return the batches of the next message to a rank."""
        chosen: list[tuple[int | None, Made]] = []
        nbytes = 0
        for item in self._batches:
            size = item[1].rows * self._row_bytes
            if item[0] not in (None, rank):
                continue
            if chosen and nbytes + size > MESSAGE_BYTES:
                break
            chosen.append(item)
            nbytes += size
            if len(chosen) == MOST_IN_MESSAGE:
                break
        return chosen

    def __str__(self) -> str:
        """Say what is here and who reads it, for whoever looks for what a job waits for."""
        streams = [f"{stream.trainer.name}: {stream.credits} credits" for stream in self._attached]
        ranks = [rank for rank, _ in self._batches]
        return f"outbox {ranks}, without room {len(self.without_room)}, streams {streams}"
