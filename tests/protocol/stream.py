"""A stream of batches from one worker to one trainer: in order, it works or it is broken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.protocol.clock import Clock, Links
from tests.protocol.engine import Made

if TYPE_CHECKING:
    from tests.protocol.trainer import TrainerModel
    from tests.protocol.worker import WorkerModel

MOST_IN_MESSAGE, MESSAGE_BYTES = 32, 1 << 20
BYTES_PER_S = 1e9


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

    # --- from the trainer ----------------------------------------------------------------------------------

    def grant(self, credits: int) -> None:
        """Let the worker send so many more messages."""
        self._granted = max(self._granted, self._clock.now + self._links.delay())
        self._clock.after(self._granted - self._clock.now, self.worker, self.worker.outbox.credit, self, credits)

    def close(self) -> None:
        """Read no more; the worker notices it."""
        self.over = True
        self._clock.after(self._links.delay(), self.worker, self.worker.outbox.detach, self)

    # --- from the worker -----------------------------------------------------------------------------------

    def send(self, message: StreamMessage) -> None:
        """Send a message on its way behind those before."""
        self._put(message.nbytes / BYTES_PER_S, message)

    def end(self) -> None:
        """Say that nothing more comes."""
        self.ended = True
        self._put(0.0, None)

    def _put(self, seconds: float, message: StreamMessage | None) -> None:
        self._arrival = max(self._arrival, self._clock.now + self._links.delay()) + seconds
        self._clock.after(self._arrival - self._clock.now, self.trainer, self.trainer.receive, self, message)

    def break_off(self) -> None:
        """The worker is gone: what is under way may still arrive, or not."""
        if not self.over:
            self._clock.after(self._links.delay(), self.trainer, self.trainer.stream_failed, self)
