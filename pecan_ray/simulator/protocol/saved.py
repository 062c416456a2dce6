"""A run that is cut off after some batches: its state, and what its training loops had by then."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pecan_ray.job.resume_point import ResumePoint
from pecan_ray.job.saved_state import SavedState
from pecan_ray.simulator.protocol.engine import Made

if TYPE_CHECKING:
    from pecan_ray.simulator.protocol.world import World


@dataclass(frozen=True)
class Saved:
    """A state, and what it stands for."""

    point: ResumePoint
    batches: tuple[Made, ...]
    """The first ones of every rank, as many of each, and those of the runs before."""
    left_out: int
    """Elements that were left out by then: no batch will hold them."""


def save(world: World, rank: int, before: Saved | None) -> Saved | None:
    """Take a state between two batches of a rank; None while the job does not know of all that it has."""
    used = world.trainers[rank].state.yielded
    point = world.job.state.resume_point(used)
    if point is None:
        return None
    batches = tuple(made for trainer in world.trainers for made in trainer.first(used))
    left_out = world.job.state.ledger.left_out_elements
    if before is not None:
        batches, left_out = before.batches + batches, before.left_out + left_out
    return Saved(_through_json(point), batches, left_out)


def _through_json(point: ResumePoint) -> ResumePoint:
    written = json.dumps(SavedState(point, 0, 0, "python", ()).to_json())
    return SavedState.from_json(json.loads(written)).point
