"""The last batches of an epoch: of groups that have less than a batch left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pecan_ray.plan.grouping import Tail


def tail_batches(
    counts: Sequence[int], sizes: Sequence[int], tail: Tail, ranks: int, made: int
) -> tuple[list[range], int]:
    """Cut what is left into batches; return them, and how many of them are used: all ranks get equally many.

    Elements are numbered group after group, and a batch is an interval of them.  The largest batches are halved until
    their number is right.  Where there are too few elements for that, fewer than `ranks`, some are not used.

    Args:
        counts: elements left of each group, at most a batch; groups with a full batch first.
        sizes: elements in a batch of each group.
        tail: "merge" fills up a batch from the groups that follow, as far as the sizes of all of them allow.
            "drop" uses full batches alone.
        ranks: trainers that get batches in turn.
        made: batches made before.
    """
    batches = list(_merged(counts, sizes) if tail == "merge" else _of_each(counts))
    if tail == "drop":
        full = sum(map(int.__eq__, counts, sizes))
        return batches, max(0, full - (made + full) % ranks)
    while (made + len(batches)) % ranks and (longest := max(batches, key=len, default=range(0))):
        if len(longest) == 1:
            break
        # The largest, so that the smallest batch of the epoch stays as large as it can be.
        place, middle = batches.index(longest), longest.start + (len(longest) + 1) // 2
        batches[place : place + 1] = [range(longest.start, middle), range(middle, longest.stop)]
    return batches, max(0, len(batches) - (made + len(batches)) % ranks)


def _of_each(counts: Sequence[int]) -> Iterator[range]:
    start = 0
    for count in counts:
        if count:
            yield range(start, start + count)
        start += count


def _merged(counts: Sequence[int], sizes: Sequence[int]) -> Iterator[range]:
    limits = [size for count, size in zip(counts, sizes, strict=True) for _ in range(count)]
    start = 0
    for stop in range(1, len(limits) + 1):
        if stop == len(limits) or stop - start >= min(limits[start : stop + 1]):
            yield range(start, stop)
            start = stop
