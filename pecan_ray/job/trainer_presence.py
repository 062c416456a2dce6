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
from pecan_ray.job.staffing import Staffing
from pecan_ray.job.trainers import RegisteredTrainer, silence


class TrainerPresence:
    """The part of a job that knows which trainers are there."""

    def __init__(self, job: JobCore, staffing: Staffing) -> None:
        self._job, self._staffing, self._trainers = job, staffing, job.trainers
        self.begun = False
        """Whether all ranks have come, and with them the job has begun."""
        self.handlers: dict[type, Callable[[Any, float, Instructions], None]] = {
            events.TrainerCame: self._on_came,
            events.OtherRunCame: self._on_other_run,
            events.TrainerLookedFor: self._on_looked_for,
            events.TrainerWaiting: self._on_trainer_waiting,
            events.TrainerLeft: self._on_left,
        }

    def _on_came(self, event: events.TrainerCame, now: float, done: Instructions) -> None:
        before = self._trainers.ranks.get(event.rank)
        refused = self._trainers.come(event, now)
        if refused is not None:
            self._reject(event.incarnation, refused, now, done)
            return
        if before is not None and before is not self._trainers.ranks[event.rank]:
            self._replace(before, now, done)
        if self._trainers.complete and not self.begun:
            self._begin(now, done)

    def _begin(self, now: float, done: Instructions) -> None:
        job, self.begun = self._job, True
        job.ledger.finished = job.ledger.epoch == job.spec.shape.end_epoch  # so a run before may have ended
        if text := job.spec.made_again():
            job.tell("state", text, now)
            done.append(Log("warning", f"job {job.spec.name}: {text}"))
        done += [BeginListing(), FindRoom(self._trainers.nodes)]

    def _replace(self, before: RegisteredTrainer, now: float, done: Instructions) -> None:
        """Note that a rank has a new process; what workers may have sent to the one before comes from others."""
        said = f"rank {before.came.rank} has a new process: the one on node {before.came.node} is not heard any more"
        self._job.tell("trainer", said, now)
        done.append(Log("warning", f"job {self._job.spec.name}: {said}"))
        for worker in [worker.name for worker in self._job.fleet.workers.values() if worker.running]:
            why = "it may have sent batches to a process that is gone"
            self._staffing.lose(worker, "restart", why, now, done)

    def _on_other_run(self, event: events.OtherRunCame, now: float, done: Instructions) -> None:
        self._reject(event.incarnation, self._trainers.give_way(now), now, done)

    def _reject(self, incarnation: str, why: PecanError, now: float, done: Instructions) -> None:
        done.append(RejectTrainer(incarnation, why))
        self._look_for(self._trainers.to_look_for(now, at_once=True), done)
        self._end_if_abandoned(done, orphaned=isinstance(why, StaleJobError))

    def _on_looked_for(self, event: events.TrainerLookedFor, now: float, done: Instructions) -> None:
        self._trainers.looked_for(event, now)

    def _on_trainer_waiting(self, event: events.TrainerWaiting, now: float, done: Instructions) -> None:
        self.handle_update(event.rank, event.incarnation, event.met, now, done)

    def handle_update(
        self, rank: int, incarnation: str, met: int, now: float, done: Instructions
    ) -> RegisteredTrainer | None:
        """Note that a trainer has spoken, and return it; refuse one whose rank another process has by now."""
        trainer = self._trainers.get(rank, incarnation)
        if trainer is not None:
            # Messages may come late, and tell of fewer workers than the trainer knows.
            trainer.heard, trainer.met = now, max(trainer.met, met)
        elif rank in self._trainers.ranks:
            said = f"job {self._job.spec.name}: rank {rank} was not heard, and another process has taken its place."
            done.append(RejectTrainer(incarnation, RankTakenError(said)))
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
            said = f"job {job.spec.name}: rank {event.rank} has left before the end, so the others stop."
            job.fail(ClusterError(said), now, done)
        self._end_if_abandoned(done)

    def _end_if_abandoned(self, done: Instructions, *, orphaned: bool = False) -> None:
        if (self._trainers.ranks and not self._trainers.present) or orphaned:
            self._job.end(done, orphaned=orphaned)

    def look(self, now: float, done: Instructions) -> None:
        """Act on silence: of a trainer, or of all of them."""
        job = self._job
        self._look_for(self._trainers.to_look_for(now), done)
        for rank in self._trainers.silent(now):
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

    def waits(self, now: float) -> dict[Hashable, str]:
        """Return what is to be said of trainers that say nothing."""
        timeout_s = self._job.spec.trainer_timeout_s
        return {("silent", one.came.rank): silence(one, timeout_s) for one in self._trainers.quiet(now)}

    def waited_since(self, now: float) -> dict[Hashable, float]:
        """Return since when they say nothing."""
        return {("silent", one.came.rank): one.heard for one in self._trainers.quiet(now)}


def _lost(job: str, trainer: RegisteredTrainer, now: float) -> ClusterError:
    why = "its process has ended" if trainer.ended else "nobody could tell whether its process exists"
    return ClusterError(
        f"job {job}: rank {trainer.came.rank} on node {trainer.came.node} has not been heard for "
        f"{now - trainer.heard:.0f} s (Config(trainer_timeout_s=...)): {why}, so the others stop."
    )
