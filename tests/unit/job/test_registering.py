"""What a trainer does about whatever keeps it from registering, and for how long."""

from __future__ import annotations

import pytest

from pecan_ray.errors import ClusterError, JournalError, RankTakenError, StaleJobError
from pecan_ray.job.registration import NoResponse, Registration, Rejected, Retry, StopWithError

BEGAN = 100.0
STALE, TAKEN = StaleJobError("ends"), RankTakenError("rank 1")


def decided(hindrance: Rejected | NoResponse, after_s: float, world_size: int = 2) -> Retry | StopWithError:
    """What is done about a hindrance that is met so many seconds after the beginning."""
    return Registration("resnet", world_size, BEGAN).decide(hindrance, BEGAN + after_s)


@pytest.mark.parametrize(
    ("hindrance", "world_sizes", "patience_s", "anew", "said", "raised"),
    [
        (Rejected(STALE), (1, 2), 60.0, True, "this run cannot begin yet: ends", "ends"),
        (Rejected(TAKEN), (1, 2), 8.0, True, "this run cannot begin yet: rank 1", "rank 1"),
        (
            NoResponse("taken", "exists"),
            (1,),
            8.0,
            True,
            "job resnet: another run of the same name",
            "iter_batches(job=",
        ),
        (
            NoResponse("restarting", "process died"),
            (1, 2),
            60.0,
            False,
            "being started again",
            "the controller of job resnet does not answer: process died",
        ),
        (NoResponse("gone", "killed"), (2,), 60.0, True, "its controller goes", "killed"),
    ],
)
def test_what_may_be_over_soon_is_waited_for_and_then_raised(
    hindrance: Rejected | NoResponse,
    world_sizes: tuple[int, ...],
    patience_s: float,
    anew: bool,
    said: str,
    raised: str,
) -> None:
    for world_size in world_sizes:
        again = decided(hindrance, patience_s, world_size)
        assert isinstance(again, Retry) and said in again.say and again.restart == anew
        over = decided(hindrance, patience_s + 0.1, world_size)
        assert isinstance(over, StopWithError) and isinstance(over.error, ClusterError) and raised in str(over.error)
        if isinstance(hindrance, Rejected):
            assert over.error is hindrance.error
        assert over.kill == (isinstance(hindrance, Rejected) and world_size == 1), "nobody else can want it"


@pytest.mark.parametrize("error", [JournalError("damaged"), KeyError("unforeseen")])
def test_any_other_error_of_the_controllers_is_raised_at_once(error: Exception) -> None:
    assert decided(Rejected(error), 0.1) == StopWithError(error)
    assert decided(Rejected(error), 0.1, world_size=1) == StopWithError(error, kill=True)


@pytest.mark.parametrize(
    ("hindrance", "world_size"),
    [
        (NoResponse("unstarted", "no module x"), 1),
        (NoResponse("unstarted", "no module x"), 2),
        (NoResponse("gone", "no module x"), 1),
    ],
)
def test_a_controller_that_cannot_be_made_is_not_tried_twice(hindrance: NoResponse, world_size: int) -> None:
    over = decided(hindrance, 0.1, world_size)
    assert isinstance(over, StopWithError) and isinstance(over.error, ClusterError) and not over.kill
    assert "could not be started: no module x. " in str(over.error) and "--working-dir" in str(over.error)
