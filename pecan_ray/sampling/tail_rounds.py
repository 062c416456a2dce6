"""Rounds of what fills none: the elements that are left in the buckets at the end of an epoch.

A round is a batch for each rank.  Elements are numbered from the shortest bucket to the longest one, so that a round is
an interval of them, of which rank k gets every `ranks`-th one from the k-th on.
"""

from __future__ import annotations

from collections.abc import Sequence


def tail_rounds(left: Sequence[int], sizes: Sequence[int], ranks: int) -> list[range]:
    """Return the elements of each round, made of so many that are left in each bucket.

    No batch of a round is larger than `sizes` allows for its longest element, and none is empty.  What is in no round
    lies behind the last one, and is fewer than `ranks` elements.
    """
    rounds: list[range] = []
    begin = end = 0
    for count, size in zip(left, sizes, strict=True):
        end += count
        while end - begin >= size * ranks:
            # As many as the longest of them allows: shorter elements fit wherever longer ones do.
            rounds.append(range(begin, begin + size * ranks))
            begin += size * ranks
        if end - begin >= ranks:
            rounds.append(range(begin, end))
            begin = end
    if begin == end or not rounds:
        return rounds
    longest = max(bucket for bucket, count in enumerate(left) if count)
    last = rounds.pop()
    if end - last.start >= 2 * ranks:
        # The longest of a shorter bucket fill up: a round as large as both may be too large for its longest elements.
        return [*rounds, range(last.start, end - ranks), range(end - ranks, end)]
    together = range(last.start, end)
    fits = len(together) <= sizes[longest] * ranks
    return [*rounds, together if fits else last]


def of_rank(elements: range, rank: int, ranks: int) -> range:
    """Return the elements of a round that are in a rank's batch: equally many, one more at the most."""
    return elements[rank::ranks]
