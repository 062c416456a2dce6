"""How a job that goes on from its journal finds out that the journal has lost its last events.

An event is in the journal before anybody is answered.  Trainers and workers number what they say, and go on to the next
number with the answer: a job that lacks a number in between has answered, and does not know it.
"""

from __future__ import annotations

from pecan_ray.job import events
from pecan_ray.job.state import JobState


def lost_before(state: JobState, event: events.Event) -> str:
    """Say what the sender of an event was answered of which the job knows nothing; empty if it knows all of it."""
    if state.ended:  # then it takes no more notes
        return ""
    if isinstance(event, events.TrainerWaiting):
        number, known = event.number, state.trainer_update(event.rank).number
        if number > known and _is_served(state, event.rank, event.incarnation):
            return f"rank {event.rank} has orders of number {number}, and the last ones there have number {known}"
    elif isinstance(event, events.TrainerReported):
        report, trainer = event.report, state.trainers.ranks.get(event.report.rank)
        known = trainer.reported if trainer is not None else 0
        if report.number > known + 1 and _is_served(state, report.rank, report.incarnation):
            return f"rank {report.rank} sends its report {report.number}, and the last one there is report {known}"
    elif isinstance(event, events.WorkerRequestReceived) and event.worker in state.worker_table.workers:
        known = state.job_requests.calls.last_number(event.worker, event.channel)
        if event.number > known + 1:
            return f"{event.worker} asks its question {event.number}, and the last one there is question {known}"
    return ""


def _is_served(state: JobState, rank: int, incarnation: str) -> bool:
    """Tell whether no other process has a trainer's rank: one whose rank was taken is refused, whatever it says."""
    return rank not in state.trainers.ranks or state.trainers.get(rank, incarnation) is not None
