"""The operators on sequences, each as a generator from items to items; a None goes through all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from pecan_ray.engines.collate import collate
from pecan_ray.engines.element_errors import apply_error_policy
from pecan_ray.engines.items import Item, ItemIterator, batch_of, has_rows, leading
from pecan_ray.engines.padding import collate_padded
from pecan_ray.engines.positions import SkippedPositions
from pecan_ray.engines.python.element_outputs import evenly, split_into_parts
from pecan_ray.engines.python.ordered_results import ResultsInOrder, items_bytes, up_to_an_error
from pecan_ray.engines.python.prefetch_results import prefetch_results
from pecan_ray.engines.python.threads import Threads
from pecan_ray.engines.row_types import rows_of_one_kind
from pecan_ray.errors import BatchShapeError, PlanError
from pecan_ray.options import OnError
from pecan_ray.plan.empty_pass import EmptyPassGuard
from pecan_ray.plan.operators import ELEMENTS, Batch, Gather, Join, PaddedBatch, Shuffle, Unbatch
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.sampling.random_keys import generator, mix_key, shuffle_key

RunItem = Callable[[Item], list[Item]]

_END = Item({}, [], Lease(0, Split(0)), 0)
"""Not an item: there are no more."""


def mapped(
    items: ItemIterator, run: RunItem, pool: Threads | None, watch: EmptyPassGuard | None = None
) -> ItemIterator:
    """Run a chain on each item, some of them at a time, in order; an error of reading comes behind what was read.

    `watch` is told what has come out.
    """

    def seen(lease: Lease, found: list[Item]) -> list[Item]:
        if watch is not None:
            watch.look(lease.branch, lease.pass_index, len(found))
        return found

    if pool is None:
        for item in items:
            if item is None:
                yield None
            else:
                yield from given_on(seen(item.lease, run(item)))
        return
    failed: BaseException | None = None
    with closing(ResultsInOrder(pool, run, items_bytes)) as results:
        # The error of reading must not overtake results that are still on the pool.
        for read in up_to_an_error(items):
            if read is None:
                yield None
                continue
            if isinstance(read, BaseException):
                failed = read
                break
            pool.note_size(read.value)
            results.add(read)
            while results.is_due():
                yield from given_on(seen(*results.take()))
        while results:
            yield from given_on(seen(*results.take()))
    if failed is not None:
        raise failed


def given_on(items: list[Item]) -> Iterator[Item]:
    """Yield items and forget each: what operators behind make of it would stay in memory with it."""
    items.reverse()
    while items:
        yield items.pop()


def batched(items: ItemIterator, op: Batch) -> ItemIterator:
    """Stack `size` items at a time; what is left at the end is marked partial.

    Rows that the trainer joins are stacked up to one of another kind, or one that fails.
    """
    for item in items:
        if item is None:
            yield None
            continue
        joined, behind = item.lease.place is not None, itertools.chain((item,), items)
        del item  # it would stay in memory as long as this
        yield from _blocks(behind, op) if joined else _grouped(behind, op.size, lambda rows: collate(rows, op.name))


def _blocks(items: ItemIterator, op: Batch) -> ItemIterator:
    for rows in rows_of_one_kind(items, op.size, lambda item: item.value):
        yield None if rows is None else batch_of(rows, collate(rows, op.name), False)


def element_lists(items: ItemIterator, op: Gather) -> ItemIterator:
    """Take `size` items at a time together as a list; what is left at the end is marked partial."""
    return _grouped(items, op.size, lambda rows: {ELEMENTS: [row.value for row in rows]})


def padded(items: ItemIterator, op: PaddedBatch) -> ItemIterator:
    """Pad and stack `size` items at a time; what is left at the end is marked partial."""
    return _grouped(items, op.size, lambda rows: collate_padded(rows, op))


def _grouped(items: ItemIterator, size: int, put_together: Callable[[list[Item]], dict[str, Any]]) -> ItemIterator:
    rows: list[Item] = []
    for item in items:
        if item is None:
            yield None
            continue
        rows.append(item)
        if len(rows) == size:
            # `rows` is given up before the yield: elements must not stay in memory beside their batch.
            batch = batch_of(rows, put_together(rows), False)
            rows = []
            yield batch
            del batch
    if rows:
        yield batch_of(rows, put_together(rows), True)


def without_remainder(items: ItemIterator, skipped_positions: SkippedPositions) -> ItemIterator:
    """Drop partial batches in the middle of a plan."""
    for item in items:
        if item is not None and item.partial:
            skipped_positions.add(item.parts)
        else:
            yield item


def as_full(items: ItemIterator) -> ItemIterator:
    """Let smaller batches keep their place among the others, which operators behind them count."""
    for item in items:
        if item is not None:
            item.partial = False
        yield item


def unbatch_rows(
    items: ItemIterator, op: Unbatch, made_by: str, on_error: OnError, skipped_positions: SkippedPositions
) -> ItemIterator:
    """Yield the rows of each batch; each row keeps the positions and the name of the element that it was made of.

    The rows of an element that is no batch share its positions, as outputs of `flat_map` do.  Where a function has
    changed the number of rows, the plan runs as a whole, and the last row carries the positions of all.  Batches whose
    columns have unequal numbers of rows are bad, of which the operator is told that made them.
    """
    for item in items:
        if item is None:
            yield None
            continue
        rows = leading(item.value)
        try:
            _check_rows(item, rows, made_by)
            if op.same_rows:
                _check_same_rows(item, rows, op, made_by)
        except BatchShapeError as error:
            apply_error_policy(item, error, on_error, skipped_positions)
            continue
        values = [{name: column[row] for name, column in item.value.items()} for row in range(rows)]
        if item.members is None and item.width:
            yield from given_on(split_into_parts(item, evenly(item, values), skipped_positions))
        elif item.members is not None and len(item.members) == rows:
            # As many rows as elements: each keeps its own name, positions and random numbers.
            yield from (replace(member, value=value) for member, value in zip(item.members, values, strict=True))
        else:
            yield from _rows_without_source(item, values, skipped_positions)


def _rows_without_source(item: Item, values: list[dict[str, Any]], skipped_positions: SkippedPositions) -> ItemIterator:
    """Yield rows of which nothing tells which elements they were made of."""
    for row, value in enumerate(values):
        # The last row carries all: delivered before it, the group would count as done and lose its other
        # rows.
        parts = item.parts if row == len(values) - 1 else []
        yield Item(value, parts, item.lease, item.element, item.output + row)
    if not values:
        skipped_positions.add(item.parts)


def _check_same_rows(item: Item, rows: int, op: Unbatch, made_by: str) -> None:
    if item.members is None or len(item.members) == rows:
        return
    raise BatchShapeError(
        f"{made_by}: it returned {rows} rows for the {len(item.members)} of the batch that begins with {item.where()}, "
        f"but {op.name} wants as many: each row is to be made of its element. Write .batch(n).map(fn).unbatch(), "
        "without same_rows=True, and one worker runs the pipeline; or change elements one by one, by map, filter or "
        "flat_map before batch.",
        op=made_by,
        **item.place,
    )


def _check_rows(item: Item, rows: int, made_by: str) -> None:
    for name, column in item.value.items():
        if not has_rows(column) or len(column) != rows:
            found = f"{len(column)} rows" if has_rows(column) else f"no rows (it is a {type(column).__name__})"
            raise BatchShapeError(
                f"{made_by}: column {name!r} of the batch that begins with {item.where()} has {found}, but others have "
                f"{rows}. What a function on batches returns needs equally many rows in every column where unbatch "
                "follows.",
                op=made_by,
                **item.place,
                column=name,
            )


def shuffled(items: ItemIterator, op: Shuffle, seed: int, number: int) -> ItemIterator:
    """Draw at random from a buffer that is kept full; `number`: of the pass, since each one draws differently."""
    rng: np.random.Generator | None = None
    held: list[Item] = []
    for item in items:
        if item is None:
            yield None
            continue
        # The pass, which is in the key, is known from the first element on.
        if rng is None:
            rng = generator(shuffle_key(op, seed, item.lease.epoch, number))
        held.append(item)
        if len(held) >= op.buffer:
            place = int(rng.integers(len(held)))
            # Exchanged with the last one, so that taking it out moves nothing. `ShuffleBuffer` draws the same
            # rows.
            held[place], held[-1] = held[-1], held[place]
            yield held.pop()
    if rng is not None:
        # `held` lets go of them before they are yielded: each is freed once it is used.
        drawn = [held[int(place)] for place in rng.permutation(len(held))]
        held.clear()
        yield from given_on(drawn)


def taken(items: ItemIterator, count: int) -> ItemIterator:
    """Keep the first items, and ask for no more."""
    left = count
    while left:
        item = next(items, _END)
        if item is _END:
            return
        left -= item is not None
        yield item


def skipped(items: ItemIterator, count: int, skipped_positions: SkippedPositions) -> ItemIterator:
    """Leave out the first items."""
    left = count
    for item in items:
        if item is None or not left:
            yield item
        else:
            skipped_positions.add(item.parts)
            left -= 1


def prefetched(items: ItemIterator, count: int) -> ItemIterator:
    """Have a thread keep so many items ready."""
    return prefetch_results([items], count)


def joined(join: Join, inputs: Sequence[ItemIterator], seed: int, number: int) -> ItemIterator:
    """Make one stream of several; `number`: of the pass."""
    if join.kind == "zip":
        return zip_inputs(inputs, in_step=join.in_step)
    if join.kind == "mix":
        return mixed(inputs, join, seed, number)
    return itertools.chain.from_iterable(inputs)


def zip_inputs(branches: Sequence[ItemIterator], *, in_step: bool = False) -> ItemIterator:
    """Pair items; ends with the shortest branch.

    `in_step`: the job knows the positions of the first branch alone.
    """
    while True:
        items: list[Item] = []
        for branch in branches:
            item = yield from next_item(branch)
            if item is None:
                return
            items.append(item)
        value: dict[str, Any] = {}
        for item in items:
            clash = value.keys() & item.value.keys()
            if clash:
                raise PlanError(
                    f"zip: both sides have the column {sorted(clash)[0]!r}. Rename it on one side by a map before zip."
                )
            value.update(item.value)
        parts = [part for item in (items[:1] if in_step else items) for part in item.parts]
        yield Item(value, parts, items[0].lease, items[0].element, items[0].output, rows=items[0].rows)


def next_item(items: ItemIterator) -> Generator[None, None, Item | None]:
    """Return the next item, or None at the end; yields what comes before it."""
    while True:
        item = next(items, _END)
        if item is not None:
            return None if item is _END else item
        yield None


def mixed(branches: Sequence[ItemIterator], join: Join, seed: int, number: int) -> ItemIterator:
    """Draw from the branches at random, in proportion to their weights; `number`: of the pass, which draws anew."""
    # The seed needs the epoch, which only an element tells: one of each branch is read first.
    firsts: list[Item | None] = []
    for branch in branches:
        firsts.append((yield from next_item(branch)))
    epoch = next((item.lease.epoch for item in firsts if item is not None), 0)
    streams = [
        branch if item is None else itertools.chain(given_on([item]), branch)
        for item, branch in zip(firsts, branches, strict=True)
    ]
    firsts.clear()
    rng = generator(mix_key(seed, epoch, number))
    alive = list(range(len(streams)))
    drawn = 0
    while alive:
        shares = np.asarray(join.weights_at(epoch, drawn))[alive]
        # What is left may have no weight in this part of the schedule.
        if not shares.any():
            return  # nothing is drawn from what is left
        current = shares / shares.sum()
        place = alive[int(rng.choice(len(alive), p=current))]
        item = yield from next_item(streams[place])
        if item is not None:
            yield item
            drawn += 1
        elif join.stop == "first":
            return
        else:
            alive.remove(place)
