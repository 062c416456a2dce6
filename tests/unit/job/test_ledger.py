"""The ledger step by step: what is checked, what is dropped, and that all workers end an epoch together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from pecan_ray.job.lease_sizes import elements_in
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.pending_leases import WorkerLeaseState
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, Split
from tests.ledger_check import check_ledger


def ledger_of(shape: LedgerShape, workers: int, splits: int, rows: int | None = None) -> tuple[Ledger, list[str]]:
    """A ledger of splits of so many rows, and its workers."""
    ledger, names = Ledger(shape), [f"w{number}" for number in range(workers)]
    for name in names:
        ledger.join(name)
    ledger.add_splits(0, [Split(index, elements=rows) for index in range(splits)])
    ledger.end_listing(0)
    return ledger, names


def test_a_position_in_two_places_is_found() -> None:
    ledger, (first, second) = ledger_of(LedgerShape(), 2, 2)
    ledger.next_assignment(first)
    lease = ledger.take(first)
    check_ledger(ledger)
    assert isinstance(lease, Lease)
    ledger.workers[second].assign(lease)
    with pytest.raises(AssertionError, match="two places"):
        check_ledger(ledger)


def test_what_a_lost_worker_held_goes_through_filters_again() -> None:
    state = WorkerLeaseState()
    lease = Lease(0, Split(0), ((0, 4 << OUTPUT_BITS),))
    state.assign(lease)
    state.assign(replace(lease, spans=((6 << OUTPUT_BITS, 8 << OUTPUT_BITS),), passed=True))
    (held,) = state.pending_leases.values()
    assert not held.rest().passed, "nobody knows which of its elements are behind them"


def test_of_what_is_taken_back_a_lease_that_the_worker_never_had_hides_no_other() -> None:
    state, lease = WorkerLeaseState(), Lease(0, Split(1), ((0, 4 << OUTPUT_BITS),))
    state.assign(lease)
    taken = dict(state.take_back({(0, 0, 0): lease.spans, lease.key: lease.spans}))
    assert {one.key: tuple(spans) for one, spans in taken.items()} == {lease.key: lease.spans}
    assert not state.pending_leases


def test_a_dropped_rest_of_unknown_length_is_counted_once_another_pass_has_read_the_split_to_its_end() -> None:
    ledger = Ledger(LedgerShape(visitation="at_most_once", epochs=2))
    ledger.add_splits(0, [Split(0), Split(1)])
    ledger.end_listing(0)
    for worker in ("goes", "stays"):
        ledger.join(worker)
        ledger.next_assignment(worker)
    lost, kept = (ledger.take(worker) for worker in ("goes", "stays"))
    assert isinstance(lost, Lease) and isinstance(kept, Lease)
    ledger.ack(0, "goes", 0, {lost.key: [(0, 3 << OUTPUT_BITS)]})
    ledger.lost("goes")
    ledger.settled(0, "goes")
    assert (ledger.dropped.elements, ledger.dropped.open_ends) == (0, 1)
    ledger.ended("stays", 0, kept.key, 5)
    ledger.consumed("stays", 0, {kept.key: kept.spans})
    ledger.assignment_ended("stays", {})
    assert ledger.epoch == 1
    ledger.ended("stays", 1, lost.key, 8)
    assert (ledger.dropped.elements, ledger.dropped.open_ends) == (5, 0), "elements 3 to 7"
    ledger.dropped.add("stays", [replace(lost, epoch=1)])
    assert (ledger.dropped.elements, ledger.dropped.open_ends) == (13, 0), "now its length is known at once"


@pytest.mark.parametrize(
    ("splits", "rows", "workers", "batch", "rounds"),
    [(16, 900, 12, 240, 5), (16, 1600, 16, 256, 7), (3, 700, 4, 64, 9)],
)
def test_all_workers_end_with_full_batches_and_together(
    splits: int, rows: int, workers: int, batch: int, rounds: int
) -> None:
    """Each worker takes more when it has worked off what it got, all at the same pace."""
    ledger, names = ledger_of(LedgerShape(batch_size=batch), workers, splits, rows)
    taken: Counter[str] = Counter()
    for name in names:
        assert isinstance(ledger.next_assignment(name), Assignment)
    at_work = set(names)
    while at_work:
        name = min(sorted(at_work), key=lambda one: taken[one])
        lease = ledger.take(name)
        if not isinstance(lease, Lease):
            at_work.discard(name)
            continue
        taken[name] += elements_in(lease) or 0
        check_ledger(ledger)
    assert sum(taken.values()) == splits * rows
    partly = [name for name in names if taken[name] % batch]
    assert len(partly) == (splits * rows % batch > 0), "only the epoch's last batch is not full"
    assert max(taken.values()) <= rounds * batch


def test_what_a_lost_worker_had_for_one_rank_is_dealt_with_what_the_other_ranks_give_back_of_it() -> None:
    """Alone it is a batch of one rank, which no rank gets; and then nor does another the one that it gives back."""
    ledger, (goes, stays) = ledger_of(LedgerShape(world_size=2, grouped=True), 2, 1, rows=2)
    ledger.next_assignment(goes)
    lease, _ = ledger.take(goes), ledger.take(goes)
    assert isinstance(lease, Lease)
    first, second = ([(row << OUTPUT_BITS, (row + 1) << OUTPUT_BITS)] for row in range(2))
    ledger.ended(goes, 0, lease.key, 2)
    ledger.assignment_ended(goes, {lease.key: [*first, *second]}, rows=2)
    assert ledger.next_assignment(goes) == Assignment(0, 0)
    ledger.take(goes)
    ledger.ack(1, goes, 0, {lease.key: second})
    ledger.lost(goes)
    for rank in range(2):
        ledger.settled(rank, goes)
    assert ledger.next_assignment(stays) == "wait" and ledger.keeps() == 0
    ledger.given_back(1, 0, {lease.key: second}, 1, 1)
    assert ledger.next_assignment(stays) == Assignment(0, 0)
    again = ledger.take(stays)
    assert isinstance(again, Lease) and again.spans == ((first[0][0], second[0][1]),)
    check_ledger(ledger)
