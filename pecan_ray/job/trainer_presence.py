"""Trainers that come, speak, fall silent and leave, and what that means for their job."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from pecan_ray.errors import ClusterError, PecanError, RankTakenError, StaleJobError
from pecan_ray.job import events
from pecan_ray.job.core import JobCore
from pecan_ray.job.instructions import (
    BeginListing,
    FindRoom,
    Instructions,
    Log,
    LookForTrainers,
    RejectTrainer,
    TrainerProcess,
)
from pecan_ray.job.trainers import RegisteredTrainer, silence
from pecan_ray.job.worker_starts import WorkerStarts


class TrainerPresence:
    """The part of a job that knows which trainers are there."""

    def __init__(self, job: JobCore, staffing: WorkerStarts) -> None:
        self._job, self._worker_starts, self._trainers = job, staffing, job.trainers
        self.started = False
        """Whether all ranks have come, and with them the job has begun."""
        self.handlers: dict[type, Callable[[Any, float, Instructions], None]] = {
            events.TrainerRegistered: self._on_registered,
            events.OtherRunRegistered: self._on_other_run,
            events.TrainerChecked: self._on_trainer_checked,
            events.TrainerWaiting: self._on_trainer_waiting,
            events.TrainerLeft: self._on_left,
        }

    def _on_registered(self, event: events.TrainerRegistered, now: float, done: Instructions) -> None:
        before = self._trainers.ranks.get(event.rank)
        rejected = self._trainers.register(event, now)
        if rejected is not None:
            self._reject(event.incarnation, rejected, now, done)
            return
        self._job.ledger.rank_nodes.put(event.rank, event.node)
        if before is not None and before is not self._trainers.ranks[event.rank]:
            self._replace(before, now, done)
        if self._trainers.complete and not self.started:
            self._begin(now, done)

    def _begin(self, now: float, done: Instructions) -> None:
        job, self.started = self._job, True
        job.ledger.finished = job.ledger.epoch == job.spec.shape.end_epoch  # so a run before may have ended
        if text := job.spec.repeated_work():
            job.tell("state", text, now)
            done.append(Log("warning", f"job {job.spec.name}: {text}"))
        done += [BeginListing(), FindRoom(self._trainers.nodes)]

    def _replace(self, before: RegisteredTrainer, now: float, done: Instructions) -> None:
        """Note that a rank has a new process; what workers may have sent to the one before comes from others."""
        message = (
            f"rank {before.registration.rank} has a new process: the one on node {before.registration.node} is not "
            "heard any more"
        )
        self._job.tell("trainer", message, now)
        done.append(Log("warning", f"job {self._job.spec.name}: {message}"))
        for worker in [worker.name for worker in self._job.worker_table.workers.values() if worker.running]:
            why = "it may have sent batches to a process that is gone"
            self._worker_starts.lose(worker, "restart", why, now, done)

    def _on_other_run(self, event: events.OtherRunRegistered, now: float, done: Instructions) -> None:
        self._reject(event.incarnation, self._trainers.yield_to_run(now), now, done)

    def _reject(self, incarnation: str, why: PecanError, now: float, done: Instructions) -> None:
        done.append(RejectTrainer(incarnation, why))
        self._look_for(self._trainers.to_look_for(now, at_once=True), done)
        # A stale job keeps its name from the next launch, so it ends now and does not wait for its deadline.
        self._end_if_abandoned(done, orphaned=isinstance(why, StaleJobError))

    def _on_trainer_checked(self, event: events.TrainerChecked, now: float, done: Instructions) -> None:
        self._trainers.note_check(event, now)

    def _on_trainer_waiting(self, event: events.TrainerWaiting, now: float, done: Instructions) -> None:
        self.handle_update(event.rank, event.incarnation, event.met, now, done)

    def handle_update(
        self, rank: int, incarnation: str, met: int, now: float, done: Instructions
    ) -> RegisteredTrainer | None:
        """Note that a trainer has spoken, and return it; refuse one whose rank another process has by now."""
        trainer = self._trainers.get(rank, incarnation)
        if trainer is not None:
            # Messages may come late, and tell of fewer workers than the trainer knows.
            trainer.hearing, trainer.met = trainer.hearing.heard(now), max(trainer.met, met)
        elif rank in self._trainers.ranks:
            message = f"job {self._job.spec.name}: rank {rank} was not heard, and another process has taken its place."
            done.append(RejectTrainer(incarnation, RankTakenError(message)))
        return trainer

    def _on_left(self, event: events.TrainerLeft, now: float, done: Instructions) -> None:
        trainer = self._trainers.get(event.rank, event.incarnation)
        if trainer is None or trainer.left:
            return
        self._trainers.leave(event.rank)
        job = self._job
        # Decision 163: ranks use batches in step. So what a rank with all its steps has had, the others have received.
        early = not event.finished and (event.unused or not job.ledger.finished)
        if early and self._trainers.present:
            message = f"job {job.spec.name}: rank {event.rank} has left before the end, so the others stop."
            job.fail(ClusterError(message), now, done)
        self._end_if_abandoned(done)

    def _end_if_abandoned(self, done: Instructions, *, orphaned: bool = False) -> None:
        if (self._trainers.ranks and not self._trainers.present) or orphaned:
            self._job.end(done, orphaned=orphaned)

    def look(self, now: float, done: Instructions) -> None:
        """Act on silence: of a trainer, or of all of them."""
        job = self._job
        self._look_for(self._trainers.to_look_for(now), done)
        for rank in self._trainers.timed_out(now):
            trainer = self._trainers.ranks[rank]
            self._trainers.leave(rank)
            # All may be delivered, and yet batches that this rank has not used are lost with it.
            if trainer.progress.queued or not job.ledger.finished:
                job.fail(_lost(job.spec.name, trainer, now), now, done)
        ranks = self._trainers.ranks
        orphaned = not self._trainers.present if ranks else self._trainers.orphaned(now)
        self._end_if_abandoned(done, orphaned=orphaned)

    @staticmethod
    def _look_for(trainers: tuple[TrainerProcess, ...], done: Instructions) -> None:
        if trainers:
            done.append(LookForTrainers(trainers))

    def waiting_for(self, now: float) -> dict[Hashable, str]:
        """Return what is to be said of trainers that say nothing."""
        timeout_s = self._job.spec.timeouts.trainer_s
        return {("silent", one.registration.rank): silence(one, timeout_s) for one in self._trainers.quiet(now)}

    def waited_since(self, now: float) -> dict[Hashable, float]:
        """Return since when they say nothing."""
        return {("silent", one.registration.rank): one.hearing.last_seen for one in self._trainers.quiet(now)}


def _lost(job: str, trainer: RegisteredTrainer, now: float) -> ClusterError:
    why = "its process has ended" if trainer.hearing.ended else "nobody could tell whether its process exists"
    return ClusterError(
        f"job {job}: rank {trainer.registration.rank} on node {trainer.registration.node} has not been heard for "
        f"{now - trainer.hearing.last_seen:.0f} s (Config(trainer_timeout_s=...)): {why}, so the others stop."
    )
