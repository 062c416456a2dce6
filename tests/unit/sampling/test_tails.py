"""What becomes of the elements that fill no round, and of the rests of groups, at the end of an epoch."""

from __future__ import annotations

from itertools import chain
from random import Random

from pecan_ray.plan.grouping import Tail
from pecan_ray.sampling.group_tails import tail_batches
from pecan_ray.sampling.tail_rounds import of_rank, tail_rounds


def test_what_is_left_of_buckets_is_cut_into_rounds_with_a_batch_for_each_rank_that_is_not_too_large() -> None:
    for left, sizes, ranks, rounds in ROUNDS:
        assert tail_rounds(left, sizes, ranks) == rounds
    random = Random(7)
    for _ in range(3000):
        buckets, ranks = random.randint(1, 5), random.randint(1, 6)
        sizes = sorted((random.randint(1, 9) for _ in range(buckets)), reverse=True)
        left = [random.randint(0, 3 * size * ranks) for size in sizes]
        rounds = tail_rounds(left, sizes, ranks)
        bucket_of = list(chain.from_iterable([bucket] * count for bucket, count in enumerate(left)))
        assert list(chain(*rounds)) == list(range(sum(map(len, rounds))))
        assert sum(left) - sum(map(len, rounds)) < ranks
        for elements in rounds:
            batches = [of_rank(elements, rank, ranks) for rank in range(ranks)]
            assert sorted(chain(*batches)) == list(elements)
            assert min(map(len, batches)) > 0 and max(map(len, batches)) - min(map(len, batches)) <= 1
            assert max(map(len, batches)) <= sizes[bucket_of[elements[-1]]]


def test_rests_of_groups_are_cut_into_equally_many_batches_for_all_ranks() -> None:
    for counts, sizes, tail, ranks, made, batches, used in RESTS:
        assert tail_batches(counts, sizes, tail, ranks, made) == (batches, used)
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


ROUNDS: list[tuple[list[int], list[int], int, list[range]]] = [
    ([0, 0], [4, 2], 2, []),
    ([5, 3], [4, 2], 2, [range(0, 5), range(5, 8)]),
    ([1, 3], [4, 2], 2, [range(0, 4)]),  # too few of the shorter go with the longer
    ([2, 3], [8, 1], 3, [range(0, 3)]),  # which together are more than one round of these, and what is left stays
    ([2, 4], [8, 1], 3, [range(0, 3), range(3, 6)]),
    ([6, 1], [8, 2], 2, [range(0, 5), range(5, 7)]),  # too few of the longest are filled up by the shorter
    ([2, 1], [8, 1], 2, [range(0, 2)]),  # a batch of two would be too large for the longest: it is left out
    ([1, 1], [8, 4], 4, []),
]
"""What is left of buckets, their sizes, how many ranks there are, and the rounds that are made."""


RESTS: list[tuple[list[int], list[int], Tail, int, int, list[range], int]] = [
    ([3, 0, 1], [4, 4, 4], "keep", 1, 7, [range(0, 3), range(3, 4)], 2),
    ([4, 3], [4, 4], "keep", 3, 0, [range(0, 2), range(2, 4), range(4, 7)], 3),
    ([1, 1, 1], [4, 4, 4], "fill", 2, 0, [range(0, 1), range(1, 2), range(2, 3)], 2),
    ([4, 1, 2, 2], [4, 4, 4, 4], "merge", 1, 0, [range(0, 4), range(4, 8), range(8, 9)], 3),
    ([3, 1], [8, 2], "merge", 1, 0, [range(0, 3), range(3, 4)], 2),  # four are too many for the second group
    ([4, 4, 3], [4, 4, 4], "drop", 2, 1, [range(0, 4), range(4, 8), range(8, 11)], 1),
]
"""What is left of groups, their sizes, what to do, ranks, batches made before, and the batches, of which so many go."""
