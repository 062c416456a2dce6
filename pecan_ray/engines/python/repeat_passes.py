"""Passes over a branch of a plan: run anew one after the other, and drained before the next one begins."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

from pecan_ray.engines.items import Item, ItemIterator
from pecan_ray.engines.python.operators import next_item
from pecan_ray.plan.empty_pass import MOST_EMPTY_PASSES, EmptyPasses
from pecan_ray.plan.operators import Repeat

MakeItems: TypeAlias = Callable[[], ItemIterator]
"""Begins a branch anew."""


def repeated(op: Repeat, begin: MakeItems, empty: EmptyPasses, *, reads_nothing: Callable[[], bool]) -> ItemIterator:
    """Run a branch again and again; raises `PlanError` where it would go on without end and yield nothing.

    `reads_nothing`: tells whether the branch has no data at all: then it ends.
    """
    allowed, in_vain = empty.at_first, 0
    for _ in itertools.count() if op.count is None else range(op.count):
        in_vain += 1
        for item in begin():
            if item is not None:
                allowed, in_vain = MOST_EMPTY_PASSES, 0
            yield item
            del item  # what operators behind make of it would stay in memory with it
        # A source without data is empty however often it is read, and no fault of the filter behind it.
        if reads_nothing():
            return
        if op.count is None and in_vain >= allowed:
            raise empty.error(in_vain)


def each_pass(
    items: ItemIterator, number: Callable[[Item], int], run: Callable[[ItemIterator, int], ItemIterator]
) -> ItemIterator:
    """Run an operator anew on the items of each pass; it is given their number too.

    What comes late of an earlier pass, since a worker was lost that had it, goes with the pass that it comes in.
    """
    item = yield from next_item(items)
    first = [] if item is None else [item]
    del item
    while first:
        current = number(first[0])
        # `first` holds the element that has ended a pass: the next run of the operator begins with it.
        yield from run(_one_pass(items, first, current, number), current)


def _one_pass(items: ItemIterator, first: list[Item], current: int, number: Callable[[Item], int]) -> ItemIterator:
    """Yield the items of a pass, its `first` one first; then this holds the first one of the next pass."""
    yield first.pop()
    for item in items:
        # Not `!=`: late elements of a pass before, which a lost worker had, are read in this one.
        if item is not None and number(item) > current:
            first.append(item)
            return
        yield item
        del item
