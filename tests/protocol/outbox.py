"""A model of how batches travel: those that wait for the credits of trainers, and streams, which work or are broken."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.protocol.clock import Clock, Links
from tests.protocol.engine import Made

if TYPE_CHECKING:
    from tests.protocol.trainer import TrainerModel
    from tests.protocol.worker import WorkerModel

MOST_IN_MESSAGE, MESSAGE_BYTES = 32, 1 << 20
BYTES_PER_S = 1e9
GATHER_S = 0.005
"""A message is put together so long after something came at the latest."""


@dataclass(frozen=True)
class StreamMessage:
    """Batches that travel together against one credit."""

    batches: tuple[Made, ...]
    nbytes: int


class Stream:
    """Both ends of a stream and what is under way."""

    def __init__(self, worker: WorkerModel, trainer: TrainerModel, clock: Clock, links: Links) -> None:
        self.worker, self.trainer = worker, trainer
        self._clock, self._links = clock, links
        self.credits = self.given = 0
        self.ended = False
        """The worker has said that nothing more comes;"""
        self.over = False
        """the trainer reads no more."""
        self._arrival = 0.0
        self._granted = 0.0
        worker.streams.append(self)
        if worker.alive:
            clock.after(links.delay(), worker, worker.outbox.attach, self)
        else:
            self.break_off()

    def grant(self, credits: int) -> None:
        """Let the worker send so many more messages."""
        self._granted = max(self._granted, self._clock.now + self._links.delay())
        self._clock.after(self._granted - self._clock.now, self.worker, self.worker.outbox.credit, self, credits)

    def close(self) -> None:
        """Read no more; the worker notices it."""
        if not self.over:
            self.over = True
            self._clock.after(self._links.delay(), self.worker, self.worker.outbox.detach, self)

    def send(self, message: StreamMessage | None) -> None:
        """Send a message on its way behind those before; None: nothing more comes."""
        self.ended = message is None
        seconds = 0.0 if message is None else message.nbytes / BYTES_PER_S
        self._arrival = max(self._arrival, self._clock.now + self._links.delay()) + seconds
        self._clock.after(self._arrival - self._clock.now, self.trainer, self.trainer.receive, self, message)

    def break_off(self) -> None:
        """The worker is gone: what is under way may still arrive, or not."""
        if not self.over:
            self._clock.after(self._links.delay(), self.trainer, self.trainer.stream_failed, self)


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
        self._before = 0
        self._readers: set[int] | None = None
        """The only ranks for which anything is kept; None: all."""

    def put(self, rank: int | None, made: Made) -> None:
        """Take a batch, as soon as there is room for it."""
        if self._is_wanted(rank, made):
            self.without_room.append((rank, made))
        self._fill()

    def leave_epochs(self, before: int) -> None:
        """Drop the batches of epochs before one."""
        self._before = max(self._before, before)
        self._drop_unwanted()

    def drain(self) -> None:
        """Drop what is for ranks that were given nothing so far."""
        if self._readers is None:
            self._readers = {stream.trainer.rank for stream in self._worker.streams if stream.given}
        self._drop_unwanted()

    def _is_wanted(self, rank: int | None, made: Made) -> bool:
        return made.epoch >= self._before and (rank is None or self._readers is None or rank in self._readers)

    def _drop_unwanted(self) -> None:
        self._batches = deque(item for item in self._batches if self._is_wanted(*item))
        kept = [item for item in self.without_room if self._is_wanted(*item)]
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
                    stream.send(None)

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
        credits = {stream.trainer.name: stream.credits for stream in self._attached}
        return f"outbox {[rank for rank, _ in self._batches]}, without room {len(self.without_room)}, credits {credits}"
