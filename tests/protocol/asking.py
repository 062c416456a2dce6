"""A model of a worker's channel of questions to the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pecan_ray.job import events
from pecan_ray.job.messages import Reply, WorkerQuestion

if TYPE_CHECKING:
    from tests.protocol.worker import WorkerModel

REPEAT_S = 2.0
"""A question that was not answered for so long is asked again."""


class AskingModel:
    """One channel of questions: one at a time, repeated until it is answered."""

    def __init__(self, worker: WorkerModel, channel: str) -> None:
        self._worker, self.channel = worker, channel
        self.number = 0
        self.question: WorkerQuestion | None = None
        self._then: Callable[[Any], None] = lambda reply: None

    def ask(self, question: WorkerQuestion, then: Callable[[Any], None]) -> None:
        """Ask, and go on with the answer."""
        assert self.question is None, f"{self._worker.name} asks {question} before {self.question} was answered"
        self.number += 1
        self.question, self._then = question, then
        self._send(self.number)

    def _send(self, number: int) -> None:
        worker = self._worker
        if self.question is not None and number == self.number and not worker.closed:
            world = worker.world
            worker.heartbeat.asked = world.clock.now
            asked = events.WorkerAsked(worker.name, self.channel, number, self.question)
            world.links.send(world.job, world.job.handle, asked)
            world.clock.after(REPEAT_S, worker, self._send, number)

    def answered(self, number: int, reply: Reply) -> None:
        """Take an answer, unless it has come before."""
        if self.question is not None and number == self.number and not self._worker.closed:
            self.question = None
            self._then(reply)
