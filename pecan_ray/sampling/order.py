"""The order in which an epoch visits the splits."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

T = TypeVar("T")


def split_permutation(
    splits: int, seed: int, epoch: int, repetition: int, branch: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the numbers of all splits, shuffled; equal arguments give equal orders, another epoch another one."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch, repetition, branch])))
    return generator.permutation(splits)
