"""What workers get near the end of an epoch: lots that shrink, end with a batch, and cut splits of known length."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_check import check_ledger
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.lots import SideBySide, cut, elements_in, lot, piece
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Split
from pecan_ray.sampling.spans import Spans


def test_a_lot_is_half_of_an_even_share_in_whole_batches_and_completes_what_was_begun() -> None:
    assert lot(10_000, 4, 100, 0) == 1200
    assert lot(10_000, 4, 100, 1330) == 1200 - 30
    assert lot(90, 4, 100, 0) == 100, "never less than a batch"
    assert lot(90, 4, 100, 99) == 1


@given(st.integers(2, 40), st.data())
def test_both_parts_of_a_lease_that_is_cut_hold_all_of_it_once(length: int, data: st.DataObject) -> None:
    spans = Spans([(0, END)])
    for hole in data.draw(st.lists(st.integers(0, length - 1), max_size=5)):
        spans.remove(hole << OUTPUT_BITS, (hole + 1) << OUTPUT_BITS)
    lease = Lease(0, Split(0, elements=length), tuple(spans))
    count = elements_in(lease)
    assert count is not None
    if count < 2:
        return
    place = data.draw(st.integers(1, count - 1))
    mine, rest = cut(lease, place)
    assert (elements_in(mine), elements_in(rest)) == (place, count - place)
    assert tuple(Spans([*mine.spans, *rest.spans])) == lease.spans
    assert rest.spans[-1][1] == END, "what lies behind the length that is told is asked for as well"


@pytest.mark.parametrize(
    ("splits", "rows", "workers", "batch", "rounds"),
    [(16, 900, 12, 240, 5), (16, 1600, 16, 256, 7), (3, 700, 4, 64, 9)],
)
def test_all_workers_end_with_full_batches_and_together(
    splits: int, rows: int, workers: int, batch: int, rounds: int
) -> None:
    """Each worker takes more when it has worked off what it got, all at the same pace."""
    ledger = Ledger(LedgerShape(batch_size=batch))
    names = [f"w{number}" for number in range(workers)]
    for name in names:
        ledger.join(name)
    ledger.add_splits(0, [Split(index, elements=rows) for index in range(splits)])
    ledger.end_listing(0)
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
    ledger = Ledger(LedgerShape(batch_size=2, **shape))  # type: ignore[arg-type]  # fields of it
    ledger.join("w")
    ledger.join("x")
    ledger.assign_static(["w", "x"])
    ledger.add_splits(0, [Split(index, elements=9) for index in range(2)])
    ledger.end_listing(0)
    ledger.next_assignment("w")
    lease = ledger.take("w")
    assert isinstance(lease, Lease) and lease.spans == ((0, END),)


def test_what_a_worker_reads_beside_others_leaves_each_worker_its_share() -> None:
    """Of ten splits of unknown length, taken by the first worker as fast as it can."""

    def taken(workers: int) -> int:
        reading = 0
        while reading < 10 and (not reading or piece(SideBySide(10, reading, workers), 10 - reading, None, 32)):
            reading += 1
        return reading

    assert [taken(workers) for workers in (1, 2, 3, 5, 10, 100)] == [10, 5, 3, 2, 1, 1]


@pytest.mark.parametrize("workers", [1, 2, 4, 16])
def test_pieces_of_known_length_are_half_a_share_at_most_and_leave_the_end_of_an_epoch_alone(workers: int) -> None:
    splits, rows, batch = 10, 5000, 100
    ledger = Ledger(LedgerShape(batch_size=batch))
    ledger.add_splits(0, [Split(index, elements=rows) for index in range(splits)])
    ledger.end_listing(0)
    for number in range(workers):
        ledger.join(f"w{number}")
        assert isinstance(ledger.next_assignment(f"w{number}"), Assignment)
    held: list[Lease] = []
    while len(held) < 10:
        lease = ledger.take("w0", 0, None, SideBySide(10, len(held), workers))
        assert isinstance(lease, Lease)
        held.append(lease)
    assert sum(elements_in(lease) or 0 for lease in held) <= splits * rows / (2 * workers)
    assert len({lease.split.index for lease in held}) == len(held) == 10, "each of another split"
    if workers > 1:
        others: list[Lease] = []
        while len(others) < 5 and isinstance(
            lease := ledger.take("w1", 0, None, SideBySide(10, len(others), workers)), Lease
        ):
            others.append(lease)
        assert len({lease.split.index for lease in others}) == len(others) == 5, "the rests are of other splits, too"
        held += others
    left = sum(elements_in(lease) or 0 for lease in ledger.queues)
    assert left == splits * rows - sum(elements_in(lease) or 0 for lease in held)
    assert not piece(SideBySide(10, 1, workers), 1, 10 * workers, batch), "too little for ten that share it"
    check_ledger(ledger)
