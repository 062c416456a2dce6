"""A stretch that is left before its end gives back the memory of what was made ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.engines.contract import Produced
from pecan_ray.transport.owned_slots import OwnedSlots
from pecan_ray.transport.ring import PAGE, RingSlots
from tests.unit.engines.engine_leases import ListedLeases, running, whole_leases

ROWS = 400
SLOTS = 6

Pipe = pecan.PecanPipeline
WAYS: dict[str, Callable[[Pipe], Pipe]] = {
    "threads fill batches": lambda pipe: pipe.map(np.negative, on="i").batch(4),
    "columns are cut": lambda pipe: pipe.batch(4),
    "one by one": lambda pipe: pipe.batch(2).map(np.negative, on="i").unbatch().batch(4),
}


def rows_of(batches: Iterator[Produced], most: int) -> list[int]:
    """Take batches, release their memory, and return how many rows they had."""
    rows = []
    for one in islice(batches, most):
        rows.append(one.rows)
        if one.slot is not None:
            one.slot.release()
    return rows


@pytest.mark.parametrize("batched", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("order", ["relaxed", "strict"])
def test_the_next_stretch_has_all_memory(batched: Callable[[Pipe], Pipe], order: str) -> None:
    pipe = batched(Pipe(pecan.sources.Arrays(i=np.arange(ROWS)), name="left"))
    with (
        closing(RingSlots(SLOTS * PAGE)) as ring,
        running(pipe, slots=OwnedSlots(ring), order=order, threads=2) as (
            engine,
            left,
        ),
    ):
        assert rows_of(left, 1) == [4]
        left.close()
        for _ in range(3):
            again = engine.batches(ListedLeases(whole_leases(tuple(pipe.plan.sources()))))
            assert rows_of(again, 2) == [4, 4]
            again.close()
        whole = engine.batches(ListedLeases(whole_leases(tuple(pipe.plan.sources()))))
        assert sum(rows_of(whole, ROWS)) == ROWS
