"""A run that is cut off, and another one that goes on where it was: by its state, with other parties."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from pecan_ray.job.resume_point import ResumePoint
from pecan_ray.simulator.protocol.engine import Made
from pecan_ray.simulator.protocol.scenario import Fault, Scenario

if TYPE_CHECKING:
    from pecan_ray.simulator.protocol.world import World

ENDS_A_RUN = ("fail", "kill trainer")


@dataclass(frozen=True)
class Saved:
    """A state, and what the training loops had when it was taken."""

    point: ResumePoint
    batches: tuple[Made, ...]
    """The first ones of every rank, as many of each."""
    left_out: int
    """Elements that were left out by then: no batch will hold them."""


def save(world: World, rank: int) -> Saved | None:
    """Take a state between two batches of a rank; None while the job does not know of all that it has."""
    used = world.trainers[rank].state.yielded
    point = world.job.state.resume_point(used)
    if point is None:
        return None
    return Saved(
        point,
        tuple(made for trainer in world.trainers for made in trainer.first(used)),
        world.job.state.ledger.left_out_elements,
    )


def can_be_saved(scenario: Scenario) -> bool:
    """Tell whether a scenario has states, and comes far enough for one."""
    there = scenario.sharding == "dynamic" and scenario.visitation == "exactly_once" and not scenario.absent
    return there and scenario.error_budget == 1.0 and scenario.stop_after is None


def going_on(scenario: Scenario, random: Random) -> Scenario:
    """Return the same data with other parties: ranks, workers, speeds, network."""
    return replace(
        scenario,
        seed=scenario.seed,
        ranks=random.choice((scenario.ranks, 1, 2, 3)),
        local=random.choice((1, 2)),
        remote=random.choice((0, 1, 3)),
        lot=random.choice((1, 4, 16)),
        window=random.choice((1, 4)),
        prefetch_bytes=random.choice((1, 5000, 1 << 26)),
        page=random.choice((1, 2, 100)),
        faults=tuple(fault for fault in scenario.faults if fault.kind not in ENDS_A_RUN),
    )


def without_ends(scenario: Scenario) -> Scenario:
    """Return a scenario without the faults that end a run."""
    kept: tuple[Fault, ...] = tuple(fault for fault in scenario.faults if fault.kind not in ENDS_A_RUN)
    return replace(scenario, faults=kept)
