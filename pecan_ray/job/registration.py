"""How long a trainer is patient with what keeps it from becoming one, and what it does about each hindrance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pecan_ray.errors import ClusterError, PecanError, RankTakenError, StaleJobError

PATIENCE_S: dict[type[BaseException], float] = {StaleJobError: 60.0, RankTakenError: 8.0}
"""How long a trainer waits for a job of the same name to end whose trainers are gone, and to find out that they are,
where the job does not say for how long (`patience_s`): with many trainers it takes longer."""
RESTART_S = 60.0
"""An actor that Ray starts again must be there within this time."""


@dataclass(frozen=True)
class Rejected:
    """The job's controller has answered with an error."""

    error: BaseException


@dataclass(frozen=True)
class NoResponse:
    """There is no answer of a controller."""

    how: Literal["taken", "restarting", "unstarted", "gone"]
    """Another controller has its name; Ray starts it again; it cannot be made at all; it has ended."""
    text: str
    """What Ray says."""


@dataclass(frozen=True)
class Retry:
    """Try again in a moment."""

    say: str
    """What is waited for meanwhile."""
    restart: bool
    """Look for the controller, or start one; else call the one that was found."""


@dataclass(frozen=True)
class StopWithError:
    """Raise an error."""

    error: BaseException
    kill: bool = False
    """End the controller, which is this trainer's alone."""


Registering: TypeAlias = Retry | StopWithError


class Registration:
    """One trainer's way into a job; `decide` says what follows from each hindrance."""

    def __init__(self, job: str, world_size: int, started: float) -> None:
        self._job, self._alone, self._started = job, world_size == 1, started
        self._met: dict[object, float] = {}
        """The kinds of hindrances that were met, and since when: each is waited for by itself."""

    def decide(self, hindrance: Rejected | NoResponse, now: float) -> Registering:
        """Return what to do about a hindrance."""
        kind = type(hindrance.error) if isinstance(hindrance, Rejected) else hindrance.how
        # The first hindrance may be as old as this trainer's wish to begin. Each further one begins
        # when it is met.
        waited_s = now - self._met.setdefault(kind, now if self._met else self._started)
        if isinstance(hindrance, Rejected):
            self._met.pop("taken", None)  # the controller that has the name answers after all
            return self._on_rejected(hindrance.error, waited_s)
        if hindrance.how == "taken":
            return self._taken(waited_s)
        if hindrance.how == "restarting":
            return self._restarting(hindrance.text, waited_s)
        return self._ended(hindrance, waited_s)

    def _on_rejected(self, error: BaseException, waited_s: float) -> Registering:
        if waited_s > _patience_s(error):
            return StopWithError(error, kill=self._alone)
        return Retry(f"this run cannot begin yet: {error}", restart=True)

    def _taken(self, waited_s: float) -> Registering:
        """A job of one trainer joins no other one."""
        active = f"job {self._job}: another run of the same name is active on this cluster, and does not say more"
        if waited_s > PATIENCE_S[RankTakenError]:
            return StopWithError(RankTakenError(f"{active}: pass iter_batches(job=...) with a name of its own."))
        return Retry(f"{active}, or just ending", restart=True)

    def _restarting(self, text: str, waited_s: float) -> Registering:
        if waited_s > RESTART_S:
            return StopWithError(ClusterError(f"the controller of job {self._job} does not answer: {text}"))
        return Retry(f"job {self._job}: its controller's process was lost, and is being started again", restart=False)

    def _ended(self, hindrance: NoResponse, waited_s: float) -> Registering:
        """Of several trainers one may have found a controller that was just ending."""
        if hindrance.how == "unstarted" or self._alone or waited_s > PATIENCE_S[StaleJobError]:
            return StopWithError(
                ClusterError(
                    f"the controller of job {self._job} could not be started: {hindrance.text}. pecan_ray, and the "
                    "modules of the pipeline's source, must be importable on every node: install them there, or send "
                    "them by `ray job submit --working-dir .`."
                )
            )
        return Retry(f"job {self._job}: a job of the same name has ended, and its controller goes", restart=True)


def _patience_s(error: BaseException) -> float:
    """Return how long a trainer waits until an answer of a controller may be another one."""
    told = error.fields.get("patience_s") if isinstance(error, PecanError) else None
    return PATIENCE_S.get(type(error), 0.0) if told is None else float(told)
