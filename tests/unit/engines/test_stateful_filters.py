"""A filter with a state of its own is not asked again about elements that were behind it: none of them is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.job.holdings import WorkerHoldings
from pecan_ray.job.leftovers import Leftovers
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, Split
from tests.unit.engines.engine_leases import ListedLeases, running, whole_leases


class Dedup:
    """Keeps what it has not seen before."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def __call__(self, element: dict[str, Any]) -> bool:
        fresh = int(element["i"]) // 2 not in self.seen
        self.seen.add(int(element["i"]) // 2)
        return fresh


def numbers() -> pecan.PecanPipeline:
    """Numbers of which every second one is like the one before."""
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(20), split_rows=20), name="dedup")


def twice(element: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"i": element["i"]}, {"i": element["i"] + 100}]


@pytest.mark.parametrize("pipe", [numbers(), numbers().shuffle(5), numbers().flat_map(twice)])
def test_what_a_worker_gives_back_passes_the_filter_that_it_was_behind(pipe: pecan.PecanPipeline) -> None:
    pipe = pipe.filter(Dedup()).batch(7)
    delivered: list[int] = []
    rest = Leftovers(1, 7, only_full=False)
    (lease,) = whole_leases(list(pipe.plan.sources()))
    with running(pipe, ListedLeases([lease])) as (engine, batches):
        for produced in batches:
            if not produced.partial:
                delivered += [int(i) for i in produced.columns.get("i", ())]
            else:
                rest.add(lease, produced.spans[lease.key])
        assert len(delivered) in (7, 14), "and something is left"
        rest.distribute()
        (group,) = rest.groups
        assert all(one.passed for one in group.leases)
        for produced in engine.batches(ListedLeases(group.leases)):
            delivered += [int(i) for i in produced.columns.get("i", ())]
    wanted = {i % 100 // 2 + i // 100 * 50 for i in delivered}
    assert len(delivered) == len(wanted) == (20 if any(i >= 100 for i in delivered) else 10)


def test_what_a_lost_worker_held_goes_through_filters_again() -> None:
    state = WorkerHoldings()
    lease = Lease(0, Split(0), ((0, 4 << OUTPUT_BITS),))
    state.give(lease)
    state.give(replace(lease, spans=((6 << OUTPUT_BITS, 8 << OUTPUT_BITS),), passed=True))
    (held,) = state.holdings.values()
    assert not held.rest().passed, "nobody knows which of its elements are behind them"
