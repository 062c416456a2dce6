"""What workers ask: each question is answered once, however often it comes, and some wait for their answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pecan_ray.job.events import WorkerRequestReceived
from pecan_ray.job.instructions import Response
from pecan_ray.job.messages import Reply


@dataclass
class OpenCall:
    """The last question of a worker on one channel."""

    request: WorkerRequestReceived
    reply: Reply | None = None


class WorkerCalls:
    """The last questions of all workers, and those that wait."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], OpenCall] = {}
        self._waiting: dict[tuple[str, str], WorkerRequestReceived] = {}

    def arrived(self, asked: WorkerRequestReceived) -> WorkerRequestReceived | Response | None:
        """Take a question: return it if it is new, its answer if it has one, else None: it waits, or is over."""
        call = self._calls.get((asked.worker, asked.channel))
        if call is None or asked.number > call.request.number:
            self._calls[asked.worker, asked.channel] = OpenCall(asked)
            # A worker that asks the next question has had the answer to this one, or does without.
            self._waiting.pop((asked.worker, asked.channel), None)
            return asked
        if asked.number < call.request.number or call.reply is None:
            return None
        return self._response(call)

    def last_number(self, worker: str, channel: str) -> int:
        """Return the number of the last question of a channel, 0 where there was none."""
        call = self._calls.get((worker, channel))
        return 0 if call is None else call.request.number

    def wait(self, asked: WorkerRequestReceived) -> None:
        """Let a question wait for its answer."""
        self._waiting[asked.worker, asked.channel] = asked

    def waiting(self) -> Iterator[WorkerRequestReceived]:
        """Yield the questions that wait, the oldest first."""
        # A copy, because whoever goes through these takes out what it answers.
        yield from list(self._waiting.values())

    def __len__(self) -> int:
        return len(self._waiting)

    def response(self, asked: WorkerRequestReceived, reply: Reply) -> Response:
        """Answer a question."""
        self._waiting.pop((asked.worker, asked.channel), None)
        call = self._calls[asked.worker, asked.channel]
        call.reply = reply
        return self._response(call)

    @staticmethod
    def _response(call: OpenCall) -> Response:
        assert call.reply is not None
        return Response(call.request.worker, call.request.channel, call.request.number, call.reply)

    def forget(self, worker: str) -> None:
        """Drop what a worker has asked that is gone."""
        for key in [key for key in self._calls if key[0] == worker]:
            del self._calls[key]
            self._waiting.pop(key, None)
