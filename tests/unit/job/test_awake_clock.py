"""Time in which a process did not run is not counted."""

from __future__ import annotations

import pytest

from pecan_ray.job.active_clock import ActiveClock


def test_time_passes_and_of_a_long_gap_only_the_longest_that_is_usual() -> None:
    reads = [100.0, 100.0, 100.5, 103.5, 106.4, 3_706.4, 3_707.4, 3_717.4]
    clock = ActiveClock(3.0, iter(reads).__next__)
    assert [clock.now() for _ in reads[1:]] == pytest.approx([100.0, 100.5, 103.5, 106.4, 109.4, 110.4, 113.4])
