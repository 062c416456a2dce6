"""How rows are joined to batches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Joins:
    """What a trainer needs to know to make batches of blocks of rows (`pecan_ray.job.joiner`)."""

    batch_size: int
    drop_remainder: bool = False
