"""What the outbox gives to whom: a fair share to each that waits, and to nobody what is another's."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.transport import outbox as transport_outbox
from pecan_ray.transport.flight_lanes import LOT_BYTES
from pecan_ray.transport.outbox import MOST_BATCHES, MOST_WAITING, Outbox
from tests.long_form import examples
from tests.ray.waiting import until
from tests.unit.transport.flight_rig import Memory, batch, beside, number_of, outbox_of


@contextlib.contextmanager
def taking(outbox: Outbox, rank: int, **how: Any) -> Iterator[list[list[int]]]:
    """Take one message for a rank in a thread of its own, which waits when the block begins and ends with it."""
    got: list[list[int]] = []
    waiting = len(outbox._waiters)
    with beside(lambda: got.append(numbers(outbox, rank, **how))):
        until(lambda: got or len(outbox._waiters) > waiting, "nobody takes")
        yield got


def numbers(outbox: Outbox, rank: int, *how: Any, **named: Any) -> list[int]:
    return [number_of(one) for one in outbox.take(rank, *how, **named)]


def put_all(outbox: Outbox, *ranks: int | None, first: int = 0) -> None:
    """Put a batch for each of some ranks; None: for any."""
    for number, rank in enumerate(ranks, first):
        outbox.put(batch(number), rank)


def test_small_batches_are_taken_together_up_to_a_size_and_a_number() -> None:
    outbox = outbox_of([batch(n, nbytes) for n, nbytes in enumerate([100, 100, LOT_BYTES, 10, LOT_BYTES + 1, 5])])
    assert [numbers(outbox, 0, MOST_BATCHES, LOT_BYTES) for _ in range(5)] == [[0, 1], [2], [3], [4], [5]]
    many = outbox_of([batch(n) for n in range(MOST_BATCHES + 1)])
    assert len(many.take(0, MOST_BATCHES, LOT_BYTES)) == MOST_BATCHES


def test_who_is_not_to_take_yet_gets_as_many_as_were_asked_for_and_at_the_end_what_is_left() -> None:
    outbox, later = Outbox(), time.monotonic() + 600
    with taking(outbox, 0, most=MOST_BATCHES, not_before=later) as got:
        put_all(outbox, *[None] * (MOST_BATCHES + 2))
    assert got == [list(range(MOST_BATCHES))]
    with taking(outbox, 0, most=MOST_BATCHES, not_before=later) as rest:
        assert not rest
        outbox.close()
    assert rest == [[MOST_BATCHES, MOST_BATCHES + 1]]


# --- shares ------------------------------------------------------------------------------------------------


def test_of_those_who_wait_the_one_with_the_fewest_is_next_and_who_wants_no_more_leaves_its_share() -> None:
    outbox = Outbox()
    put_all(outbox, None)
    assert numbers(outbox, 0) == [0]
    with taking(outbox, 0) as rich, taking(outbox, 1) as poor:
        put_all(outbox, None, first=1)
        until(lambda: poor, "nobody has got it")
        assert poor == [[1]] and not rich
        put_all(outbox, None, first=2)
    assert rich == [[2]]
    wanted = [True]
    with taking(outbox, 1, wanted=lambda: wanted[0]) as gone, taking(outbox, 0) as other:
        wanted[0] = False  # nobody tells it: it learns of it when it is woken
        put_all(outbox, None)
    assert gone == [[]] and other == [[0]]


@pytest.mark.parametrize("first", [0, 1, 6])
def test_each_worker_begins_with_another_rank_so_that_all_of_them_get_equally_many(first: int) -> None:
    outbox = Outbox(ranks=4, first=first)
    put_all(outbox, *[None] * 4)
    assert [len(outbox.take(rank, most=1)) for rank in (3, 1, 2, 0)] == [1, 1, 1, 1]
    with contextlib.ExitStack() as waiting:
        got = {rank: waiting.enter_context(taking(outbox, rank, most=1)) for rank in (2, 0, 3, 1)}
        put_all(outbox, None, first=4)
        until(lambda: any(got.values()), "nobody gets the batch for which all wait")
        outbox.close()
    assert [rank for rank, messages in got.items() if messages == [[4]]] == [first % 4]


def test_what_is_ready_is_shared_by_those_who_wait_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(transport_outbox, "time", SimpleNamespace(monotonic=lambda: now[0]))
    outbox = Outbox()
    with taking(outbox, 0, not_before=600.0) as left, taking(outbox, 1, not_before=600.0) as right:
        put_all(outbox, *[None] * 10)
        assert not left and not right
        now[0] = 600.0
        outbox.wake()
    assert left == [[0, 2, 4, 6, 8]] and right == [[1, 3, 5, 7, 9]]


def test_a_rank_that_takes_nothing_keeps_nothing_from_others_and_what_was_put_back_comes_first() -> None:
    outbox, lots = Outbox(), MOST_WAITING // MOST_BATCHES
    put_all(outbox, *[0, 1, 2] * MOST_WAITING)  # all at once, though nobody takes
    assert [one for _ in range(lots) for one in numbers(outbox, 2)] == [*range(2, 3 * MOST_WAITING, 3)]
    outbox = Outbox()
    put_all(outbox, None, 0, 1, None, 0, 1)
    outbox.put_back(0, outbox.take(0, 2))
    assert numbers(outbox, 1) == [2, 3, 5] and numbers(outbox, 0) == [0, 1, 4]


LARGE = [
    np.zeros(1000, np.uint8),
    np.array(["x" * 600] * 2, object),
    {"a": np.zeros(1000, np.uint8)},
    ([b"x" * 500] * 2, np.arange(8)),
]


@pytest.mark.parametrize("column", LARGE, ids=["array", "objects", "dict", "tuple"])
def test_batches_of_one_address_are_bounded_in_bytes_but_for_one_that_is_larger_alone(column: Any) -> None:
    outbox, large = Outbox(most_bytes=1000), batch(1)
    large.columns["more"] = column
    outbox.put(batch(0, 4000), None)  # the first one always goes in

    def put_both() -> None:
        outbox.put(large, None)
        outbox.put(batch(2), None)

    with beside(put_both) as waits:
        waits.join(0.1)
        assert waits.is_alive(), "there is room"
        outbox.put(batch(10, 900), 1)  # another address has its own bound
        assert numbers(outbox, 0, 1) == [0]
        until(lambda: len(outbox) == 2, "it does not go on")
        outbox.take(0, 1)


# --- the end -----------------------------------------------------------------------------------------------


def told(outbox: Outbox, rank: int) -> threading.Event:
    event = threading.Event()
    outbox.at_end(rank, event.set)
    return event


def test_a_rank_is_told_of_its_end_when_nothing_is_left_that_it_may_have() -> None:
    outbox = Outbox()
    ends = [told(outbox, rank) for rank in range(3)]
    put_all(outbox, None, 1)
    outbox.close()
    assert not any(end.is_set() for end in ends)
    outbox.take(2)
    assert [end.is_set() for end in ends] == [True, False, True]
    outbox.take(1)
    assert ends[1].is_set() and told(outbox, 1).is_set(), "also who asks late is told"
    outbox.put_back(1, [batch(1)])
    assert not told(outbox, 1).is_set()


@examples(60)
@given(
    ranks=st.integers(1, 4),
    streams=st.integers(1, 2),
    batches=st.lists(st.tuples(st.sampled_from([None, None, None, 0, 1, 2, 3]), st.integers(1, 600_000)), max_size=60),
    chance=st.randoms(use_true_random=False),
)
def test_whoever_takes_and_stops_every_batch_comes_once_and_to_whom_it_is_for(
    ranks: int, streams: int, batches: list[tuple[int | None, int]], chance: Any
) -> None:
    outbox = Outbox()
    got: list[tuple[int, int]] = []

    def run(rank: int, most: int) -> None:
        while lot := outbox.take(rank, most, LOT_BYTES, not_before=time.monotonic() + 0.001 * (most % 3)):
            assert len(lot) <= most
            assert len(lot) == 1 or sum(one.columns["x"].nbytes for one in lot) <= LOT_BYTES
            got.extend((rank, number_of(one)) for one in lot)

    with contextlib.ExitStack() as running:
        for stream in range(ranks * streams):
            rank, most = stream % ranks, chance.randint(1, 5)
            running.enter_context(beside(partial(run, rank, most)))
        for number, (address, nbytes) in enumerate(batches):
            outbox.put(batch(number, nbytes), address if address is None else address % ranks)
        outbox.close()
    assert Counter(number for _, number in got) == Counter(range(len(batches)))
    for rank, number in got:
        address = batches[number][0]
        assert address is None or address % ranks == rank


def test_an_outbox_drops_what_is_for_ranks_that_were_given_nothing_when_it_drains_and_left_epochs() -> None:
    outbox, batches = Outbox(), [batch(number) for number in range(5)]
    outbox.put(batches[0], 0)
    assert numbers(outbox, 0) == [0]
    for one, rank in zip(batches[1:4], (1, 0, None), strict=True):
        outbox.put(one, rank)
    outbox.drain()
    outbox.put(batches[4], 1)
    outbox.close()
    assert numbers(outbox, 0) == [2, 3]
    assert outbox.take(1) == [], "what comes behind a dropped batch would be taken for that one"
    assert [one.slot.released for one in batches if isinstance(one.slot, Memory)] == [0, 1, 0, 0, 1]
    outbox, batches = Outbox(most_bytes=8), [batch(0), batch(1), batch(2, epoch=1)]
    outbox.put(batches[0], 0)
    with beside(lambda: outbox.put(batches[1], 0)):  # it waits for room
        outbox.leave_epochs(1)
    outbox.put(batches[2], 0)
    outbox.close()
    assert numbers(outbox, 0) == [2] and outbox.take(0) == []
    assert [one.slot.released for one in batches if isinstance(one.slot, Memory)] == [1, 1, 0]
