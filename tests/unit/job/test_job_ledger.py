"""The ledger step by step: shares, what is given out again, and what is dealt; the simulation plays it at random."""

from __future__ import annotations

from typing import Literal

import pytest

from pecan_ray.job.dropped import DroppedData
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_check import check_ledger
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Split


def ledger_of(shape: LedgerShape, *workers: str, splits: int = 1, listed: bool = True) -> Ledger:
    ledger = Ledger(shape)
    for worker in workers:
        ledger.join(worker)
    ledger.add_splits(0, [Split(index) for index in range(splits)])
    if listed:
        ledger.end_listing(0)
    return ledger


def take(ledger: Ledger, worker: str) -> Lease:
    """Take a lease that must be there."""
    lease = ledger.take(worker)
    assert isinstance(lease, Lease)
    return lease


def begin(ledger: Ledger, worker: str) -> Lease:
    """Let a worker begin an assignment, and take its first lease."""
    assert isinstance(ledger.next_assignment(worker), Assignment)
    return take(ledger, worker)


# --- what a lost worker held ---------------------------------------------------------------------------------


def test_at_most_once_drops_what_a_lost_worker_held_and_zero_or_more_gives_it_out_at_once() -> None:
    ledger = ledger_of(LedgerShape(visitation="at_most_once"), "w", "x", splits=2)
    begin(ledger, "w")
    ledger.lost("w")
    ledger.settled(0, "w")
    assert [dropped.split.index for dropped in ledger.dropped.leases] == [0]
    assert begin(ledger, "x").split.index == 1
    ledger = ledger_of(LedgerShape(world_size=2, visitation="zero_or_more"), "w", "x")
    begin(ledger, "w")
    ledger.lost("w")
    assert ledger.unresolved() == {}, "no rank is asked"
    assert begin(ledger, "x").spans == ((0, END),)


def test_what_is_dropped_is_counted_in_elements_and_in_ends_that_nobody_knows() -> None:
    dropped = DroppedData()
    known = Lease(0, Split(0, elements=7), ((1 << OUTPUT_BITS, (2 << OUTPUT_BITS) + 5), (3 << OUTPUT_BITS, END)))
    dropped.add("w", [known, Lease(0, Split(1, elements=2), ((2 << OUTPUT_BITS, END),))])
    assert (dropped.elements, dropped.open_ends) == (6, 0), "elements 1 to 6, of the second of which a part is left"
    dropped.add("x", [Lease(0, Split(2), ((0, 4 << OUTPUT_BITS), (9 << OUTPUT_BITS, END)))])
    dropped.add("y", [Lease(0, Split(3, elements=2), ((2 << OUTPUT_BITS, END),))])
    assert (dropped.elements, dropped.open_ends) == (10, 1)
    told = [str(one) for one in dropped.take_pending_drops()]
    assert len(told) == 2 and "w is gone, and with it 6 elements: dropped" in told[0]
    assert "4 elements and the rest of 1 splits of unknown length" in told[1]
    assert not dropped.take_pending_drops()


def test_a_position_in_two_places_is_found() -> None:
    ledger = ledger_of(LedgerShape(), "w", "x", splits=2)
    lease = begin(ledger, "w")
    check_ledger(ledger)
    ledger.workers["x"].give(lease)
    with pytest.raises(AssertionError, match="two places"):
        check_ledger(ledger)


# --- ends of epochs ------------------------------------------------------------------------------------------


# --- shares --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "workers", "sharding", "share"),
    [(0, 1, "dynamic", 1), (3, 2, "dynamic", 1), (100, 1, "dynamic", 50), (100, 5, "dynamic", 10), (9, 3, "off", 9)],
)
def test_a_worker_takes_no_more_than_leaves_work_for_all(
    waiting: int, workers: int, sharding: Literal["dynamic", "off"], share: int
) -> None:
    names = [f"w{number}" for number in range(workers)]
    ledger = ledger_of(LedgerShape(sharding=sharding), *names, splits=waiting, listed=False)
    assert ledger.share("w0") == share


@pytest.mark.parametrize(("repetitions", "share"), [(1, 4), (3, 12), (None, 1 << 20)])
def test_passes_to_come_count_as_waiting(repetitions: int | None, share: int) -> None:
    ledger = ledger_of(LedgerShape(repetitions=repetitions), "w", splits=8, listed=False)
    assert ledger.share("w") == 4, "of a source that is still being listed, nobody knows how much a pass is"
    ledger.end_listing(0)
    assert min(ledger.share("w"), 1 << 20) == share
