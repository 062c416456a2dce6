"""The splits that wait: in which order they come, what came back first, and what a million of them cost."""

from __future__ import annotations

import gc
import math
import random
import tracemalloc
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.pass_order import Listing
from pecan_ray.job.resume_point import BranchPoint
from pecan_ray.job.split_queue import SplitQueue
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.sampling.random_keys import SplitOrder
from tests.long_form import some_later

SEED = 3
MANY = 1_000_000
ENOUGH = 100_000
"""To tell what each of many costs."""
PAGE = 256


def pages(splits: int) -> Iterator[list[Split]]:
    """Splits as a source lists them."""
    for first in range(0, splits, PAGE):
        yield [Split(index) for index in range(first, min(first + PAGE, splits))]


def add(listing: Listing, count: int) -> None:
    listing.add([Split(len(listing) + number) for number in range(count)])


def queue_of(splits: int, seed: int | None = SEED) -> SplitQueue:
    listing = Listing()
    add(listing, splits)
    listing.complete = True
    return SplitQueue(listing, 0, None if seed is None else SplitOrder(seed))


def drain(queue: SplitQueue, most: int | None = None, wanted: tuple[int, ...] = ()) -> list[int]:
    """Take leases until there are no more, or so many."""
    taken: list[int] = []
    looked_for = deque(wanted)
    while (most is None or len(taken) < most) and (lease := queue.take(looked_for)) is not None:
        taken.append(lease.split.index)
    return taken


@pytest.mark.parametrize(("files", "offered"), [(0, 2048), (1, 1024), (1023, 2), (5000, 1)])
def test_splits_are_offered_until_a_message_has_names_enough(files: int, offered: int) -> None:
    listing = Listing()
    listing.add([Split(index, files=files * ("name",)) for index in range(3000)])
    listing.complete = True
    assert len(SplitQueue(listing, 0, SplitOrder(SEED)).peek_splits(5000)) == offered


def epoch_of(queue: SplitQueue, at_hand: Callable[[int], bool]) -> list[int]:
    """Take all splits as a worker does that says which of those offered it has at hand."""
    order: list[int] = []
    wanted: tuple[int, ...] = ()
    while taken := drain(queue, 1, wanted):
        order += taken
        wanted = tuple(split.index for split in queue.peek_splits(10) if at_hand(split.index))
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
            add(listing, step)
        elif step == "offer":
            offered = [split.index for split in queue.peek_splits(chance.randint(1, 12))]
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
    other.go_on(0, BranchPoint(queue.cursor(), tuple(queue.remaining_parts())))
    add(again, len(listing))
    again.complete = listing.complete = True
    assert sorted(drain(other)) == sorted(lease.split.index for lease in queue)


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


@contextmanager
def at_most_bytes(most: float) -> Iterator[None]:
    """Fails where the peak of what is allocated inside exceeds this."""
    gc.collect()
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", some_later([None, 3], None))
@pytest.mark.parametrize("count", some_later([ENOUGH, MANY], MANY))
def test_many_splits_wait_without_an_object_for_each(seed: int | None, count: int) -> None:
    """A split takes 150 bytes; a queue has numbers alone, which the garbage collector does not visit."""
    ledger = Ledger(LedgerShape(epochs=None, split_order=(None if seed is None else SplitOrder(seed),)))
    ledger.join("w")
    ledger.next_assignment("w")
    before = len(gc.get_objects())
    with at_most_bytes(150 * count):
        for number, page in enumerate(pages(count)):
            ledger.add_splits(0, page)
            if number % 100 == 0:
                assert isinstance(ledger.take("w"), Lease)
    gc.collect()
    assert len(gc.get_objects()) - before < count // 20
    with at_most_bytes(40 * count):
        ledger.end_listing(0)
        assert isinstance(ledger.take("w"), Lease)
        ledger.queues.begin_epoch(1)
        assert isinstance(ledger.take("w"), Lease)
        assert ledger.share("w") == (count - 1) // 2
