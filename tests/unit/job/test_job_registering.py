"""What a trainer does about whatever keeps it from registering, and for how long."""

from __future__ import annotations

import pytest

from pecan_ray.errors import ClusterError, JournalError, RankTakenError, StaleJobError
from pecan_ray.job.registering import GiveUp, Hindered, Registration, TryAgain, TurnedAway

BEGAN = 100.0


def decided(hindrance: TurnedAway | Hindered, after_s: float, world_size: int = 2) -> TryAgain | GiveUp:
    """What is done about a hindrance that is met so many seconds after the beginning."""
    return Registration("resnet", world_size, BEGAN).decide(hindrance, BEGAN + after_s)


@pytest.mark.parametrize(("error", "patience_s"), [(StaleJobError("ends"), 60.0), (RankTakenError("rank 1"), 8.0)])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_job_that_is_ending_is_waited_for_and_then_the_trainer_raises_why(
    error: ClusterError, patience_s: float, world_size: int
) -> None:
    again = decided(TurnedAway(error), patience_s, world_size)
    assert again == TryAgain(f"this run cannot begin yet: {error}", anew=True)
    assert decided(TurnedAway(error), patience_s + 0.1, world_size) == GiveUp(error, kill=world_size == 1)


@pytest.mark.parametrize("error", [JournalError("damaged"), KeyError("unforeseen")])
def test_any_other_error_of_the_controllers_is_raised_at_once(error: Exception) -> None:
    assert decided(TurnedAway(error), 0.1) == GiveUp(error)
    assert decided(TurnedAway(error), 0.1, world_size=1) == GiveUp(error, kill=True), "nobody else can want it"


def test_a_name_that_another_run_has_may_become_free() -> None:
    again = decided(Hindered("taken", "exists"), 8.0, world_size=1)
    assert isinstance(again, TryAgain) and "job resnet: another run of the same name" in again.say
    over = decided(Hindered("taken", "exists"), 8.1, world_size=1)
    assert isinstance(over, GiveUp) and isinstance(over.error, RankTakenError) and not over.kill
    assert "iter_batches(job=...)" in str(over.error)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_controller_that_ray_starts_again_is_called_again_for_a_minute(world_size: int) -> None:
    again = decided(Hindered("restarting", "process died"), 60.0, world_size)
    assert isinstance(again, TryAgain) and not again.anew and "being started again" in again.say
    over = decided(Hindered("restarting", "process died"), 60.1, world_size)
    assert isinstance(over, GiveUp) and isinstance(over.error, ClusterError)
    assert "the controller of job resnet does not answer: process died" in str(over.error)


def test_one_of_several_trainers_may_have_found_a_controller_that_was_just_ending() -> None:
    again = decided(Hindered("gone", "killed"), 60.0)
    assert isinstance(again, TryAgain) and again.anew and "its controller goes" in again.say
    assert isinstance(decided(Hindered("gone", "killed"), 60.1), GiveUp)


@pytest.mark.parametrize(("how", "world_size"), [("unstarted", 1), ("unstarted", 2), ("gone", 1)])
def test_a_controller_that_cannot_be_made_is_not_tried_twice(how: str, world_size: int) -> None:
    hindrance = Hindered("unstarted" if how == "unstarted" else "gone", "no module named x")
    over = decided(hindrance, 0.1, world_size)
    assert isinstance(over, GiveUp) and isinstance(over.error, ClusterError) and not over.kill
    assert "could not be started: no module named x. " in str(over.error) and "--working-dir" in str(over.error)
