"""Results of a pool in the order of their items: what is unfinished is bounded by number, and what waits by bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Generic, TypeVar

from pecan_ray.engines.counting import column_bytes
from pecan_ray.engines.items import Item
from pecan_ray.engines.python.threads import Threads
from pecan_ray.engines.row_block import RowBlock
from pecan_ray.plan.splits import Lease

EARLY_BYTES = 256 << 20
"""Elements that are finished and wait for an earlier one take up to about so many bytes: half of what a worker's ring
has by default, which would hold them in batches if any order would do."""
ITEM_BYTES = 1 << 10
"""An element takes about so much beside its values: an item, a dict, positions and array objects."""


S = TypeVar("S")
T = TypeVar("T", Item, RowBlock)
R = TypeVar("R")


def items_bytes(items: list[Item]) -> int:
    """Return about how many bytes items take: they are like the first one."""
    if not items:
        return 0
    try:
        nbytes = column_bytes(items[0].value)
    except RecursionError:  # a value that holds itself: where it would be sent or batched, it is an error by name
        nbytes = 0
    return len(items) * (nbytes + ITEM_BYTES)


def up_to_an_error(items: Iterator[S]) -> Iterator[S | BaseException]:
    """Yield items, and the error that reading them ends with: its place is behind what is made of those before it."""
    try:
        yield from items
    # Whoever takes items has ended this generator: a `yield` in answer to that would be an error.
    except GeneratorExit:
        raise
    except BaseException as error:
        yield error


class ResultsInOrder(Generic[T, R]):
    """Runs a function on items on a pool, and returns what it makes of each in the order in which they were added.

    Only unfinished work counts against what the pool wants ahead.  If finished results counted too, one slow item would
    soon leave the other threads without work.
    """

    def __init__(self, pool: Threads, run: Callable[[T], R], size: Callable[[R], int]) -> None:
        """`size`: returns about how many bytes a result takes."""
        self._pool = pool
        self._run: Callable[[T], R] = run
        self._size = size
        self._pending: deque[tuple[Lease, Future[tuple[R, int]]]] = deque()
        self._changed = threading.Condition()
        """Guards the counts below."""
        self._unfinished = 0
        self._early_bytes = 0
        """Of finished results that were not taken."""

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(self, item: T) -> None:
        """Let a thread run the function on an item."""
        with self._changed:
            self._unfinished += 1
        future = self._pool.submit(self._work, item)
        self._pending.append((item.lease, future))
        # By the callback: `is_due` waits for `done()`, which is not yet true at the end of `_work`.
        future.add_done_callback(self._note)

    def _work(self, item: T) -> tuple[R, int]:
        found = self._run(item)
        # In the thread that has computed it, so that the thread that reads need not look at values.
        nbytes = self._size(found)
        with self._changed:
            self._early_bytes += nbytes
        return found, nbytes

    def _note(self, _: Future[tuple[R, int]]) -> None:
        with self._changed:
            self._unfinished -= 1
            self._changed.notify()

    def is_due(self) -> bool:
        """Tell whether to take a result before more is added; waits while neither may be done."""
        if len(self._pending) < self._pool.target_in_flight:
            return False
        oldest = self._pending[0][1]
        with self._changed:
            self._changed.wait_for(lambda: oldest.done() or self._has_room())
        return oldest.done()

    def _has_room(self) -> bool:
        return self._unfinished < self._pool.target_in_flight and self._early_bytes <= EARLY_BYTES

    def take(self) -> tuple[Lease, R]:
        """Wait for the oldest result and return it, with the lease of its item; raise what the function raised."""
        lease, future = self._pending.popleft()
        found, nbytes = future.result()
        with self._changed:
            self._early_bytes -= nbytes
        return lease, found

    def close(self) -> None:
        """Let nothing begin that has not begun."""
        for _, future in self._pending:
            future.cancel()
