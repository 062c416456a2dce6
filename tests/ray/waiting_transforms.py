"""Pipelines whose transforms wait instead of compute: a few CPUs stand for many."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import pecan_ray as pecan
from pecan_ray.batches import Batches
from pecan_ray.job.policy_runner import PlacementStep

BATCH = 4
SMALL: dict[str, Any] = {"prefetch_bytes": 1 << 20}
"""Few batches in flight, as large ones would be, so that what the workers supply soon shows at the trainer."""


@dataclass(frozen=True)
class WaitLog:
    """A function that takes `seconds` for an element and returns 64 KiB."""

    seconds: float

    def __call__(self, i: Any) -> Any:
        time.sleep(self.seconds)
        return np.full(16_384, i, np.float32)


def half(values: Any) -> Any:
    """Return every other value."""
    return values[::2]


def waiting(per_element: float, rows: int = 100_000, **config: Any) -> pecan.PecanPipeline:
    """Return a pipeline of which every worker does one element at a time."""
    settings: dict[str, Any] = {"reorder": "off", "ring_bytes": 1 << 20, "threads_per_worker": 1, **config}
    source = pecan.sources.Arrays(i=np.arange(rows))
    return (
        pecan.PecanPipeline(source, name="waiting", config=pecan.Config(**settings))
        .map(WaitLog(per_element), on="i")
        .batch(BATCH)
    )


def elements(batch: Any) -> list[int]:
    """Return the numbers of a batch's elements."""
    return [int(row[0]) for row in batch["i"]]


def train(
    batches: Batches,
    step: float,
    until: Callable[[tuple[PlacementStep, ...]], bool] = lambda timeline: False,
    *,
    look_every: int = 20,
) -> Counter[int]:
    """Consume batches, with so many seconds for each, until a timeline is seen or the data ends; count elements."""
    seen: Counter[int] = Counter()
    for number, batch in enumerate(batches):
        seen.update(elements(batch))
        time.sleep(step)
        if number % look_every == look_every - 1 and until(batches.report().timeline):
            break
    return seen


def refuses_seven(i: Any) -> Any:
    """Fail for one element."""
    if i == 7:
        raise ValueError("<b>seven</b>")
    return i
