"""What becomes of the elements that fill no round at the end of an epoch."""

from __future__ import annotations

from itertools import chain
from random import Random

import pytest

from pecan_ray.sampling.tail_rounds import of_rank, tail_rounds


@pytest.mark.parametrize(
    ("left", "sizes", "ranks", "rounds"),
    [
        ([], [], 2, []),
        ([0, 0], [4, 2], 2, []),
        ([5, 0], [4, 2], 2, [range(0, 5)]),
        ([5, 3], [4, 2], 2, [range(0, 5), range(5, 8)]),
        ([1, 3], [4, 2], 2, [range(0, 4)]),  # too few of the shorter go with the longer
        ([2, 3], [8, 1], 3, [range(0, 3)]),  # which together are more than one round of these, and what is left stays
        ([2, 4], [8, 1], 3, [range(0, 3), range(3, 6)]),
        ([6, 1], [8, 2], 2, [range(0, 5), range(5, 7)]),  # too few of the longest are filled up by the shorter
        ([2, 1], [8, 2], 2, [range(0, 3)]),
        ([2, 1], [8, 1], 2, [range(0, 2)]),  # a batch of two would be too large for the longest: it is left out
        ([1, 1], [8, 4], 4, []),
    ],
)
def test_what_is_left_of_buckets_is_cut_into_rounds(
    left: list[int], sizes: list[int], ranks: int, rounds: list[range]
) -> None:
    assert tail_rounds(left, sizes, ranks) == rounds


def test_each_rank_gets_a_batch_of_each_round_and_none_is_too_large() -> None:
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
