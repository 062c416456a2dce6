"""Lists of elements as two arrays, so that the processes of a node can have them in common."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from pecan_ray.by_value import SHARED_BYTES, SharedArray, dumps

MAX_CHUNK_ITEMS = 64
"""Items that are pickled together: pickling has a cost for each call."""
CHUNK_BYTES = 1 << 16
"""Chunks of large items are about so large: who reads one item unpickles its chunk."""


class PackedItems(Sequence[Any]):
    """Items that are pickled in chunks; reading some unpickles their chunks anew."""

    def __init__(self, pickled: SharedArray, ends: SharedArray, count: int, at_once: int) -> None:
        """`pickled`: chunks of `at_once` items, one behind the other; `ends`: where each ends; `count`: of items."""
        self.pickled, self.ends, self._count, self._at_once = pickled, ends, count, at_once

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            start, stop, step = place.indices(self._count)
            return list(self.between(start, stop))[::step] if step > 0 else [self[n] for n in range(start, stop, step)]
        number = range(self._count)[place]
        return next(self.between(number, number + 1))

    def __iter__(self) -> Iterator[Any]:
        return self.between(0, self._count)

    def between(self, start: int, stop: int) -> Iterator[Any]:
        """Yield the items from one place to before another one."""
        at = start
        while at < min(stop, self._count):
            chunk = at // self._at_once
            begin = int(self.ends.array[chunk - 1]) if chunk else 0
            # Not kept: all chunks unpickled would be the whole list again, in each process
            # (docs/decisions/sources.md#132-arrays-once-on-each-node).
            items = pickle.loads(self.pickled.array[begin : int(self.ends.array[chunk])].data)
            first = chunk * self._at_once
            yield from items[at - first : stop - first]
            at = first + self._at_once


def packed(items: Sequence[Any], name: str) -> PackedItems | None:
    """Return a list of items as arrays with a name; None for few bytes, which are sent as they are."""
    some = items[:MAX_CHUNK_ITEMS]
    # By the first items: the others are taken to be about as large.
    at_once = max(1, min(MAX_CHUNK_ITEMS, CHUNK_BYTES * len(some) // len(dumps(some))))
    chunks = [dumps(items[first : first + at_once]) for first in range(0, len(items), at_once)]
    sizes = [len(chunk) for chunk in chunks]
    if sum(sizes) < SHARED_BYTES:
        return None
    pickled = SharedArray(f"{name}:items", np.frombuffer(b"".join(chunks), np.uint8))
    return PackedItems(pickled, SharedArray(f"{name}:ends", np.cumsum(sizes)), len(items), at_once)


def items_between(items: Sequence[Any], start: int, stop: int | None) -> Iterator[Any]:
    """Yield the items from one place to before another one (None: to the end); of packed ones few at a time."""
    if isinstance(items, PackedItems):
        return items.between(start, len(items) if stop is None else stop)
    return iter(items[start:stop])
