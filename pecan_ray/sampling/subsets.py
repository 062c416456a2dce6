"""Which part of a split an element belongs to: by its place in its source alone.

Each element has a place in [0, 1), and a part is an interval of places.  Of ten consecutive elements of a split of the
source the places are a tenth apart, in random order, so that parts have as many elements as their shares say, but for
rounding.  A Weyl sequence moves the ten places from block to block, for shares that are no tenths.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pecan_ray.plan.operators import Subset
from pecan_ray.plan.splits import Source
from pecan_ray.sampling.order import hash_in_place
from pecan_ray.sampling.random_keys import subset_key

BLOCK = 10
"""Consecutive elements whose places are equally far apart: few, so that short splits keep to the shares, too."""
_STEP = 2654435769
"""2**32 divided by the golden ratio: multiples of it, modulo 2**32, are spread evenly (Knuth, volume 3, 6.4)."""
# The whole circle, in units of _STEP.
_ONE = 1 << 32
_PAGE = 1000
"""Elements whose places are found at a time: NumPy's calls for one block take as long as those for a hundred."""
_PAGES_KEPT = 256
"""For as many threads that read a split each; 8 KB each."""

ElementPlaces = npt.NDArray[np.float64]


def is_member(op: Subset, split: int, element: int) -> bool:
    """Tell whether an element of a source belongs to a part."""
    page, number = divmod(element, _PAGE)
    return bool(op.low <= _page(op.seed, op.level, split, page)[number] < op.high)


def members(parts: Sequence[Subset], source: Source) -> int | None:
    """Return how many elements of a source belong to all of some parts; None if the splits' lengths are not known."""
    count = 0
    for split in source.splits():
        if split.counted is None:
            return None
        kept = np.ones(split.counted, bool)
        for op in parts:
            places = _positions(op.seed, op.level, split.index, 0, split.counted)
            kept &= (op.low <= places) & (places < op.high)
        count += int(kept.sum())
    return count


@functools.lru_cache(_PAGES_KEPT)
def _page(seed: int, level: int, split: int, page: int) -> ElementPlaces:
    return _positions(seed, level, split, page * _PAGE, (page + 1) * _PAGE)


def _positions(seed: int, level: int, split: int, start: int, stop: int) -> ElementPlaces:
    """Return the places of consecutive elements, the first of which begins a block."""
    key = subset_key(seed, level, split)
    blocks = np.arange(start // BLOCK, -(-stop // BLOCK), dtype=np.int64)
    words = hash_in_place(np.arange(blocks.size * BLOCK, dtype=np.uint64) + np.uint64(start), key).reshape(-1, BLOCK)
    # Twice: the ranks of a block's words are a permutation of its ten places, drawn at random.
    ranks = words.argsort(axis=1).argsort(axis=1)
    shifts = (key[0] % _ONE + blocks * _STEP) % _ONE / _ONE
    places: ElementPlaces = ((ranks + shifts[:, np.newaxis]) / BLOCK).reshape(-1)
    return places[: stop - start]
