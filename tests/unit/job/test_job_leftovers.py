"""What fills no batch: distributed in rounds of equal groups, and left out only where it cannot be shared."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job.leftovers import Group, Leftovers, by_element, merged
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Split


def elements_of(group: Group) -> list[tuple[int, int]]:
    units = [unit for lease in group.leases for unit in by_element(lease)]
    return [(unit.split.index, unit.spans[0][0] >> OUTPUT_BITS) for unit in units]


def filled(leftovers: Leftovers, counts: list[int]) -> Leftovers:
    for index, count in enumerate(counts):
        leftovers.add(Lease(0, Split(index), spans=()), [(0, count << OUTPUT_BITS)])
    return leftovers


@pytest.mark.parametrize(
    ("ranks", "batch", "only_full", "counts", "sizes", "left_out"),
    [
        (1, 4, False, [3, 0, 7], [10], 0),
        (64, 32, False, [64 * 26 * 3], [26] * 64, 0),
        (4, 8, False, [3], [], 3),
        (2, 4, True, [19], [4, 4], 0),
        (3, 2, False, [], [], 0),
    ],
    ids=["one rank has one group", "a batch for each rank", "too few to share", "full ones alone", "nothing is left"],
)
def test_a_tail_is_groups_of_one_size_one_for_each_rank(
    ranks: int, batch: int, only_full: bool, counts: list[int], sizes: list[int], left_out: int
) -> None:
    leftovers = filled(Leftovers(ranks, batch, only_full=only_full), counts)
    assert leftovers.distribute() == left_out
    assert [len(elements_of(group)) for group in leftovers.groups] == sizes
    assert [group.rank for group in leftovers.groups] == list(range(len(sizes)))
    assert bool(leftovers) == bool(sizes)


def test_a_lease_has_a_unit_for_each_element_each_part_of_one_and_an_end_that_nobody_knows() -> None:
    element, quarter = 1 << OUTPUT_BITS, 1 << (OUTPUT_BITS - 2)
    spans = ((0, quarter), (2 * quarter, element + quarter), (5 * element, END))
    units = by_element(Lease(0, Split(0), spans=spans))
    assert [unit.spans[0] for unit in units] == [
        (0, quarter),
        (2 * quarter, element),
        (element, element + quarter),
        (5 * element, END),
    ]
    lease = Lease(3, Split(7), spans=((0, 4 * element),), branch=1, repetition=2)
    assert merged(by_element(lease)) == (lease,), "what meets again is one"


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
