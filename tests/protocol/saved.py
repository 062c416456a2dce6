"""A run that is cut off after some batches: its state, and what its training loops had by then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from pecan_ray.errors import StateError
from pecan_ray.job.delivery_log import MOST_AHEAD
from pecan_ray.job.merge_states import merge_states
from pecan_ray.job.reader_position import GroupState, ReaderPosition
from pecan_ray.job.resume_point import ResumePoint
from pecan_ray.job.saved_state import SavedState
from pecan_ray.job.share_group import Place
from pecan_ray.plan.splits import OUTPUT_BITS
from tests.protocol.engine import WIDTH, Made, ModelPiece

if TYPE_CHECKING:
    from tests.protocol.world import World


@dataclass(frozen=True)
class Saved:
    """A state, and what it stands for."""

    point: ResumePoint
    batches: tuple[Made, ...]
    """The first ones of every rank, and those of the runs before."""
    left_out: int
    """Elements that were left out by then: no batch will hold them."""
    left: frozenset[int] = frozenset()
    """Epochs that some loop had left, or had yet to."""
    in_order: bool = False
    """Rows had come in order until then."""

    def holds(self, epoch: int, piece: ModelPiece, outputs: int) -> bool:
        """Tell whether an output of an only source is to come, as the state says: ranks could not share some.

        `outputs`: of its element; a state may stand between two of them.
        """
        (branch, pass_index, index), element, output = piece
        point = self.point.branches[branch]
        at, cursor = (element << OUTPUT_BITS) + output * (WIDTH // outputs), point.cursor
        parts = (one.spans for one in point.remaining_parts if (one.pass_index, one.index) == (pass_index, index))
        back = any(start <= at < stop for spans in parts for start, stop in spans)
        missing = pass_index == cursor.pass_index and any(start <= index < stop for start, stop in cursor.missing)
        return epoch != self.point.epoch or back or missing or (pass_index, index) >= (cursor.pass_index, cursor.taken)


def save(world: World, rank: int, before: Saved | None) -> Saved | None:
    """Take a state between two batches of a rank; None while the job does not know of all that it has.

    Now and then the rank's loader has fetched batches ahead that are not used.
    """
    used = world.trainers[rank].used
    some = used % (MOST_AHEAD + 1)
    # A rank that is alone may have asked before its loop had the batches.
    if len(world.trainers) == 1 and some % 2 and (early := world.job.state.resume_point(used + some, early=True)):
        return _saved(world, early, [used + some], before)
    if len(world.trainers) == 1 and some and (point := _of_shared(world, used - some, used)):
        return _saved(world, point, [used], before)
    used = max(0, used - some)
    point = world.job.state.resume_point(used)
    if point is None:
        return None
    return _saved(world, point, [used] * len(world.trainers), before)


def _of_shared(world: World, state_at: int, used: int) -> ResumePoint | None:
    """Return the point of a reader of a shared group that has a state, and had batches since; None if it has not."""
    if world.scenario.alone:
        return None  # a reader goes on with the workers that its group had
    point = world.job.state.resume_point(state_at)
    had = world.trainers[0].first(used)[state_at:]
    if point is None or len(had) < used - state_at or any(made.epoch != point.epoch for made in had):
        return None  # each epoch begins with a state
    if world.job.state.ledger.shape.runs_whole and not point.used_batches:
        return None  # which is taken behind its first batch
    position = ReaderPosition(None)
    position.join(Place(point.epoch))
    for number, made in enumerate(had, 1):
        state = GroupState(_written(point, state_at), 1) if number == 1 else None
        position.take(made.epoch, made.spans, 0, state)
    rest = position.rest()
    assert rest is not None and rest.state is not None
    return SavedState.from_json(rest.state).point


def save_each(world: World, random: Random, before: Saved | None) -> Saved | None:
    """Take states of all ranks, each between two batches of its own, and merge them; None where that is refused."""
    least = min(trainer.used for trainer in world.trainers)
    used = [random.randint(least, trainer.used) for trainer in world.trainers]
    if (world.scenario.promised or world.scenario.in_order) and len(set(used)) > 1:
        return None
    points = [point for batches in used if (point := world.job.state.resume_point(batches)) is not None]
    if len(points) < len(used):
        return None
    try:
        merged = merge_states([_written(point, batches) for point, batches in zip(points, used, strict=True)])
    except StateError:
        return None
    return _saved(world, SavedState.from_json(merged).point, used, before)


def _saved(world: World, point: ResumePoint, used: Sequence[int], before: Saved | None) -> Saved:
    batches = tuple(made for trainer in world.trainers for made in trainer.first(used[trainer.rank]))
    left_out = world.job.state.ledger.left_out_elements
    if before is not None:
        batches, left_out = before.batches + batches, before.left_out + left_out
    left = frozenset(world.audit.left)
    # Of ranks that are apart, one has used a batch behind one that another has yet to use.
    ledger = world.job.state.ledger
    in_order = (before is None or before.in_order) and len(set(used)) == 1
    in_order = in_order and (ledger.runs.kept or ledger.is_in_turn(point.epoch))
    return Saved(SavedState.from_json(_written(point, 0)).point, batches, left_out, left, in_order)


def _written(point: ResumePoint, batches: int) -> dict[str, Any]:
    """Return a state as users save it."""
    written: dict[str, Any] = json.loads(json.dumps(SavedState(point, batches, 0, "python", ()).to_json()))
    return written
