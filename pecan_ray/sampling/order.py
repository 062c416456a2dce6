"""The order in which an epoch visits the splits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pecan_ray.plan.splits import Split


def split_order(splits: Sequence[Split], seed: int, epoch: int, repetition: int, branch: int) -> list[Split]:
    """Return the splits shuffled; equal arguments give equal orders, another epoch another one."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch, repetition, branch])))
    return [splits[int(place)] for place in generator.permutation(len(splits))]
