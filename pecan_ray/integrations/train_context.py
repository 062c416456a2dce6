"""Which rank this process is: as its Ray Train run says, else what it was launched by."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

from pecan_ray.errors import PlanError
from pecan_ray.runtime.launch import Launch, launch, warn_of_tasks

_begun: Counter[tuple[str, str]] = Counter()
"""How often this worker has begun a job of a pipeline in a run: workers that run the same loop agree on it."""


@dataclass(frozen=True)
class TrainPlace:
    """A training worker of a run."""

    rank: int
    world_size: int
    run: str
    """The run's name."""


def train_place() -> TrainPlace | None:
    """Return the place of this process in a Ray Train run; None outside of one."""
    train: Any = sys.modules.get("ray.train")  # a training worker has it, and to import it takes a second
    if train is None:
        return None
    try:
        context = train.get_context()
        rank, world_size, run = context.get_world_rank(), context.get_world_size(), context.get_experiment_name()
    except (RuntimeError, DeprecationWarning):  # it is no training worker; Ray raises the latter in trials of Ray Tune
        return None
    if rank is None or world_size is None or run is None:  # as older versions of Ray Train say that it is none
        return None
    return TrainPlace(rank, world_size, str(run))


def found_place() -> TrainPlace | Launch | None:
    """Return the rank of this process among those that train together; None if nothing says that there are several."""
    # In this order, and given values win: docs/decisions/running-on-ray.md#89-ranks-are-found.
    return train_place() or launch()


def placed(
    name: str, rank: int | None, world_size: int | None, job: str | None, *, shares: bool = False
) -> tuple[int, int, str | None]:
    """Return rank, world size and the job's name, for a pipeline of a name: those of this process unless given.

    `shares`: it reads a shared group, of which each reader reads everything.
    """
    if rank is None and world_size is not None and world_size > 1:
        raise PlanError(f"iter_batches(world_size={world_size}) needs rank=..., which of them this trainer is.")
    if shares or rank is not None or world_size is not None:
        return 0 if rank is None else rank, 1 if world_size is None else world_size, job
    place = found_place()
    if place is None:
        warn_of_tasks(name)
        return 0, 1, job
    return place.rank, place.world_size, _job_of_run(place, name) if job is None else job


def _job_of_run(place: TrainPlace | Launch, name: str) -> str | None:
    """Return a name for the next job of a pipeline, on which all ranks of a run agree; None where a rank is alone."""
    if place.world_size < 2 or not place.run:
        return None
    _begun[place.run, name] += 1
    return f"{name}-{place.run}-{_begun[place.run, name]}"
