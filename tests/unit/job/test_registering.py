"""What a trainer does about whatever keeps it from registering, and for how long."""

from __future__ import annotations

import pytest

from pecan_ray.errors import ClusterError, JournalError, RankTakenError, StaleJobError
from pecan_ray.job.registering import GiveUp, Hindered, Registration, TryAgain, TurnedAway

BEGAN = 100.0
STALE, TAKEN = StaleJobError("ends"), RankTakenError("rank 1")


def decided(hindrance: TurnedAway | Hindered, after_s: float, world_size: int = 2) -> TryAgain | GiveUp:
    """What is done about a hindrance that is met so many seconds after the beginning."""
    return Registration("resnet", world_size, BEGAN).decide(hindrance, BEGAN + after_s)


@pytest.mark.parametrize(
    ("hindrance", "world_sizes", "patience_s", "anew", "said", "raised"),
    [
        (TurnedAway(STALE), (1, 2), 60.0, True, "this run cannot begin yet: ends", "ends"),
        (TurnedAway(TAKEN), (1, 2), 8.0, True, "this run cannot begin yet: rank 1", "rank 1"),
        (Hindered("taken", "exists"), (1,), 8.0, True, "job resnet: another run of the same name", "iter_batches(job="),
        (
            Hindered("restarting", "process died"),
            (1, 2),
            60.0,
            False,
            "being started again",
            "the controller of job resnet does not answer: process died",
        ),
        (Hindered("gone", "killed"), (2,), 60.0, True, "its controller goes", "killed"),
    ],
)
def test_what_may_be_over_soon_is_waited_for_and_then_raised(
    hindrance: TurnedAway | Hindered,
    world_sizes: tuple[int, ...],
    patience_s: float,
    anew: bool,
    said: str,
    raised: str,
) -> None:
    for world_size in world_sizes:
        again = decided(hindrance, patience_s, world_size)
        assert isinstance(again, TryAgain) and said in again.say and again.anew == anew
        over = decided(hindrance, patience_s + 0.1, world_size)
        assert isinstance(over, GiveUp) and isinstance(over.error, ClusterError) and raised in str(over.error)
        if isinstance(hindrance, TurnedAway):
            assert over.error is hindrance.error
        assert over.kill == (isinstance(hindrance, TurnedAway) and world_size == 1), "nobody else can want it"


@pytest.mark.parametrize("error", [JournalError("damaged"), KeyError("unforeseen")])
def test_any_other_error_of_the_controllers_is_raised_at_once(error: Exception) -> None:
    assert decided(TurnedAway(error), 0.1) == GiveUp(error)
    assert decided(TurnedAway(error), 0.1, world_size=1) == GiveUp(error, kill=True)


@pytest.mark.parametrize(
    ("hindrance", "world_size"),
    [
        (Hindered("unstarted", "no module x"), 1),
        (Hindered("unstarted", "no module x"), 2),
        (Hindered("gone", "no module x"), 1),
    ],
)
def test_a_controller_that_cannot_be_made_is_not_tried_twice(hindrance: Hindered, world_size: int) -> None:
    over = decided(hindrance, 0.1, world_size)
    assert isinstance(over, GiveUp) and isinstance(over.error, ClusterError) and not over.kill
    assert "could not be started: no module x. " in str(over.error) and "--working-dir" in str(over.error)
