"""Which rows of the last round each rank gets, and how they are numbered."""

from __future__ import annotations

import itertools

import pytest

from pecan_ray.job.last_round import LastRound


@pytest.mark.parametrize(("ranks", "size"), itertools.product((2, 3, 5), (1, 2, 4)))
def test_each_rank_has_an_even_share_that_begins_where_its_full_batch_would(ranks: int, size: int) -> None:
    for rounds, rows in itertools.product((0, 2), range(ranks, (ranks - 1) * size + 1)):
        begin = rounds * ranks * size
        last = LastRound(begin, rows, ranks, size)
        numbers = [last.number(row) for row in range(begin + rows)]
        assert numbers[:begin] == list(range(begin)) and last.end == numbers[-1] + 1
        for rank in range(ranks):
            share = numbers[begin + rank * rows // ranks : begin + (rank + 1) * rows // ranks]
            first = begin + rank * size
            assert share == list(range(first, first + len(share)))
            assert {(last.share_of(number), last.run_end(number)) for number in share} == {(rank, share[-1] + 1)}


def test_where_no_round_lacks_a_batch_rows_keep_their_numbers() -> None:
    last = LastRound(8, 0, 2, 4)
    assert (last.number(9), last.share_of(9), last.run_end(3), last.end) == (9, None, 8, 8)
