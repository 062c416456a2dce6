"""The ledger step by step: shares, lots near an epoch's end, what fills no batch, what is dropped."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Literal

import pytest

from pecan_ray.job.dropped import DroppedData
from pecan_ray.job.lease_sizes import SideBySide, elements_in, interleave_size, lot
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_check import check_ledger
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.pending_leases import WorkerLeaseState
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Split


def ledger_of(
    shape: LedgerShape, workers: int, splits: int = 1, rows: int | None = None, listed: bool = True
) -> tuple[Ledger, list[str]]:
    """A ledger of splits of so many rows, and its workers."""
    ledger, names = Ledger(shape), [f"w{number}" for number in range(workers)]
    for name in names:
        ledger.join(name)
    ledger.add_splits(0, [Split(index, elements=rows) for index in range(splits)])
    if listed:
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


# --- shares --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "workers", "sharding", "share"),
    [(0, 1, "dynamic", 1), (3, 2, "dynamic", 1), (100, 1, "dynamic", 50), (100, 5, "dynamic", 10), (9, 3, "off", 9)],
)
def test_a_worker_takes_no_more_than_leaves_work_for_all(
    waiting: int, workers: int, sharding: Literal["dynamic", "off"], share: int
) -> None:
    ledger, _ = ledger_of(LedgerShape(sharding=sharding), workers, waiting, listed=False)
    assert ledger.share("w0") == share


@pytest.mark.parametrize(("num_passes", "share"), [(1, 4), (3, 12), (None, 1 << 20)])
def test_passes_to_come_count_as_waiting(num_passes: int | None, share: int) -> None:
    ledger, _ = ledger_of(LedgerShape(num_passes=num_passes), 1, 8, listed=False)
    assert ledger.share("w0") == 4, "of a source that is still being listed, nobody knows how much a pass is"
    ledger.end_listing(0)
    assert min(ledger.share("w0"), 1 << 20) == share


def test_a_lot_is_half_of_an_even_share_in_whole_batches_and_completes_what_was_begun() -> None:
    assert lot(10_000, 4, 100, 0) == 1200
    assert lot(10_000, 4, 100, 1330) == 1200 - 30
    assert lot(90, 4, 100, 0) == 100, "never less than a batch"
    assert lot(90, 4, 100, 99) == 1


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


@pytest.mark.parametrize("shape", [{"sharding": "static"}, {"in_order": True}, {"keeps": True}, {"serial": True}])
def test_splits_stay_whole_where_each_has_one_reader(shape: dict[str, object]) -> None:
    ledger, names = ledger_of(LedgerShape(batch_size=2, **shape), 2, 2, 9, listed=False)  # type: ignore[arg-type]  # fields of it
    ledger.assign_static(names)
    ledger.end_listing(0)
    ledger.next_assignment("w0")
    lease = ledger.take("w0")
    assert isinstance(lease, Lease) and lease.spans == ((0, END),)


def test_what_a_worker_reads_beside_others_leaves_each_worker_its_share() -> None:
    """Of ten splits of unknown length, taken by the first worker as fast as it can."""

    def taken(workers: int) -> int:
        reading = 0
        while reading < 10 and (
            not reading or interleave_size(SideBySide(10, reading, workers), 10 - reading, None, 32)
        ):
            reading += 1
        return reading

    assert [taken(workers) for workers in (1, 2, 3, 5, 10, 100)] == [10, 5, 3, 2, 1, 1]


@pytest.mark.parametrize("workers", [1, 2, 4, 16])
def test_pieces_of_known_length_are_half_a_share_at_most_and_leave_the_end_of_an_epoch_alone(workers: int) -> None:
    splits, rows, batch = 10, 5000, 100
    ledger, names = ledger_of(LedgerShape(batch_size=batch), workers, splits, rows)
    for name in names:
        assert isinstance(ledger.next_assignment(name), Assignment)

    def hold(name: str, count: int) -> list[Lease]:
        taken: list[Lease] = []
        while len(taken) < count:
            lease = ledger.take(name, 0, None, SideBySide(10, len(taken), workers))
            assert isinstance(lease, Lease)
            taken.append(lease)
        assert len({lease.split.index for lease in taken}) == count, "each of another split"
        return taken

    held = hold("w0", 10)
    assert sum(elements_in(lease) or 0 for lease in held) <= splits * rows / (2 * workers)
    held += hold("w1", 5) if workers > 1 else []
    left = sum(elements_in(lease) or 0 for lease in ledger.queues)
    assert left == splits * rows - sum(elements_in(lease) or 0 for lease in held)
    assert not interleave_size(SideBySide(10, 1, workers), 1, 10 * workers, batch), "too little for ten that share it"
    check_ledger(ledger)
