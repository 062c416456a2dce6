"""Which epoch says how long the workers take for one."""

from __future__ import annotations

from pecan_ray.job.messages import TrainerProgress
from pecan_ray.observe.epoch_watch import EpochWatch


def seconds_of(*batches: tuple[int, float, float]) -> list[float]:
    """Return what a watch finds: of batches by epoch, seconds that have passed, and those waited of them."""
    watch = EpochWatch()
    found = [watch.batch(epoch, TrainerProgress(waited_s=waited, elapsed_s=at)) for epoch, at, waited in batches]
    return [seconds for seconds in (*found, watch.end()) if seconds is not None]


def test_the_second_epoch_is_measured_from_the_end_of_the_first() -> None:
    assert seconds_of((0, 5, 5), (0, 10, 9), (1, 11, 10), (1, 13, 12)) == [3]
    assert seconds_of((0, 5, 5), (0, 10, 9), (1, 11, 10), (1, 13, 12), (2, 14, 13), (3, 15, 14)) == [3], "and no other"


def test_the_first_epoch_has_the_start_in_it_and_says_nothing() -> None:
    assert seconds_of() == seconds_of((0, 5, 5)) == seconds_of((0, 5, 5), (0, 10, 9)) == []


def test_an_epoch_in_which_the_trainer_was_busy_says_nothing() -> None:
    assert seconds_of((0, 5, 5), (0, 10, 9), (1, 11, 9.5), (1, 20, 10)) == []
