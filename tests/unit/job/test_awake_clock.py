"""Time in which a process did not run is not counted."""

from __future__ import annotations

from pecan_ray.job.awake_clock import AwakeClock


class Reading:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def test_time_passes_while_the_clock_is_asked() -> None:
    read = Reading()
    clock = AwakeClock(3.0, read)
    for passed in (0.0, 0.5, 3.0, 2.9):
        read.at += passed
        assert clock.now() == read.at


def test_of_a_long_gap_only_the_longest_that_is_usual_has_passed() -> None:
    read = Reading()
    clock = AwakeClock(3.0, read)
    read.at += 3_600.0
    assert clock.now() == 103.0
    read.at += 1.0
    assert clock.now() == 104.0
    read.at += 10.0
    assert clock.now() == 107.0
