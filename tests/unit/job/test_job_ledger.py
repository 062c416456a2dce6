"""The ledger, played at random and step by step: each element once per epoch, whoever dies and whatever comes late."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job.dropped import DroppedData
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_check import check_ledger
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.options import Visitation
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Split
from pecan_ray.sampling.randomness import SplitOrder
from tests.long_form import examples
from tests.unit.job.ledger_model import LedgerModel, everything

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=8)


def ledger_of(shape: LedgerShape, *workers: str, splits: int = 1, listed: bool = True) -> Ledger:
    """A ledger that knows these workers and so many splits."""
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


def element(number: int, count: int = 1) -> tuple[int, int]:
    """The positions of elements from a number on."""
    return number << OUTPUT_BITS, (number + count) << OUTPUT_BITS


@examples(150)
@given(
    SIZES,
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 5),
    st.integers(0, 10_000),
    st.sampled_from(["dynamic", "static"]),
    st.booleans(),
)
def test_each_element_once_per_epoch_whatever_dies(
    sizes: list[int],
    batch: int,
    workers: int,
    deaths: int,
    seed: int,
    sharding: Literal["dynamic", "static"],
    shuffled: bool,
) -> None:
    shape = LedgerShape(epochs=3, batch_size=batch, sharding=sharding, orders=(SplitOrder(5),) if shuffled else ())
    model = LedgerModel(shape, sizes, workers, seed)
    model.run(deaths)
    assert len(model.used[0]) == 3
    for epoch in model.used[0]:
        assert Counter(epoch) == everything(sizes)
    if not deaths:
        assert [b[0] for b in model.batches] == [-(-sum(sizes) // batch)] * 3


@examples(100)
@given(SIZES, st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(2, 3), st.integers(0, 10_000))
def test_ranks_get_disjoint_and_equally_many_batches(
    sizes: list[int], batch: int, workers: int, deaths: int, world: int, seed: int
) -> None:
    model = LedgerModel(LedgerShape(epochs=2, batch_size=batch, world_size=world), sizes, workers, seed)
    model.run(deaths)
    assert all(len(set(counts)) == 1 for counts in model.batches)
    left_out = 0
    for epoch in range(2):
        seen = Counter(item for rank in range(world) for item in model.used[rank][epoch])
        assert all(n == 1 for n in seen.values())
        left_out += sum((everything(sizes) - seen).values())
    assert left_out == model.ledger.left_out_elements
    assert left_out <= 2 * (world - 1)


@examples(200)
@given(SIZES, st.integers(1, 4), st.integers(1, 3), st.integers(0, 4), st.integers(1, 3), st.integers(0, 10_000))
def test_a_whole_plan_reaches_its_trainers_in_turn_whatever_dies(
    sizes: list[int], batch: int, workers: int, deaths: int, world: int, seed: int
) -> None:
    """One worker runs it; its last batch may arrive before others do, and it may die at any moment."""
    model = LedgerModel(LedgerShape(epochs=2, batch_size=batch, world_size=world, serial=True), sizes, workers, seed)
    model.run(deaths)
    batches = -(-sum(sizes) // batch)
    turns = batches // world
    sequence = [(0, split, element) for split, size in enumerate(sizes) for element in range(size)]
    for epoch in range(2):
        assert model.batches[epoch] == [turns] * world
        seen = Counter(item for rank in range(world) for item in model.used[rank][epoch])
        assert seen == Counter(sequence[: turns * world * batch])
    assert model.ledger.left_out_elements == 2 * (sum(sizes) - min(sum(sizes), turns * world * batch))


def test_repeat_passes_over_the_data_within_one_epoch() -> None:
    model = LedgerModel(LedgerShape(epochs=1, batch_size=4, repetitions=3), [5, 2], 2, seed=1)
    model.run()
    assert Counter(model.used[0][0]) == everything([5, 2], 3)
    assert model.batches == [[-(-21 // 4)]]


def test_off_sharding_shows_every_element_to_every_worker() -> None:
    model = LedgerModel(LedgerShape(epochs=2, batch_size=2, sharding="off"), [3, 4], 3, seed=2)
    model.run()
    for epoch in model.used[0]:
        assert Counter(epoch) == Counter(dict.fromkeys(everything([3, 4]), 3))


def test_only_full_batches_are_used_where_the_user_drops_the_remainder_and_the_rest_is_counted() -> None:
    model = LedgerModel(LedgerShape(batch_size=3, world_size=2, drop_remainder=True), [5, 6], 3, seed=4)
    model.run()
    used = [item for rank in model.used for item in rank[0]]
    assert model.batches == [[1, 1]] and len(used) == 6
    assert model.ledger.left_out_elements == 5


def test_at_most_once_drops_what_a_lost_worker_held_and_tells() -> None:
    ledger = ledger_of(LedgerShape(visitation="at_most_once"), "w", splits=2)
    assert isinstance(ledger.next_assignment("w"), Assignment)
    take(ledger, "w")
    ledger.lost("w")
    ledger.settled(0, "w")
    assert [dropped.split.index for dropped in ledger.dropped.leases] == [0]
    ledger.join("x")
    ledger.next_assignment("x")
    assert take(ledger, "x").split.index == 1


@pytest.mark.parametrize(
    ("visitation", "drains"),
    [("exactly_once", False), ("exactly_once", True), ("at_most_once", True), ("zero_or_more", True)],
)
def test_what_a_worker_held_is_given_out_again_once_all_ranks_have_settled(
    visitation: Visitation, drains: bool
) -> None:
    ledger = ledger_of(LedgerShape(world_size=2, visitation=visitation), "w", "x")
    ledger.next_assignment("w")
    lease = take(ledger, "w")
    ledger.lost("w", drains=drains)
    ledger.settled(0, "w")
    ledger.acked(1, "w", 0, {lease.key: [(0, 2 << OUTPUT_BITS)]})
    assert ledger.next_assignment("x") == "wait", "rank 1 may have more of it"
    ledger.settled(1, "w")
    assert isinstance(ledger.next_assignment("x"), Assignment)
    assert take(ledger, "x").spans == ((2 << OUTPUT_BITS, END),)
    assert not ledger.dropped.leases


def test_what_is_dropped_is_counted_in_elements_and_in_ends_that_nobody_knows() -> None:
    dropped = DroppedData()
    known = Lease(0, Split(0, elements=7), ((1 << OUTPUT_BITS, (2 << OUTPUT_BITS) + 5), (3 << OUTPUT_BITS, END)))
    dropped.add("w", [known, Lease(0, Split(1, elements=2), ((2 << OUTPUT_BITS, END),))])
    assert (dropped.elements, dropped.open_ends) == (6, 0), "elements 1 to 6, of the second of which a part is left"
    dropped.add("x", [Lease(0, Split(2), ((0, 4 << OUTPUT_BITS), (9 << OUTPUT_BITS, END)))])
    dropped.add("y", [Lease(0, Split(3, elements=2), ((2 << OUTPUT_BITS, END),))])
    assert (dropped.elements, dropped.open_ends) == (10, 1)
    told = [str(one) for one in dropped.take_untold()]
    assert len(told) == 2 and "w is gone, and with it 6 elements: dropped" in told[0]
    assert "4 elements and the rest of 1 splits of unknown length" in told[1]
    assert not dropped.take_untold()


def test_zero_or_more_gives_out_again_at_once_without_asking_the_ranks() -> None:
    ledger = ledger_of(LedgerShape(world_size=2, visitation="zero_or_more"), "w", "x")
    ledger.next_assignment("w")
    take(ledger, "w")
    ledger.lost("w")
    assert ledger.unsettled() == {}
    assert isinstance(ledger.next_assignment("x"), Assignment)
    assert take(ledger, "x").spans == ((0, END),)


def test_a_rank_that_settles_twice_or_about_a_living_worker_changes_nothing() -> None:
    ledger = ledger_of(LedgerShape(world_size=2), "w", "x")
    ledger.next_assignment("w")
    take(ledger, "w")
    ledger.settled(0, "w")
    ledger.lost("w")
    ledger.settled(0, "w")
    ledger.settled(0, "w")
    assert ledger.unsettled() == {"w": {1}}


def test_a_lost_worker_is_given_nothing_more() -> None:
    ledger = ledger_of(LedgerShape(), "w", splits=3)
    ledger.next_assignment("w")
    take(ledger, "w")
    ledger.lost("w")
    assert ledger.take("w") == "stop" and ledger.next_assignment("w") == "stop"
    assert ledger.assignment_ended("w", {(0, 0, 0): [element(0)]}) == "return"
    assert not ledger.leftovers
    check_ledger(ledger)


def test_acknowledgements_of_another_epoch_change_nothing() -> None:
    ledger = ledger_of(LedgerShape(epochs=3), "w")
    for epoch in range(2):
        assert ledger.next_assignment("w") == Assignment(epoch)
        lease = take(ledger, "w")
        ledger.acked(0, "w", epoch + 1, {lease.key: [element(0, 2)]})
        ledger.acked(0, "w", epoch - 1, {lease.key: [element(0, 2)]})
        assert ledger.counts == [0] and ledger.workers["w"].holdings[lease.key].missing.covers(0, END)
        ledger.ended("w", epoch, lease.key, 2)
        ledger.acked(0, "w", epoch, {lease.key: [element(0, 2)]})
        assert ledger.epoch == epoch, "the worker has not ended its assignment"
        ledger.assignment_ended("w", {})
        assert ledger.epoch == epoch + 1


def test_a_length_or_consumed_data_of_another_epoch_change_nothing() -> None:
    ledger = ledger_of(LedgerShape(epochs=2), "w")
    ledger.next_assignment("w")
    lease = take(ledger, "w")
    ledger.ended("w", 1, lease.key, 0)
    ledger.consumed("w", 1, {lease.key: [(0, END)]}, left_out=7)
    assert ledger.left_out_elements == 0 and ledger.workers["w"].holds


def test_batches_given_back_from_another_epoch_change_nothing() -> None:
    ledger = ledger_of(LedgerShape(world_size=2, epochs=None), "w")
    ledger.next_assignment("w")
    lease = take(ledger, "w")
    ledger.acked(0, "w", 0, {lease.key: [element(0)]})
    ledger.given_back(0, 1, {lease.key: [element(0)]}, 1, 1)
    assert ledger.counts == [1, 0] and not ledger.leftovers
    ledger.given_back(0, 0, {lease.key: [element(0)]}, 1, 1)
    assert ledger.counts == [0, 0] and ledger.leftovers
    check_ledger(ledger)


def test_what_is_acknowledged_twice_is_not_given_out_again() -> None:
    ledger = ledger_of(LedgerShape(), "w", "x")
    ledger.next_assignment("w")
    lease = take(ledger, "w")
    for _ in range(2):
        ledger.acked(0, "w", 0, {lease.key: [element(0, 2)]})
    ledger.lost("w")
    ledger.settled(0, "w")
    ledger.next_assignment("x")
    assert take(ledger, "x").spans == ((2 << OUTPUT_BITS, END),)


def test_a_worker_waits_while_sources_are_being_listed() -> None:
    ledger = ledger_of(LedgerShape(), "w", splits=0, listed=False)
    assert isinstance(ledger.next_assignment("w"), Assignment)
    assert ledger.take("w") == "wait"
    ledger.add_splits(0, [Split(0)])
    take(ledger, "w")


@pytest.mark.parametrize("held", [False, True])
def test_nothing_is_to_be_kept_while_data_is_under_way(held: bool) -> None:
    ledger = ledger_of(LedgerShape(world_size=2), "w")
    if held:
        ledger.next_assignment("w")
        lease = take(ledger, "w")
        ledger.acked(0, "w", 0, {lease.key: [element(0)]})
    assert ledger.keeps() is None


def test_richer_ranks_give_back_down_to_the_poorest_before_the_rest_is_distributed() -> None:
    ledger = ledger_of(LedgerShape(world_size=2, epochs=2), "w")
    ledger.next_assignment("w")
    lease = take(ledger, "w")
    ledger.ended("w", 0, lease.key, 3)
    for rank, number in ((0, 0), (1, 1), (0, 2)):
        ledger.acked(rank, "w", 0, {lease.key: [element(number)]})
    ledger.assignment_ended("w", {})
    assert (ledger.keeps(), ledger.allowed(), ledger.epoch) == (1, 1, 0)
    ledger.given_back(0, 0, {lease.key: [element(2)]}, 1, 1)
    assert ledger.epoch == 1 and ledger.left_out_elements == 1, "one element cannot be shared by two ranks"


def test_an_endless_run_over_an_empty_epoch_ends() -> None:
    ledger = ledger_of(LedgerShape(epochs=None), "w")
    ledger.next_assignment("w")
    lease = take(ledger, "w")
    ledger.ended("w", 0, lease.key, 5)
    ledger.consumed("w", 0, {lease.key: [(0, 5 << OUTPUT_BITS)]})
    assert not ledger.finished
    ledger.assignment_ended("w", {})
    assert ledger.finished and ledger.ran_dry
    assert ledger.next_assignment("w") == "stop"


def test_an_endless_run_ends_where_no_rank_keeps_a_batch() -> None:
    """One element cannot be shared by two ranks: the one that has it gives it back, epoch after epoch."""
    ledger = ledger_of(LedgerShape(epochs=None, world_size=2), "w")
    ledger.next_assignment("w")
    lease = take(ledger, "w")
    ledger.ended("w", 0, lease.key, 1)
    ledger.acked(0, "w", 0, {lease.key: [element(0)]})
    ledger.assignment_ended("w", {})
    assert ledger.keeps() == 0
    ledger.given_back(0, 0, {lease.key: [element(0)]}, 1, 1)
    assert ledger.finished and ledger.ran_dry and ledger.left_out_elements == 1


def test_an_endless_run_goes_on_after_an_epoch_with_a_batch() -> None:
    ledger = ledger_of(LedgerShape(epochs=None), "w")
    for epoch in range(5):
        assert ledger.next_assignment("w") == Assignment(epoch)
        lease = take(ledger, "w")
        ledger.ended("w", epoch, lease.key, 1)
        ledger.acked(0, "w", epoch, {lease.key: [element(0)]})
        ledger.assignment_ended("w", {})
    assert (ledger.epoch, ledger.finished, ledger.ran_dry) == (5, False, False)


@pytest.mark.parametrize("epochs", [1, 1000, None])
def test_a_source_without_splits_ends_the_job(epochs: int | None) -> None:
    ledger = ledger_of(LedgerShape(epochs=epochs), "w", splits=0)
    assert ledger.finished


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


def test_an_epoch_is_not_closing_while_passes_are_to_come_and_newcomers_get_their_work() -> None:
    ledger = ledger_of(LedgerShape(repetitions=2), "w", splits=2)
    ledger.next_assignment("w")
    assert [take(ledger, "w").split.index for _ in range(2)] == [0, 1]
    assert not ledger.closing()
    ledger.join("newcomer")
    assert ledger.next_assignment("newcomer") == Assignment(0)
    assert take(ledger, "newcomer").repetition == 1
    assert not ledger.closing()
    assert take(ledger, "w").split.index == 1
    assert ledger.closing()


def test_static_sharding_waits_for_its_workers_where_the_listing_ends_first() -> None:
    ledger = ledger_of(LedgerShape(sharding="static"), "w", "x", splits=4)
    assert not ledger.closing() and ledger.next_assignment("w") == "wait"
    ledger.assign_static(["w", "x"])
    for worker, mine in (("w", [0, 2]), ("x", [1, 3])):
        assert ledger.next_assignment(worker) == Assignment(0)
        assert [take(ledger, worker).split.index for _ in range(2)] == mine
    assert ledger.closing()


def test_what_a_lost_worker_held_of_a_group_goes_to_the_same_rank() -> None:
    ledger = ledger_of(LedgerShape(world_size=2, batch_size=8), "w", "x")
    ledger.next_assignment("w")
    lease = take(ledger, "w")
    ledger.ended("w", 0, lease.key, 4)
    assert ledger.assignment_ended("w", {lease.key: [element(0, 4)]}) == "return"
    assert ledger.regrouping()
    first = ledger.next_assignment("w")
    assert isinstance(first, Assignment) and first.rank == 0
    second = ledger.next_assignment("x")
    assert isinstance(second, Assignment) and second.rank == 1
    held = take(ledger, "x").spans
    ledger.lost("x")
    for rank in range(2):
        ledger.settled(rank, "x")
    ledger.join("y")
    third = ledger.next_assignment("y")
    assert isinstance(third, Assignment) and third.rank == 1
    assert take(ledger, "y").spans == held
    check_ledger(ledger)


def test_a_position_in_two_places_is_found() -> None:
    ledger = ledger_of(LedgerShape(), "w", "x", splits=2)
    ledger.next_assignment("w")
    lease = take(ledger, "w")
    check_ledger(ledger)
    ledger.workers["x"].give(lease)
    with pytest.raises(AssertionError, match="two places"):
        check_ledger(ledger)


def test_a_worker_that_comes_while_ranks_give_back_begins_with_the_next_epoch() -> None:
    ledger = ledger_of(LedgerShape(epochs=2, batch_size=1, world_size=2, sharding="off"), "a", splits=2)
    assert ledger.next_assignment("a") == Assignment(0)
    for _ in range(2):
        lease = take(ledger, "a")
        ledger.acked(0, "a", 0, {lease.key: list(lease.spans)})
    ledger.assignment_ended("a", {}, 2)
    assert ledger.keeps() == 0, "rank 1 has nothing"
    ledger.join("b")
    assert ledger.keeps() == 0 and ledger.closing() and ledger.next_assignment("b") == "wait"
    ledger.given_back(0, 0, {}, 2, 2)
    assert ledger.epoch == 1 and ledger.next_assignment("b") == Assignment(1)
    assert take(ledger, "b").epoch == 1
    check_ledger(ledger)
