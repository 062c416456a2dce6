"""Into which batches the rests of groups are cut at the end of an epoch."""

from __future__ import annotations

from itertools import chain
from random import Random

import pytest

from pecan_ray.plan.grouping import Tail
from pecan_ray.sampling.group_tails import tail_batches


@pytest.mark.parametrize(
    ("counts", "sizes", "tail", "ranks", "made", "batches", "used"),
    [
        ([], [], "keep", 2, 0, [], 0),
        ([3, 0, 1], [4, 4, 4], "keep", 1, 7, [range(0, 3), range(3, 4)], 2),
        ([3, 3], [4, 4], "keep", 2, 1, [range(0, 2), range(2, 3), range(3, 6)], 3),
        ([4, 3], [4, 4], "keep", 3, 0, [range(0, 2), range(2, 4), range(4, 7)], 3),
        ([1, 1, 1], [4, 4, 4], "fill", 2, 0, [range(0, 1), range(1, 2), range(2, 3)], 2),
        ([4, 1, 2, 2], [4, 4, 4, 4], "merge", 1, 0, [range(0, 4), range(4, 8), range(8, 9)], 3),
        ([3, 1], [8, 2], "merge", 1, 0, [range(0, 3), range(3, 4)], 2),  # four are too many for the second group
        ([4, 4, 3], [4, 4, 4], "drop", 2, 1, [range(0, 4), range(4, 8), range(8, 11)], 1),
        ([3], [4], "drop", 3, 1, [range(0, 3)], 0),
    ],
)
def test_rests_are_cut_into_batches_for_ranks_in_turn(
    counts: list[int], sizes: list[int], tail: Tail, ranks: int, made: int, batches: list[range], used: int
) -> None:
    assert tail_batches(counts, sizes, tail, ranks, made) == (batches, used)


def test_all_ranks_get_equally_many_and_fewer_elements_than_ranks_are_left_out() -> None:
    random = Random(7)
    for _ in range(3000):
        ranks, size = random.randint(1, 6), random.randint(1, 9)
        full, rests = random.randint(0, ranks - 1), random.randint(0, 5)
        sizes = [size] * full + [random.randint(1, 9) for _ in range(rests)]
        counts = sizes[:full] + [random.randint(0, one - 1) for one in sizes[full:]]
        made = random.choice((0, 1, 5)) if full == ranks - 1 else 0
        group_of = list(chain.from_iterable([group] * count for group, count in enumerate(counts)))
        for tail in ("keep", "fill", "merge", "drop"):
            batches, used = tail_batches(counts, sizes, tail, ranks, made)
            assert list(chain(*batches)) == list(range(sum(counts))) and all(batches)
            groups = [{group_of[place] for place in batch} for batch in batches]
            for batch, mine in zip(batches, groups, strict=True):
                assert len(batch) <= min(sizes[group] for group in mine)
            assert tail == "merge" or all(len(mine) == 1 for mine in groups)
            assert (made + used) % ranks == 0 or not used
            assert tail == "drop" or sum(map(len, batches[used:])) < ranks
