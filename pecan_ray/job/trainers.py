"""The trainers of a job: who has come, whether they run the same thing, and whether they can still be heard."""

from __future__ import annotations

from dataclasses import dataclass, field

from pecan_ray.errors import PecanError, RankTakenError, StaleJobError
from pecan_ray.job.events import TrainerChecked, TrainerRegistered
from pecan_ray.job.hearing import Hearing
from pecan_ray.job.instructions import TrainerProcess
from pecan_ray.job.messages import TrainerProgress, TrainerReport
from pecan_ray.job.report_pace import longest_silence

STALE = 5
"""A trainer that was not heard for so many of the times in which each must report is gone, where another run comes."""
MARGIN_S = 3.0
"""Another run waits for so long beyond that: for messages that were under way, and for its own next try."""
SILENT = 3
"""A trainer that was not heard for so many of them may be lost."""
LOOKS = 4
"""A trainer that says nothing is looked for so often within its deadline."""
ANSWER_S = 2.0
"""The cluster usually answers within this time: what is said then is what it has answered."""
MOST_NAMED = 8
"""Most ranks that are named in a message; of more, which nobody would read, the number is told."""


@dataclass
class RegisteredTrainer:
    """One rank that has registered."""

    registration: TrainerRegistered
    hearing: Hearing
    reported: int = 0
    """Number of its last report."""
    progress: TrainerProgress = field(default_factory=TrainerProgress)
    met: int = 0
    """Number of workers that it knows."""
    held: bool = False
    """It waits for other ranks."""
    full: bool = False
    """Whether it could take no more meanwhile."""
    left: bool = False
    has_received: bool = False
    """Whether it ever had a batch."""

    def take(self, report: TrainerReport) -> None:
        """Take over what it has told of itself."""
        self.reported, self.progress = report.number, report.progress
        self.held, self.full = report.held, report.full
        self.has_received = self.has_received or bool(report.received.batches)


# Why silence alone loses nobody:
# docs/decisions/running-on-ray.md#94-a-process-that-exists-is-not-lost
class Trainers:
    """All ranks of a job."""

    def __init__(self, job: str, world_size: int, timeout_s: float, now: float) -> None:
        self._job, self._world_size = job, world_size
        self._stale_s = STALE * longest_silence(world_size)
        self._report_s = longest_silence(world_size)
        self._patience_s = self._stale_s + MARGIN_S
        # Of many trainers each reports seldom: a shorter deadline would take honest ones for lost.
        self._timeout_s = max(timeout_s, SILENT * longest_silence(world_size))
        self._started = now
        self.ranks: dict[int, RegisteredTrainer] = {}
        self.present: list[int] = []
        """The ranks that have come and not left."""
        self.rejected: dict[int, str] = {}
        """In what ranks differed that have not come as the others are since."""

    @property
    def progress(self) -> list[TrainerProgress]:
        """What the ranks that have reported have told last."""
        return [trainer.progress for trainer in self.ranks.values() if trainer.reported]

    def register(self, event: TrainerRegistered, now: float) -> PecanError | None:
        """Register a trainer; return why it cannot be, if so.

        What is in its way may be of an earlier launch, whose processes are gone: of these none is heard any more.  So
        each refusal tells for how long (`patience_s`) a trainer shall come again before it believes it.
        """
        known = self.ranks.get(event.rank)
        # Trainers repeat their calls, also to a controller that was started again.
        if known is not None and known.registration.incarnation == event.incarnation:
            return None
        difference = self._difference(event)
        # Decision 93: silence decides, not what is different, because nothing tells one launch from the next.
        if (known is not None or difference) and self._is_abandoned(now):
            return self._stale(f"a new process has come for rank {event.rank}")
        if known is not None and not self._can_be_replaced(known, now):
            return self._taken(f"rank {event.rank} is already served, and ")
        if difference:
            self.rejected[event.rank] = difference
            message = (
                f"job {self._job}: {difference}. All ranks of a job must run the same pipeline; one that has data of "
                "its own passes rank=0, world_size=1. If the others are of a run before this one: that gives way when "
                f"they have not been heard for {self._stale_s:g} s."
            )
            return PecanError(message, patience_s=self._patience_s)
        self.rejected.pop(event.rank, None)
        self.ranks[event.rank] = RegisteredTrainer(event, Hearing(now))
        if known is None:
            self.present.append(event.rank)
        return None

    def _difference(self, event: TrainerRegistered) -> str:
        """Say in what a trainer differs from those that have come; empty if in nothing."""
        return _difference(next(iter(self.ranks.values())).registration, event) if self.ranks else ""

    def yield_to_run(self, now: float) -> PecanError:
        """Return why another run of this name, which is no part of this job, cannot begin now."""
        return self._stale("another run of its name has come") if self._is_abandoned(now) else self._taken("")

    def _taken(self, why: str) -> PecanError:
        return RankTakenError(
            f"job {self._job}: {why}another run of the same name is active on this cluster: pass iter_batches(job=...) "
            f"with a name of its own. A run whose trainers are not heard for {self._stale_s:g} s gives way.",
            patience_s=self._patience_s,
        )

    def _stale(self, why: str) -> PecanError:
        return StaleJobError(
            f"job {self._job}: its trainers have not been heard for {self._stale_s:g} s, and {why}: the job that they "
            "left behind ends."
        )

    def _is_abandoned(self, now: float) -> bool:
        """Tell whether all that have come are gone; of a job to which none has come, whether one should have."""
        if not self.present:
            return now - self._started > self._stale_s
        return all(self._has_left(self.ranks[rank], now) for rank in self.present)

    def _has_left(self, trainer: RegisteredTrainer, now: float) -> bool:
        return trainer.hearing.is_gone(now, self._stale_s)

    def _can_be_replaced(self, trainer: RegisteredTrainer, now: float) -> bool:
        """Tell whether another process may have a trainer's rank: that is gone, and no batch with it."""
        # Decision 93: a rank that had a batch is not given away, because the elements of it would be lost.
        return self._has_left(trainer, now) and not (trainer.has_received or trainer.left)

    # --- silence -------------------------------------------------------------------------------------------

    def to_look_for(self, now: float, *, at_once: bool = False) -> tuple[TrainerProcess, ...]:
        """Return the trainers whose processes must be looked for, which count as asked for then.

        `at_once`: another run waits for what is found.
        """
        after_s = self._report_s if at_once else self._timeout_s / LOOKS
        silent = [
            trainer
            for trainer in map(self.ranks.__getitem__, self.present)
            if trainer.hearing.should_look(now, after_s)
            and trainer.registration.process
            # Decision 94: Ray uses no id again, so a process that has ended stays so.
            and not trainer.hearing.ended
        ]
        for trainer in silent:
            trainer.hearing = trainer.hearing.asked(now)
        return tuple(
            TrainerProcess(
                one.registration.rank, one.registration.incarnation, one.registration.node, one.registration.process
            )
            for one in silent
        )

    def note_check(self, event: TrainerChecked, now: float) -> None:
        """Take what was found out about a trainer's process."""
        trainer = self.get(event.rank, event.incarnation)
        if trainer is not None:
            trainer.hearing = trainer.hearing.looked_for(now, exists=event.state == "exists")

    def quiet(self, now: float) -> list[RegisteredTrainer]:
        """Return the trainers that are looked for since they say nothing."""
        here = map(self.ranks.__getitem__, self.present)
        # Also if its process was found: it is waited for then, and that must be said.
        return [trainer for trainer in here if now - trainer.hearing.last_seen >= self._timeout_s / LOOKS + ANSWER_S]

    def timed_out(self, now: float) -> list[int]:
        """Return the ranks that have said nothing for longer than the deadline, and may not exist any more."""
        return [rank for rank in self.present if self.ranks[rank].hearing.is_lost(now, self._timeout_s)]

    # --- who is there --------------------------------------------------------------------------------------

    def held(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ranks that wait for others: those that can take no more meanwhile, and those that can."""
        held = [rank for rank in self.present if self.ranks[rank].held]
        full = tuple(rank for rank in held if self.ranks[rank].full)
        return full, tuple(rank for rank in held if not self.ranks[rank].full)

    def leave(self, rank: int) -> None:
        """Note that a trainer is gone."""
        self.ranks[rank].left = True
        self.present.remove(rank)

    def get(self, rank: int, incarnation: str) -> RegisteredTrainer | None:
        """Return a trainer, unless it is another process than the one that has registered."""
        trainer = self.ranks.get(rank)
        return trainer if trainer is not None and trainer.registration.incarnation == incarnation else None

    @property
    def used(self) -> list[int]:
        """How many batches each rank that has come has used."""
        return [one.progress.used for one in self.ranks.values()]

    @property
    def used_by_held(self) -> list[int]:
        """How many of them those have used that wait for others."""
        return [one.progress.used for one in self.ranks.values() if one.held]

    @property
    def complete(self) -> bool:
        """Return whether all ranks have come."""
        return len(self.ranks) == self._world_size

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes on which trainers run, each once."""
        return tuple(dict.fromkeys(trainer.registration.node for trainer in self.ranks.values()))

    def missing(self) -> str:
        """Say which ranks are waited for, and what they must do; empty if all have come."""
        missing = [rank for rank in range(self._world_size) if rank not in self.ranks]
        if not missing:
            return ""
        return (
            f"{to_text(missing)} of {self._world_size} did not come within {{seconds}}: each rank must call "
            "iter_batches() with the same job name on the same Ray cluster (with rank=0, world_size=1 a rank reads "
            "everything by itself)" + "".join(f"; {differs}, and was refused" for differs in self.rejected.values())
        )

    def orphaned(self, now: float) -> bool:
        """Tell whether nobody is there who could still want the job."""
        last = max([self._started, *(self.ranks[rank].hearing.last_seen for rank in self.present)])
        return now - last > self._timeout_s


def silence(trainer: RegisteredTrainer, timeout_s: float) -> str:
    """Say that a trainer is silent, and what follows from that."""
    message = f"rank {trainer.registration.rank} on node {trainer.registration.node} has said nothing for {{seconds}}"
    if trainer.hearing.ended:
        return (
            f"{message}: its process has ended, and after {timeout_s:g} s (Config(trainer_timeout_s=...)) the job does"
        )
    if trainer.hearing.found > trainer.hearing.last_seen:
        return (
            f"{message}: its process exists, and is waited for; it was stopped, or native code holds Python's lock. "
            "End that process if it hangs"
        )
    return (
        f"{message}: its process or its node stands still. If nobody can tell that the process exists, the job ends "
        f"after {timeout_s:g} s (Config(trainer_timeout_s=...))"
    )


def to_text(ranks: list[int]) -> str:
    """Name ranks: all of a few, else the first ones and how many there are."""
    if not ranks:
        return ""
    named = ", ".join(map(str, ranks[:MOST_NAMED]))
    more = f" and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {named}{more}"


def _difference(first: TrainerRegistered, other: TrainerRegistered) -> str:
    """Say in what two trainers differ that must be the same; empty if in nothing."""
    mine, theirs = dict(first.description), dict(other.description)
    for name in (*mine, *(name for name in theirs if name not in mine)):
        if mine.get(name) != theirs.get(name):
            return (
                f"rank {other.rank} differs from rank {first.rank} in {name}: "
                f"{theirs.get(name, 'it has none')} instead of {mine.get(name, 'none')}"
            )
    return ""
