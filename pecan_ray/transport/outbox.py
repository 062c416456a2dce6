"""Where a worker's finished batches wait until they are sent."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from pecan_ray.engines.contract import Produced

COALESCE = 32
"""Most batches in one message to a client: small batches are sent together, large ones are rarely waiting."""
MOST_WAITING = 512
"""Batches without arrays take no slot: their number is bounded instead."""


class Outbox:
    """Finished batches until a client fetches them; some are addressed to one rank."""

    def __init__(self) -> None:
        self._items: deque[tuple[int | None, Produced]] = deque()
        self._changed = threading.Condition()
        self._hungry = 0
        """Takers that wait for any batch; others wait for many, or for their time."""
        self._closed = False

    def put(self, produced: Produced, rank: int | None) -> None:
        """Add a batch, for one rank or for whoever comes first; waits while very many are there."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) < MOST_WAITING or self._closed)
            self._items.append((rank, produced))
            if self._hungry or len(self._items) >= COALESCE:
                self._changed.notify_all()

    def take(
        self,
        rank: int,
        most: int,
        most_bytes: float = math.inf,
        wanted: Callable[[], bool] = lambda: True,
        not_before: float = 0.0,
    ) -> list[Produced]:
        """Wait for batches that a rank may have; an empty list means that there will be none, or none is wanted.

        `most_bytes` bounds their sum, unless the first one alone is larger.  `not_before`: the monotonic time until
        which fewer than `most` are left to become more.
        """
        with self._changed:
            while wanted():
                mine = [item for item in self._items if item[0] in (None, rank)][:most]
                early = not_before - time.monotonic()
                if early > 0 and len(mine) < most and not self._closed:
                    self._changed.wait(early)
                    continue
                if mine:
                    if most_bytes < math.inf:
                        sums = itertools.accumulate(_weight(produced) for _, produced in mine)
                        mine = mine[: max(1, sum(total <= most_bytes for total in sums))]
                    taken = {id(item) for item in mine}
                    self._items = deque(item for item in self._items if id(item) not in taken)
                    self._changed.notify_all()
                    return [produced for _, produced in mine]
                if self._closed:
                    return []
                self._hungry += 1
                self._changed.wait()
                self._hungry -= 1
            return []

    def put_back(self, rank: int, batches: list[Produced]) -> None:
        """Let batches be the next that a rank is given: another way to it has failed."""
        with self._changed:
            self._items.extendleft((rank, produced) for produced in reversed(batches))
            self._changed.notify_all()

    def wake(self) -> None:
        """Let those who wait see whether they still want batches."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """No more batches come: takers get what is left, then nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._items)


def nbytes(produced: Produced) -> int:
    """Return the bytes of a batch's arrays."""
    return sum(getattr(column, "nbytes", 0) for column in produced.columns.values())


def _weight(produced: Produced) -> int:
    """Estimate the bytes of a batch, those of its strings included."""
    weight = 0
    for column in produced.columns.values():
        weight += getattr(column, "nbytes", 0)
        if isinstance(column, np.ndarray) and column.dtype.hasobject:
            weight += sum(len(value) for value in column.flat if isinstance(value, (bytes, str)))
    return weight
