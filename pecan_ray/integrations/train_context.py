"""Where in a Ray Train run this process is, if it is in one."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

from pecan_ray.errors import PlanError

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
        rank, world_size = context.get_world_rank(), context.get_world_size()
    except (RuntimeError, DeprecationWarning):  # it is no training worker; Ray raises the latter in trials of Ray Tune
        return None
    if rank is None or world_size is None:  # as the first version of Ray Train says it
        return None
    return TrainPlace(rank, world_size, str(context.get_experiment_name()))


def placed(name: str, rank: int | None, world_size: int | None, job: str | None) -> tuple[int, int, str | None]:
    """Return rank, world size and the job's name, for a pipeline of a name: those of the Ray Train run unless given."""
    place = train_place() if rank is None and world_size is None else None
    if rank is None and world_size is not None and world_size > 1:
        raise PlanError(f"iter_batches(world_size={world_size}) needs rank=..., which of them this trainer is.")
    if place is None:
        return 0 if rank is None else rank, 1 if world_size is None else world_size, job
    if job is None and place.world_size > 1:
        _begun[place.run, name] += 1
        job = f"{name}-{place.run}-{_begun[place.run, name]}"
    return place.rank, place.world_size, job
