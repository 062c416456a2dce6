"""The splits that wait: in which order they come, what came back first, and what a million of them cost."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.split_queue import Listing, SplitQueue
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.sampling.order import shuffled
from pecan_ray.sampling.randomness import SplitOrder, random_key
from tests.long_form import some_later

MANY = 1_000_000
ENOUGH = 100_000
"""To tell what each of many costs."""
PAGE = 256


def pages(splits: int, size: int = PAGE, start: int = 0) -> Iterator[list[Split]]:
    """Splits as a source lists them."""
    for first in range(start, splits, size):
        yield [Split(index) for index in range(first, min(first + size, splits))]


def listing_of(splits: int, *, complete: bool = True) -> Listing:
    listing = Listing()
    listing.add([Split(index) for index in range(splits)])
    listing.complete = complete
    return listing


def drain(queue: SplitQueue, most: int | None = None) -> list[int]:
    """Take leases until there are no more, or so many."""
    taken: list[int] = []
    while (most is None or len(taken) < most) and (lease := queue.take()) is not None:
        taken.append(lease.split.index)
    return taken


WORDS = 1 << 64
"""So many different words there are."""


def permutation(splits: int, seed: int = 3, epoch: int = 0, repetition: int = 0) -> list[int]:
    return in_order(range(splits), seed, epoch, repetition)


def in_order(indices: Iterable[int], seed: int = 3, epoch: int = 0, repetition: int = 0) -> list[int]:
    """Splits in a pass's order, by Python's own integers: as SplitMix64 is published, twice with a key."""
    first, second = (int(word) for word in random_key(seed, epoch, repetition, 0, 0, 0, 0, "order"))
    return sorted(indices, key=lambda index: splitmix(splitmix((index + first) % WORDS) ^ second))


def splitmix(state: int) -> int:
    word = (state + 0x9E3779B97F4A7C15) % WORDS
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORDS
    word = (word ^ word >> 27) * 0x94D049BB133111EB % WORDS
    return word ^ word >> 31


def test_a_split_that_is_not_named_by_its_place_is_refused() -> None:
    listing = listing_of(2, complete=False)
    with pytest.raises(ValueError, match=r"split 5 of part-5 was listed at place 2"):
        listing.add([Split(5, path="part-5")])
    assert len(listing) == 2


@pytest.mark.parametrize("seed", [None, 3])
def test_passes_follow_one_another_each_in_an_order_of_its_own(seed: int | None) -> None:
    queue = SplitQueue(listing_of(6), 0, None if seed is None else SplitOrder(seed), passes=3)
    assert (queue.passes_left, len(queue)) == (2, 6)
    passes = [drain(queue, 6) for _ in range(3)]
    assert passes == [permutation(6, 3, 0, number) if seed else list(range(6)) for number in range(3)]
    assert queue.passes_left == 0 and queue.take() is None


@pytest.mark.parametrize("seed", [None, 3])
def test_what_came_back_goes_first_the_latest_before_the_others_until_the_pass_begins_anew(seed: int | None) -> None:
    queue = SplitQueue(listing_of(4), 0, None if seed is None else SplitOrder(seed))
    for lease in [queue.take(), queue.take()]:
        assert lease is not None
        queue.put_back(lease)
    order = permutation(4) if seed else [0, 1, 2, 3]
    assert len(queue) == 4 and drain(queue) == [order[1], order[0], *order[2:]]
    queue.put_back(Lease(0, Split(2)))
    queue.begin(0, 1)
    assert len(queue) == 5
    queue.clear()
    assert sorted(drain(queue)) == [0, 1, 2, 3]
    own = SplitQueue(listing_of(4), 0, None, (0, 0))
    assert not own and own.take() is None, "it has what is put back alone"
    own.put_back(Lease(0, Split(2)))
    assert drain(own) == [2]


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
    ledger = Ledger(LedgerShape(epochs=None, orders=(None if seed is None else SplitOrder(seed),)))
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


@pytest.mark.parametrize(("start", "splits", "step"), [(0, 0, 1), (5, 1, 1), (0, 2, 1), (3, 1000, 7), (0, 20_000, 1)])
def test_a_shuffled_order_is_that_of_a_sort_by_splitmix(start: int, splits: int, step: int) -> None:
    """Any share of the splits, however it is ordered so far."""
    indices = np.arange(start, start + splits * step, step, dtype=np.int64)
    drawn = np.random.default_rng(splits).permutation(indices)
    order = shuffled(drawn, SplitOrder(11), 2, 1, 0)
    assert order.dtype == np.int64 and order.tolist() == in_order(indices.tolist(), 11, 2, 1)
