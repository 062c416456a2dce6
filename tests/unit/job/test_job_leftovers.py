"""What fills no batch: distributed in rounds of equal groups, and left out only where it cannot be shared."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job.leftovers import Group, Leftovers, by_element, merged
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Split


def elements_of(group: Group) -> list[tuple[int, int]]:
    """Split and number of each element of a group."""
    units = [unit for lease in group.leases for unit in by_element(lease)]
    return [(unit.split.index, unit.spans[0][0] >> OUTPUT_BITS) for unit in units]


def filled(leftovers: Leftovers, counts: list[int]) -> Leftovers:
    """Leftovers of so many elements of each split."""
    for index, count in enumerate(counts):
        leftovers.add(Lease(0, Split(index), spans=()), [(0, count << OUTPUT_BITS)])
    return leftovers


def test_one_trainer_gets_all_in_one_group() -> None:
    leftovers = filled(Leftovers(1, 4, only_full=False), [3, 0, 7])
    assert leftovers.distribute() == 0
    (group,) = leftovers.groups
    assert group.rank == 0 and len(elements_of(group)) == 10


def test_what_workers_return_is_dealt_a_batch_each_as_soon_as_there_is_one() -> None:
    leftovers = Leftovers(1, 4, only_full=False)
    for index, count in enumerate((3, 2, 9)):
        leftovers.add(Lease(0, Split(index), spans=()), [(0, count << OUTPUT_BITS)], deal=True)
        leftovers.deal()
        assert len(leftovers.groups) == (0, 1, 3)[index], "of 3, 5 and 14 elements"
    assert [(group.rank, len(elements_of(group))) for group in leftovers.groups] == [(None, 4)] * 3
    assert leftovers, "two elements are left"
    leftovers.groups.clear()
    filled(leftovers, [0, 0, 0, 1])
    leftovers.deal()
    assert not leftovers.groups, "what comes back a second time waits for the end"
    assert leftovers.distribute() == 0
    assert [(group.rank, len(elements_of(group))) for group in leftovers.groups] == [(0, 3)]
    leftovers.groups.clear()
    assert not leftovers


def test_a_tail_for_many_ranks_is_many_groups_that_as_many_workers_can_take_at_a_time() -> None:
    leftovers = filled(Leftovers(64, 32, only_full=False), [5000])
    assert leftovers.distribute() == 0
    assert [group.rank for group in leftovers.groups] == list(range(64))
    sizes = [len(elements_of(group)) for group in leftovers.groups]
    assert max(sizes) - min(sizes) <= 1 and max(sizes) <= 32 and min(sizes) > 1


def test_fewer_elements_than_ranks_are_left_out_and_counted() -> None:
    leftovers = filled(Leftovers(4, 8, only_full=False), [3])
    assert leftovers.distribute() == 3
    assert not leftovers


def test_only_full_batches_leave_out_what_does_not_fill_one_for_each_rank() -> None:
    leftovers = filled(Leftovers(2, 4, only_full=True), [19])
    assert leftovers.distribute() == 0
    assert [len(elements_of(group)) for group in leftovers.groups] == [4, 4]
    leftovers.groups.clear()
    assert leftovers.distribute() == 0
    leftovers.groups.clear()
    assert leftovers.distribute() == 3


def test_what_comes_back_whole_from_a_round_is_left_out_unless_a_worker_was_lost() -> None:
    for lost in (False, True):
        leftovers = filled(Leftovers(2, 4, only_full=False), [2])
        assert leftovers.distribute() == 0
        leftovers.groups.clear()
        filled(leftovers, [2])
        if lost:
            leftovers.spoilt()
        assert leftovers.distribute() == (0 if lost else 2)
        assert bool(leftovers.groups) == lost


def test_a_rest_without_a_known_end_stays_in_one_piece() -> None:
    """Two elements and a torn end are three units, and not as many as there are numbers up to the end."""
    start = 5 << OUTPUT_BITS
    lease = Lease(0, Split(0), spans=((0, 2 << OUTPUT_BITS), (start, END)))
    assert [unit.spans for unit in by_element(lease)] == [
        ((0, 1 << OUTPUT_BITS),),
        ((1 << OUTPUT_BITS, 2 << OUTPUT_BITS),),
        ((start, END),),
    ]


def test_outputs_of_one_element_that_are_apart_are_units_of_their_own() -> None:
    quarter = 1 << (OUTPUT_BITS - 2)
    lease = Lease(0, Split(0), spans=((0, quarter), (2 * quarter, (1 << OUTPUT_BITS) + quarter)))
    assert [unit.spans[0] for unit in by_element(lease)] == [
        (0, quarter),
        (2 * quarter, 1 << OUTPUT_BITS),
        (1 << OUTPUT_BITS, (1 << OUTPUT_BITS) + quarter),
    ]


def test_pieces_of_a_split_that_meet_again_are_one_lease() -> None:
    lease = Lease(3, Split(7), spans=((0, 4 << OUTPUT_BITS),), branch=1, repetition=2)
    assert merged(by_element(lease)) == (lease,)


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(2, 9), st.integers(1, 8), st.booleans())
def test_groups_share_everything_out_once(counts: list[int], ranks: int, batch: int, only_full: bool) -> None:
    leftovers = filled(Leftovers(ranks, batch, only_full=only_full), counts)
    given_out: list[tuple[int, int]] = []
    left_out = 0
    for _ in range(200):
        left_out += leftovers.distribute()
        if not leftovers.groups:
            break
        sizes = [len(elements_of(group)) for group in leftovers.groups]
        assert [group.rank for group in leftovers.groups] == list(range(ranks))
        assert min(sizes) > 0 and max(sizes) <= batch and max(sizes) - min(sizes) <= 1
        while leftovers.groups:
            given_out += elements_of(leftovers.groups.popleft())
    assert all(count == 1 for count in Counter(given_out).values())
    assert len(given_out) + left_out == sum(counts)
    assert left_out < (ranks * batch if only_full else ranks)


@pytest.mark.parametrize("world", [1, 3])
def test_nothing_is_distributed_where_nothing_is_left(world: int) -> None:
    leftovers = Leftovers(world, 2, only_full=False)
    assert leftovers.distribute() == 0 and not leftovers
