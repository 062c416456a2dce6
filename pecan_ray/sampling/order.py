"""The order in which an epoch visits the splits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pecan_ray.sampling.random_keys import Key, SplitOrder, splits_key

# Words of 8 bytes: 256 KiB, which the second cache of a processor holds.
_BLOCK = 1 << 15
# SplitMix64's step, and the factors of its finalizer, a bijection of 64 bits (Steele, Lea and Flood, 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_FIRST, _SECOND = map(np.uint64, _FACTORS)
_INVERSE_FIRST, _INVERSE_SECOND = (np.uint64(pow(factor, -1, 1 << 64)) for factor in _FACTORS)


def shuffled(
    indices: npt.NDArray[np.int64], order: SplitOrder, epoch: int, pass_index: int, branch: int
) -> npt.NDArray[np.int64]:
    """Return splits' indices in the random order of a pass.

    A split's place among others depends on their indices and the arguments alone, not on NumPy's version nor on what
    else is listed: those that are not listed yet find their places later.  They are sorted by SplitMix64's finalizer
    (Steele, Lea and Flood, OOPSLA 2014), twice with a key.  That is a bijection: what is sorted are its words alone,
    and the indices come out of them again, in a third of the time of a sort of places.
    """
    key = splits_key(order, epoch, pass_index, branch)
    first, second = map(np.uint64, key)
    words = indices.astype(np.uint64)
    for block in _blocks(words):
        hash_in_place(block, key)
    words.sort()
    for block in _blocks(words):
        _invert_mix(block)
        block ^= second
        _invert_mix(block)
        block -= first
    return words.view(np.int64)


def hash_in_place(words: npt.NDArray[np.uint64], key: Key) -> npt.NDArray[np.uint64]:
    """Return words in the place of others, in which they are mixed: different ones of different ones."""
    first, second = map(np.uint64, key)
    words += first
    _mix(words)
    words ^= second
    _mix(words)
    return words


def _blocks(words: npt.NDArray[np.uint64]) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield views that, with what is computed of them, stay in a processor's cache."""
    for start in range(0, len(words), _BLOCK):
        yield words[start : start + _BLOCK]


def _mix(words: npt.NDArray[np.uint64]) -> None:
    """Mix words in place."""
    words += _STEP
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)


def _invert_mix(words: npt.NDArray[np.uint64]) -> None:
    """Undo `_mix`."""
    words ^= (words >> np.uint64(31)) ^ (words >> np.uint64(62))
    words *= _INVERSE_SECOND
    words ^= (words >> np.uint64(27)) ^ (words >> np.uint64(54))
    words *= _INVERSE_FIRST
    words ^= (words >> np.uint64(30)) ^ (words >> np.uint64(60))
    words -= _STEP
