"""The order in which an epoch visits the splits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def split_order(splits: Sequence[T], seed: int, epoch: int, repetition: int, branch: int) -> list[T]:
    """Return the splits shuffled; equal arguments give equal orders, another epoch another one."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch, repetition, branch])))
    return [splits[int(place)] for place in generator.permutation(len(splits))]
