"""The worker's side of its questions: numbered by channel, and answered once."""

from __future__ import annotations

from pecan_ray.job.heartbeat import Heartbeat
from pecan_ray.job.messages import WorkerQuestion
from pecan_ray.job.worker_events import AskJob, ReplyReceived

RUN = "run"
"""The channel of assignments, what ends with them, and data that yields no batch."""


class WorkerChannels:
    """What a worker has asked and was not answered: one question at a time on each channel."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._numbers: dict[str, int] = {}
        self._requests: dict[str, WorkerQuestion] = {}

    def ask(self, channel: str, request: WorkerQuestion, now: float, *, ahead: bool = False) -> AskJob:
        """Number a question."""
        assert channel not in self._requests, f"{request} is asked before {self._requests[channel]} was answered"
        number = self._numbers[channel] = self._numbers.get(channel, 0) + 1
        self._requests[channel] = request
        self._heartbeat.requested_at = now  # whoever asks lives, and need not say it besides
        return AskJob(channel, number, request, ahead)

    def is_free(self, channel: str) -> bool:
        """Tell whether a channel has no question under way."""
        return channel not in self._requests

    def pop_request(self, event: ReplyReceived) -> WorkerQuestion | None:
        """Return the question that an answer is for; None: it was answered before."""
        # Decision 22: a question may be asked twice, and then answered twice.
        if event.number != self._numbers.get(event.channel):
            return None
        return self._requests.pop(event.channel, None)
