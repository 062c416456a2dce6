"""Leases of an engine: all positions are mentioned, and what was left, filtered or given back is not lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.inprocess import AllLeases
from pecan_ray.engines.lease_tracker import LeaseTracker
from pecan_ray.engines.registry import build_engine
from pecan_ray.errors import PecanError
from pecan_ray.job.leftovers import Leftovers
from pecan_ray.job.pending_leases import WorkerLeaseState
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Split
from pecan_ray.sampling.spans import Span
from pecan_ray.sources import Arrays
from pecan_ray.transport.outbox import Outbox
from pecan_ray.transport.owned_slots import OwnedSlots
from pecan_ray.transport.ring import RingSlots
from tests.ray.waiting import until
from tests.unit.engines.engine_leases import ListedLeases, running, whole_leases
from tests.unit.transport.outbox_batches import Memory, batch, number_of

KEY = (0, 0, 0)


def elements(first: int, stop: int) -> Span:
    return first << OUTPUT_BITS, stop << OUTPUT_BITS


def given(*spans: Span, length: int | None = None, mentioned: Sequence[Span] = ()) -> LeaseTracker:
    accounted = LeaseTracker(ListedLeases([Lease(0, Split(0, elements=length), spans=spans)]))
    assert accounted.take() is not None and accounted.take() is None
    accounted.mark_processed({KEY: list(mentioned)})
    return accounted


def test_what_lies_behind_the_last_element_of_a_split_of_unknown_length_ends_with_the_assignment() -> None:
    assert given((0, END), mentioned=[elements(0, 3)]).unresolved_spans() == {KEY: [(3 << OUTPUT_BITS, END)]}
    pieces = elements(2, 4), elements(8, 12)
    assert given(*pieces, mentioned=[elements(2, 3)]).unresolved_spans() == {KEY: [elements(3, 4), elements(8, 12)]}
    assert given(elements(64, 128)).unresolved_spans() == {KEY: [elements(64, 128)]}
    assert given(elements(0, 3), length=3, mentioned=[elements(1, 3), elements(0, 1)]).unresolved_spans() == {}
    whole = given((0, END), mentioned=[elements(0, 3)])
    whole.ended(Lease(0, Split(0)), 3)
    assert whole.unresolved_spans() == {}, "all was mentioned"


@pytest.mark.parametrize(
    ("length", "mentioned", "lost"), [(None, [elements(0, 1), elements(2, 3)], 1), (3, [elements(0, 2)], 2)]
)
def test_an_element_that_the_engine_loses_is_an_error(length: int | None, mentioned: list[Span], lost: int) -> None:
    with pytest.raises(PecanError, match=f"neither delivered nor left out element {lost} of split 0"):
        given((0, END), length=length, mentioned=mentioned).unresolved_spans()


class Dedup:
    def __init__(self) -> None:
        self.seen: set[int] = set()

    def __call__(self, element: dict[str, Any]) -> bool:
        fresh = int(element["i"]) // 2 not in self.seen
        self.seen.add(int(element["i"]) // 2)
        return fresh


def numbers() -> pecan.PecanPipeline:
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
    state = WorkerLeaseState()
    lease = Lease(0, Split(0), ((0, 4 << OUTPUT_BITS),))
    state.give(lease)
    state.give(replace(lease, spans=((6 << OUTPUT_BITS, 8 << OUTPUT_BITS),), passed=True))
    (held,) = state.pending_leases.values()
    assert not held.rest().passed, "nobody knows which of its elements are behind them"


def test_an_outbox_drops_left_epochs_and_lets_those_go_on_who_wait_for_room() -> None:
    outbox = Outbox(most_bytes=8)
    batches = [batch(0), batch(1), batch(2, epoch=1)]
    outbox.put(batches[0], 0)
    waiting = threading.Thread(target=outbox.put, args=(batches[1], 0))
    waiting.start()
    outbox.leave_epochs(1)
    waiting.join(10)
    assert not waiting.is_alive()
    outbox.put(batches[2], 0)
    outbox.close()
    assert [number_of(one) for one in outbox.take(0)] == [2] and outbox.take(0) == []
    assert [one.slot.released for one in batches if isinstance(one.slot, Memory)] == [1, 1, 0]


def test_a_slot_that_nobody_refers_to_is_given_back_but_not_one_that_was_handed_on() -> None:
    ring = RingSlots(100)
    slots = OwnedSlots(ring)
    held = [slots.acquire(60), slots.acquire(60)]
    detach_slot = held[0].detach_slot()
    held.clear()
    until(lambda: ring._slots_in_flight == 1, "a slot that was forgotten stays in flight")
    assert detach_slot is not None
    detach_slot.release()
    assert ring._slots_in_flight == 0
    ring.close()


class LateLeases:
    def __init__(self) -> None:
        self.asked, self.come = threading.Event(), threading.Event()

    def take(self, branch: int = 0) -> Lease | None:
        self.asked.set()
        assert self.come.wait(10)
        return Lease(0, Split(0))

    def ended(self, lease: Lease, elements: int) -> None:
        raise AssertionError


def test_a_thread_of_a_stretch_that_was_left_gets_no_lease_of_the_next_one() -> None:
    late, got = LateLeases(), list[Lease | None]()
    leases = LeaseTracker(late)
    asking = threading.Thread(target=lambda: got.append(leases.take()))
    asking.start()
    assert late.asked.wait(10)
    closing = threading.Thread(target=leases.close)
    closing.start()
    until(lambda: leases._closed, "it is not closed")
    assert closing.is_alive(), "the lease that is asked for is waited for"
    late.come.set()
    for thread in (asking, closing):
        thread.join(10)
    assert got == [Lease(0, Split(0))] and leases.take() is None


PLANS: dict[str, Callable[[PecanPipeline], PecanPipeline]] = {
    "threads": lambda pipe: pipe.map(lambda i: i, on="i").filter(lambda i: i % 3 != 0, on="i").batch(4),
    "one by one": lambda pipe: pipe.filter(lambda i: i % 3 != 0, on="i").padded_batch(4),
    "columns": lambda pipe: pipe.filter(lambda i: i % 3 != 0, on="i").batch(4).prefetch(2),
    "one sequence": lambda pipe: pipe.filter(lambda i: i % 3 != 0, on="i").batch(4).take(1000),
}


@pytest.mark.parametrize(
    ("kind", "engine"),
    [*((kind, "python") for kind in PLANS), ("threads", "tensorflow"), ("one sequence", "tensorflow")],
)
def test_an_engine_runs_a_whole_epoch_behind_one_that_was_left(kind: str, engine: EngineName) -> None:
    if engine == "tensorflow":
        pytest.importorskip("tensorflow")
    pipe = PLANS[kind](PecanPipeline(Arrays(i=np.arange(3000)), engine=engine).shuffle(50))
    ring = RingSlots(1 << 20)
    built = build_engine(engine, pipe.plan, EngineOptions(threads=2), OwnedSlots(ring))
    for epoch in range(3):
        leases = LeaseTracker(AllLeases(list(pipe.plan.sources()), epoch, 1))
        stretch = built.batches(leases)
        left = [next(stretch) for _ in range(3)]
        stretch.close()
        leases.close()
        assert all(one.epoch == epoch for one in left)
    del left, stretch
    until(lambda: ring._slots_in_flight <= 1, "slots of stretches that were left stay in flight")
    leases = LeaseTracker(AllLeases(list(pipe.plan.sources()), 3, 1))
    seen = list[int]()
    for one in built.batches(leases):
        leases.mark_processed(one.spans)
        assert one.epoch == 3
        seen += one.columns["i"].tolist() if one.rows else []
    assert sorted(seen) == [i for i in range(3000) if i % 3]
    built.close()
    ring.close()
