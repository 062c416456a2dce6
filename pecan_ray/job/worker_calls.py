"""What workers ask: each question is answered once, however often it comes, and some wait for their answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pecan_ray.job.events import WorkerAsked
from pecan_ray.job.instructions import Answer
from pecan_ray.job.messages import Reply


@dataclass
class OpenCall:
    """The last question of a worker on one channel."""

    asked: WorkerAsked
    reply: Reply | None = None


class WorkerCalls:
    """The last questions of all workers, and those that wait."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], OpenCall] = {}
        self._waiting: dict[tuple[str, str], WorkerAsked] = {}

    def arrived(self, asked: WorkerAsked) -> WorkerAsked | Answer | None:
        """Take a question: return it if it is new, its answer if it has one, else None: it waits, or is over."""
        call = self._calls.get((asked.worker, asked.channel))
        if call is None or asked.number > call.asked.number:
            self._calls[asked.worker, asked.channel] = OpenCall(asked)
            self._waiting.pop((asked.worker, asked.channel), None)
            return asked
        if asked.number < call.asked.number or call.reply is None:
            return None
        return self._answer(call)

    def wait(self, asked: WorkerAsked) -> None:
        """Let a question wait for its answer."""
        self._waiting[asked.worker, asked.channel] = asked

    def waiting(self) -> Iterator[WorkerAsked]:
        """Yield the questions that wait, the oldest first."""
        # A copy, because whoever goes through these takes out what it answers.
        yield from list(self._waiting.values())

    def __len__(self) -> int:
        return len(self._waiting)

    def answer(self, asked: WorkerAsked, reply: Reply) -> Answer:
        """Answer a question."""
        self._waiting.pop((asked.worker, asked.channel), None)
        call = self._calls[asked.worker, asked.channel]
        call.reply = reply
        return self._answer(call)

    @staticmethod
    def _answer(call: OpenCall) -> Answer:
        assert call.reply is not None
        return Answer(call.asked.worker, call.asked.channel, call.asked.number, call.reply)

    def forget(self, worker: str) -> None:
        """Drop what a worker has asked that is gone."""
        for key in [key for key in self._calls if key[0] == worker]:
            del self._calls[key]
            self._waiting.pop(key, None)
