"""The order in which an epoch visits the splits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pecan_ray.sampling.randomness import random_key

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def split_ranks(
    indices: npt.NDArray[np.int64], seed: int, epoch: int, repetition: int, branch: int
) -> npt.NDArray[np.uint64]:
    """Return for each split a number by which the splits of a pass are sorted; no two splits have the same one.

    It depends on the split's index and the arguments alone, not on NumPy's version nor on the other splits: those that
    are not listed yet find their places later.  SplitMix64's finalizer (Steele, Lea and Flood, OOPSLA 2014), which is a
    bijection, twice with a key.
    """
    first, second = (np.uint64(word) for word in random_key(seed, epoch, repetition, branch, 0, 0, 0, "order"))
    words = indices.astype(np.uint64)
    words += first
    _mixed(words)
    words ^= second
    return _mixed(words)


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix words in place: of a million, memory for another million is all that it takes."""
    words += _STEP
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words
