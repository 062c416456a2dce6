"""The operators on sequences, each as a generator from items to items."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from pecan_ray.engines.python.items import Item, Loose
from pecan_ray.engines.python.stack import length_of, pad_stack, stack
from pecan_ray.errors import PlanError
from pecan_ray.plan.operators import Batch, BucketByLength, PaddedBatch
from pecan_ray.sampling.randomness import generator, random_key

Items = Iterator[Item]
Chainlike = Callable[[Item], list[Item]]


def mapped(items: Items, run: Chainlike, pool: Executor | None, window: int) -> Items:
    """Run a chain on each item, `window` of them at a time, in order."""
    if pool is None:
        for item in items:
            yield from run(item)
        return
    pending: deque[Future[list[Item]]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(run, item))
            if len(pending) >= window:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


def _joined(items: Sequence[Item], columns: dict[str, Any], partial: bool) -> Item:
    parts = [part for item in items for part in item.parts]
    first = items[0]
    return Item(columns, parts, first.lease, first.element, len(items), [item.parts for item in items], partial)


def batched(items: Items, op: Batch) -> Items:
    """Stack `size` items at a time; what is left at the end is marked partial."""
    rows: list[Item] = []
    for item in items:
        rows.append(item)
        if len(rows) == op.size:
            yield _joined(rows, stack(rows, op.name), False)
            rows = []
    if rows:
        yield _joined(rows, stack(rows, op.name), True)


def padded(items: Items, op: PaddedBatch) -> Items:
    """Pad and stack `size` items at a time."""
    rows: list[Item] = []
    for item in items:
        rows.append(item)
        if len(rows) == op.size:
            yield _joined(rows, pad_stack(rows, op.name, op.padding, op.shapes), False)
            rows = []
    if rows:
        yield _joined(rows, pad_stack(rows, op.name, op.padding, op.shapes), True)


def bucketed(items: Items, op: BucketByLength) -> Items:
    """Collect items by length; each bucket yields a padded batch whenever it is full."""
    buckets: list[list[Item]] = [[] for _ in op.sizes]
    for item in items:
        length = length_of(item, op.length, op.name)
        place = next((i for i, bound in enumerate(op.boundaries) if length < bound), len(op.boundaries))
        buckets[place].append(item)
        if len(buckets[place]) == op.sizes[place]:
            rows, buckets[place] = buckets[place], []
            yield _joined(rows, pad_stack(rows, op.name, op.padding, None), False)
    for rows in buckets:
        if rows:
            yield _joined(rows, pad_stack(rows, op.name, op.padding, None), True)


def without_remainder(items: Items, loose: Loose) -> Items:
    """Drop partial batches in the middle of a plan."""
    for item in items:
        if item.partial:
            loose.add(item.parts)
        else:
            yield item


def unbatched(items: Items) -> Items:
    """Yield the rows of each batch; each row keeps the positions that it was made of."""
    for item in items:
        rows = len(next(iter(item.value.values()))) if item.value else 0
        exact = item.row_parts is not None and len(item.row_parts) == rows
        for row in range(rows):
            value = {name: column[row] for name, column in item.value.items()}
            if exact and item.row_parts is not None:
                parts = item.row_parts[row]
            else:
                parts = item.parts if row == rows - 1 else []
            yield Item(value, parts, item.lease, item.element)


def shuffled(items: Items, buffer: int, seed: int, epoch: int, name: str) -> Items:
    """Draw at random from a buffer that is kept full."""
    rng = generator(random_key(seed, epoch, 0, 0, 0, 0, 0, name))
    held: list[Item] = []
    for item in items:
        held.append(item)
        if len(held) >= buffer:
            place = int(rng.integers(len(held)))
            held[place], held[-1] = held[-1], held[place]
            yield held.pop()
    for place in rng.permutation(len(held)):
        yield held[int(place)]


def skipped(items: Items, count: int, loose: Loose) -> Items:
    """Leave out the first items."""
    for item in itertools.islice(items, count):
        loose.add(item.parts)
    yield from items


def repeated(make: Callable[[], Items], count: int | None) -> Items:
    """Pass over the items several times; positions count as delivered with the last pass."""
    for number in itertools.count() if count is None else range(count):
        last = count is not None and number == count - 1
        empty = True
        for item in make():
            empty = False
            if not last:
                item.parts = []
                item.row_parts = None
            yield item
        if empty:
            return


def zipped(branches: Sequence[Items]) -> Items:
    """Pair items; ends with the shortest branch."""
    for items in zip(*branches, strict=False):
        value: dict[str, Any] = {}
        for item in items:
            clash = value.keys() & item.value.keys()
            if clash:
                raise PlanError(
                    f"zip: both sides have the column {sorted(clash)[0]!r}. Rename it on one side by a map before zip."
                )
            value.update(item.value)
        parts = [part for item in items for part in item.parts]
        yield Item(value, parts, items[0].lease, items[0].element, items[0].rows)


def mixed(branches: Sequence[Items], weights: Sequence[float], seed: int, epoch: int, stop_first: bool) -> Items:
    """Draw from the branches at random, in proportion to their weights."""
    rng = generator(random_key(seed, epoch, 0, 0, 0, 0, 0, "mix"))
    alive = list(range(len(branches)))
    shares = np.asarray(weights, float)
    while alive:
        current = shares[alive] / shares[alive].sum()
        place = alive[int(rng.choice(len(alive), p=current))]
        item = next(branches[place], None)
        if item is not None:
            yield item
        elif stop_first:
            return
        else:
            alive.remove(place)
