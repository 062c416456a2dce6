"""Splits that are offered to workers: those that somebody has at hand go first, the others last, each once."""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job.events import ListingEnded, SplitsListed
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import AskLeases, NoMoreLeases, Offered
from pecan_ray.job.questions import MOST_FORESEEN
from pecan_ray.job.queues import Queues
from pecan_ray.job.split_queue import MOST_SPLITS_FORESEEN, Listing, SplitQueue
from pecan_ray.options import Workers
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.sampling.randomness import SplitOrder
from tests.unit.job.job_rig import JobRig

SEED = 3


def queue_of(splits: int, seed: int | None = SEED, passes: int = 1) -> SplitQueue:
    listing = Listing()
    listing.add([Split(index) for index in range(splits)])
    listing.complete = True
    return SplitQueue(listing, 0, None if seed is None else SplitOrder(seed), passes=passes)


def drain(queue: SplitQueue, most: int | None = None, wanted: tuple[int, ...] = ()) -> list[int]:
    taken: list[int] = []
    looked_for = deque(wanted)
    while (most is None or len(taken) < most) and (lease := queue.take(looked_for)) is not None:
        taken.append(lease.split.index)
    return taken


def epoch_of(queue: SplitQueue, at_hand: Callable[[int], bool], lot: int = 1, look: int = 10) -> list[int]:
    """Take all splits as a worker does that says which of those offered it has at hand."""
    order: list[int] = []
    wanted: tuple[int, ...] = ()
    while taken := drain(queue, lot, wanted):
        order += taken
        wanted = tuple(split.index for split in queue.offer(look * lot) if at_hand(split.index))
    return order


STEPS = st.lists(st.one_of(st.integers(1, 9), st.sampled_from(["take", "want", "back", "offer"])), max_size=80)


@given(STEPS, st.sampled_from([SplitOrder(SEED), None]), st.randoms(use_true_random=False))
def test_each_split_waits_once_whatever_is_offered_and_a_state_knows_it(
    steps: list[int | str], shuffling: SplitOrder | None, chance: random.Random
) -> None:
    """Pages, takings, returns and offers in any order: a split is either taken or waits, also in a run after this."""
    listing = Listing()
    queue = SplitQueue(listing, 0, shuffling)
    out: list[Lease] = []
    offered: list[int] = []
    back: list[int] = []
    for step in steps:
        if isinstance(step, int):
            listing.add([Split(len(listing) + number) for number in range(step)])
        elif step == "offer":
            offered = [split.index for split in queue.offer(chance.randint(1, 12))]
            assert len(set(offered)) == len(offered)
        elif step in ("take", "want"):
            wanted = chance.sample(offered, len(offered) // 2) if step == "want" else []
            if (lease := queue.take(deque(wanted))) is not None:
                out.append(lease)
                back = [index for index in back if index != lease.split.index]
        elif out and step == "back":
            queue.put_back(out[-1])
            back.append(out.pop().split.index)
        waiting = [lease.split.index for lease in queue]
        assert sorted(waiting + [lease.split.index for lease in out]) == list(range(len(listing)))
        assert len(queue) == len(waiting)
    again = Listing()
    other = SplitQueue(again, 0, shuffling)
    other.go_on(0, queue.cursor(), tuple(queue.rests()))
    again.add([Split(index) for index in range(len(listing))])
    again.complete = listing.complete = True
    assert sorted(drain(other)) == sorted(lease.split.index for lease in queue)


# --- distribution -------------------------------------------------------------------------------------------

DRAWS, SPLITS = 2000, 12


def even(counts: Counter[object], kinds: int) -> bool:
    """Tell whether things came about equally often: by chi-square, within six standard deviations."""
    mean = sum(counts.values()) / kinds
    chi_square = sum((counts[kind] - mean) ** 2 / mean for kind in counts) + mean * (kinds - len(counts))
    return chi_square < kinds - 1 + 6 * math.sqrt(2 * (kinds - 1))


def test_what_is_at_hand_comes_early_in_an_order_that_is_as_likely_as_any_and_so_do_the_others() -> None:
    here = (1, 4, 9)
    orders = [epoch_of(queue_of(SPLITS, seed), here.__contains__) for seed in range(DRAWS)]
    assert even(Counter(tuple(index for index in order if index in here) for order in orders), 6)
    others = [[index for index in order if index not in here] for order in orders]
    for place in range(SPLITS - len(here)):
        assert even(Counter(order[place] for order in others), SPLITS - len(here))
    early = sum(order.index(index) for order in orders for index in here) / DRAWS / len(here)
    assert early < 3.0, "without offers they come at place 5.5 in the mean"


# --- jobs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        LedgerShape(),
        LedgerShape(in_order=True, orders=(SplitOrder(SEED),)),
        LedgerShape(serial=True, orders=(SplitOrder(SEED),)),
    ],
    ids=["not shuffled", "strict", "whole"],
)
def test_where_the_order_tells_on_the_result_nothing_is_offered(shape: LedgerShape) -> None:
    rig = JobRig(shape)
    (worker,) = rig.begin(splits=30)
    rig.assign(worker)
    reply = rig.answer(worker, AskLeases(0, 0, 1, look=10))
    assert isinstance(reply, Offered) and reply.splits == () and len(reply.leases) == 1


# --- what the next epoch begins with --------------------------------------------------------------------------


def end_of_epoch(shape: LedgerShape, *, scheme: str = "s3://", workers: int = 1, look: int = 0) -> object:
    """Let a worker take all splits, and return what it is told when it asks for more."""
    rig = JobRig(shape, Workers(workers))
    names = rig.come()
    for name in names:
        rig.place(name)
    assert len(names) == workers
    rig.handle(SplitsListed(0, tuple(Split(index, path=f"{scheme}bucket/{index}") for index in range(40))))
    rig.handle(ListingEnded(0))
    rig.assign(names[0])
    taken: list[int] = []
    while True:
        reply = rig.answer(names[0], AskLeases(0, 0, 100, look=look))
        leases = reply.leases if isinstance(reply, Offered) else reply
        if not isinstance(leases, tuple) or not leases:
            assert sorted(taken) == list(range(40))
            return reply
        taken += [lease.split.index for lease in leases]


@pytest.mark.parametrize("seed", [SEED, None])
@pytest.mark.parametrize("epochs", [2, None])
def test_a_worker_that_is_alone_is_told_what_the_next_epoch_begins_with(seed: int | None, epochs: int | None) -> None:
    reply = end_of_epoch(LedgerShape(orders=(None if seed is None else SplitOrder(seed),), epochs=epochs))
    assert isinstance(reply, NoMoreLeases)
    queue = queue_of(40, seed)
    queue.begin(1, 0)
    assert [split.index for split in reply.next_epoch] == drain(queue)[:MOST_FORESEEN]


def test_nothing_is_told_of_files_of_the_machine_nor_in_the_last_epoch_nor_to_who_looks() -> None:
    shape = LedgerShape(orders=(SplitOrder(SEED),), epochs=2)
    assert end_of_epoch(shape, workers=2) == (), "another worker may be given it"
    assert end_of_epoch(shape, scheme="/") == ()
    assert end_of_epoch(LedgerShape(orders=(SplitOrder(SEED),), epochs=1)) == ()
    assert end_of_epoch(shape, look=10) == ()


def test_an_order_of_very_many_splits_is_not_made_beforehand() -> None:
    assert queue_of(MOST_SPLITS_FORESEEN).foreseen(1, 3) and not queue_of(MOST_SPLITS_FORESEEN + 1).foreseen(1, 3)


def test_where_every_worker_sees_all_data_each_is_told_what_the_next_epoch_begins_with() -> None:
    queues = Queues(LedgerShape(orders=(SplitOrder(SEED),), sharding="off", epochs=None))
    for worker in "abc":
        queues.join(worker)
    queues.add(0, [Split(index) for index in range(40)])
    assert queues.foreseen("a", 0, 3, 5) == [], "more may be listed"
    queues.end_listing(0)
    for epoch in range(3):
        queues.begin_epoch(epoch)
        told = [queues.foreseen(worker, 0, 3, 5) for worker in "abcab"]
        assert len(told[0]) == 5 and told == [told[0]] * 5
        queues.begin_epoch(epoch + 1)
        first = [queues.take("b", 0) for _ in range(5)]
        assert [lease.split for lease in first if isinstance(lease, Lease)] == told[0]
