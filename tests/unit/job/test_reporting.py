"""The time of a job, and when a trainer acknowledges at once."""

from __future__ import annotations

import pytest

from pecan_ray.job.active_clock import ActiveClock
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.plan.splits import Split


def test_time_passes_and_of_a_long_gap_only_the_longest_that_is_usual() -> None:
    reads = [100.0, 100.0, 100.5, 103.5, 106.4, 3_706.4, 3_707.4, 3_717.4]
    clock = ActiveClock(3.0, iter(reads).__next__)
    assert [clock.now() for _ in reads[1:]] == pytest.approx([100.0, 100.5, 103.5, 106.4, 109.4, 110.4, 113.4])


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trainer_that_is_alone_acknowledges_at_once_when_its_workers_are_done(ranks: int) -> None:
    ledger = Ledger(LedgerShape(world_size=ranks))
    ledger.join("w")
    ledger.add_splits(0, [Split(0, elements=4)])
    ledger.end_listing(0)
    ledger.next_assignment("w")
    assert not ledger.awaits_acks(), "its split is not given out"
    ledger.take("w")
    assert ledger.closing() and ledger.awaits_acks() == (ranks > 1), "others may wait for what one has received"
    ledger.assignment_ended("w", {})
    assert ledger.awaits_acks()
