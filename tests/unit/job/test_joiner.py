"""Rows of several workers are joined to batches in the order of the source, whatever they are cut into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job.blocks import BlockOfRows, RowRange, RunBlocks
from pecan_ray.job.joins import Joins
from pecan_ray.job.lease_sizes import cut, elements_in
from pecan_ray.job.trainer_events import ReceivedBatch
from pecan_ray.job.trainer_queue import TrainerQueue
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, LeaseKey, Split
from pecan_ray.sampling.spans import Spans

SOURCE = st.lists(st.lists(st.booleans(), max_size=6), max_size=5)
"""Of each split, which of its elements a filter lets through."""
Row = tuple[int, int]
"""Split and element."""


def kept(source: Sequence[Sequence[bool]]) -> list[Row]:
    return [(at, element) for at, split in enumerate(source) for element, passes in enumerate(split) if passes]


def runs(source: Sequence[Sequence[bool]], random: Random) -> Iterator[list[Lease]]:
    """Cut a source into runs of whole elements, the first of which begins the epoch."""
    run: list[Lease] = []
    row = 0
    for index, split in enumerate(source):
        lease = Lease(0, Split(index, elements=len(split)), row=row, place=index)
        row += len(split)
        while (count := elements_in(lease) or 0) > 1 and random.random() < 0.5:
            first, lease = cut(lease, random.randint(1, count - 1))
            yield [*run, first]
            run = []
        run.append(lease)
        if random.random() < 0.4:
            yield run
            run = []
    yield run


def assignments(source: Sequence[Sequence[bool]], random: Random) -> Iterator[list[Lease]]:
    """Deal the runs of a source to assignments: each has some, in order."""
    dealt: list[list[Lease]] = [[] for _ in range(random.randint(1, 3))]
    for run in runs(source, random):
        random.choice(dealt).extend(run)
    yield from dealt


def blocks(
    source: Sequence[Sequence[bool]], leases: list[Lease], worker: str, random: Random
) -> Iterator[ReceivedBatch]:
    """Make what a worker does of an assignment: its rows in some pieces."""
    cutter, rows = RunBlocks(), list[Row]()
    for lease in leases:
        cutter.add(replace(lease, starts_epoch=lease.split.index == lease.spans[0][0] == 0))
        (start, stop) = lease.spans[0][0] >> OUTPUT_BITS, lease.spans[0][1] >> OUTPUT_BITS
        mine = source[lease.split.index]
        rows += [(lease.split.index, n) for n in range(start, min(stop, len(mine))) if mine[n]]
        if stop > len(mine) and random.random() < 0.5:  # the engine has told of the end before it made the last row
            cutter.ended(lease.key, len(mine))
    while rows and random.random() < 0.6:
        some = random.randint(1, len(rows))
        made, rows = rows[:some], rows[some:]
        yield from (as_received(one, made, worker) for one in cutter.next(row_parts(made)))
    yield from (as_received(one, rows, worker) for one in cutter.rest(row_parts(rows)))


def as_received(one: BlockOfRows, made: Sequence[Row], worker: str) -> ReceivedBatch:
    mine, block = made[one.begin : one.end], one.block
    assert block.row_range is not None
    told = [block.row_range.element_of(row, tuple(block.spans)) for row in range(len(mine))]
    assert told == [((0, 0, split), element) for split, element in mine], "an error names the element of each row"
    return ReceivedBatch(0, worker, 0, block.spans, len(mine), len(mine), row_range=block.row_range, payload=mine)


def row_parts(rows: Sequence[Row]) -> list[tuple[LeaseKey, int, int]]:
    return [((0, 0, split), element << OUTPUT_BITS, (element + 1) << OUTPUT_BITS) for split, element in rows]


def rows_of(batch: ReceivedBatch) -> list[Row]:
    return [row for piece in batch.slices for row in piece.block.payload[piece.start : piece.stop]]


@given(SOURCE, st.integers(1, 4), st.booleans(), st.randoms(use_true_random=False))
def test_batches_are_those_of_one_worker_in_whatever_blocks_rows_come(
    source: list[list[bool]], size: int, drop: bool, random: Random
) -> None:
    queue = TrainerQueue(joins=Joins(size, drop))
    came = [block for dealt in assignments(source, random) for block in blocks(source, dealt, "one", random)]
    if random.random() < 0.5:  # a second worker was given all of it, in other runs
        came += [block for dealt in assignments(source, random) for block in blocks(source, dealt, "other", random)]
    random.shuffle(came)
    acknowledged: dict[LeaseKey, Spans] = {}
    received = [one for block in came for one in queue.receive(block)]
    for block in received:
        for key, intervals in block.spans.items():
            for start, stop in intervals:
                spans = acknowledged.setdefault(key, Spans())
                assert not Spans(spans).contains_all(start, stop), "nothing is acknowledged twice"
                spans.add(start, stop)
    joined = list(queue.joined())
    rest = queue.joiner.rest
    whole = {(0, 0, index): [(0, 1 << 62)] for index in range(len(source))}
    assert {key: list(spans) for key, spans in acknowledged.items()} == whole
    told: dict[LeaseKey, Spans] = {}
    for delivered in [*(batch.spans for batch in joined), rest.spans if rest is not None else {}]:
        for key, mine in delivered.items():
            for start, stop in mine:
                told.setdefault(key, Spans()).add(start, stop)
    assert {key: list(spans) for key, spans in told.items()} == whole, "a state is told of all that has come"
    queue.end_epoch(1)
    expected = kept(source)
    batches = [expected[at : at + size] for at in range(0, len(expected), size)]
    if drop:
        batches = [batch for batch in batches if len(batch) == size]
    assert [rows_of(batch) for batch in [*joined, *queue.joined()]] == batches
    assert queue.joiner.nbytes == 0 and not queue.early and queue.nbytes == sum(map(len, batches))


def test_rows_on_both_sides_of_a_split_that_told_of_no_element_are_two_blocks() -> None:
    """Another worker has it: what lies at its place comes between them, also where it holds elements after all."""
    cutter = RunBlocks()
    for index, row in ((0, 0), (2, 1)):
        cutter.add(Lease(0, Split(index, elements=1), row=row, place=index))
    made = [(0, 0), (2, 0)]
    first, last = cutter.next(row_parts(made))
    assert [(one.begin, one.end, list(one.block.spans)) for one in (first, last)] == [
        (0, 1, [(0, 0, 0)]),
        (1, 2, [(0, 0, 2)]),
    ]
    assert first.block.row_range.end < last.block.row_range.begin


def test_batches_have_their_turn_as_they_come_once_the_order_is_given_up() -> None:
    queue = TrainerQueue()
    first, second, third = (
        ReceivedBatch(number, "a", 0, {}, 4, 1, row_range=RowRange(row, row + 4))
        for number, row in enumerate((4, 16, 0))
    )
    assert not queue.receive(first)
    assert queue.stop_ordering() == [first]
    assert queue.receive(second) == [second], "rows 4 to 8 are missing, and nobody waits for them"
    assert queue.receive(third) == [third]
