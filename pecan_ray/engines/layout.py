"""Where the columns of batches lie in memory: worked out once for all batches of a kind, and sent as a few bytes."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ColumnPlace:
    """Where a column lies in a slot, or in the bytes that a stream has brought."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @functools.cached_property
    def nbytes(self) -> int:
        """Size of the column in bytes."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def view(self, memory: Any) -> np.ndarray[Any, Any]:
        """Return the column, which keeps the memory alive."""
        return np.ndarray(self.shape, self.dtype, memory, self.offset)


@dataclass(frozen=True, eq=False)
class Layout:
    """The columns of a batch in their order: places in its memory, None for one that lies elsewhere."""

    columns: Mapping[str, ColumnPlace | None]
    nbytes: int
    """Size of the memory."""

    def views(self, memory: Any, outside: Mapping[str, Any]) -> dict[str, Any]:
        """Return all columns, those that lie elsewhere from `outside`."""
        return {name: outside[name] if place is None else place.view(memory) for name, place in self.columns.items()}

    def outside(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of a batch that lie elsewhere."""
        return {name: columns[name] for name in self._elsewhere}

    @functools.cached_property
    def _elsewhere(self) -> tuple[str, ...]:
        return tuple(name for name, place in self.columns.items() if place is None)

    @functools.cached_property
    def _packed(self) -> bytes:
        places = [(name, place and (place.offset, place.dtype, place.shape)) for name, place in self.columns.items()]
        # Once for a layout, not once for a batch: dtypes are slow to pickle, and all full batches share one
        # layout.
        return pickle.dumps((places, self.nbytes), pickle.HIGHEST_PROTOCOL)

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return _unpack_layout, (self._packed,)


@functools.lru_cache(maxsize=256)
def _unpack_layout(packed: bytes) -> Layout:
    places, nbytes = pickle.loads(packed)
    return Layout({name: place and ColumnPlace(*place) for name, place in places}, nbytes)
