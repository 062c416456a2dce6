"""Credits: each worker may send one message while there is room, and a few ahead where they fit."""

from __future__ import annotations

import random

import pytest

from pecan_ray.job.credits import FEW_AHEAD, MOST_AHEAD, CreditBook


def test_every_stream_begins_with_one_credit_as_soon_as_there_is_room() -> None:
    book = CreditBook(100)
    assert book.opened("c", True) == {"c": 1}
    for worker in "bad":
        assert book.opened(worker, False) == {}
    book.closed("d")
    assert book.freed(False) == {}
    assert book.freed(True) == {"a": 1, "b": 1}
    assert book.freed(True) == {}, "each has one"
    book.closed("c")
    assert book.used("c", 10, 10, True) == {}, "its stream is over"


def test_one_fast_worker_sends_a_few_messages_ahead() -> None:
    book = CreditBook(1000)
    book.opened("a", True)
    assert book.used("a", 10, 10, True) == {"a": MOST_AHEAD}
    assert book.used("a", 10, 20, True) == {}, "it has enough for a while"
    assert book.used("a", 10, 30, True) == {"a": MOST_AHEAD - FEW_AHEAD}


def test_no_more_are_under_way_than_fit() -> None:
    book = CreditBook(100)
    book.opened("a", True)
    assert book.used("a", 40, 40, True) == {"a": 1}, "40 queued and 40 under way: a third does not fit"


@pytest.mark.parametrize(("prefetch", "workers"), [(1, 1), (1, 50), (1000, 1), (1000, 3), (1000, 200), (50_000, 20)])
def test_bytes_are_bounded_by_the_prefetch_and_a_message_of_each_worker(prefetch: int, workers: int) -> None:
    """However messages and uses follow one another, with messages of one size; and nobody waits for ever."""
    chance, size = random.Random(prefetch + workers), 100
    book, queued, under_way = CreditBook(prefetch), 0, dict.fromkeys(map(str, range(workers)), 0)
    received = dict.fromkeys(under_way, 0)

    def grant(credits: dict[str, int]) -> None:
        for worker, count in credits.items():
            under_way[worker] += count
            assert count > 0 and under_way[worker] <= MOST_AHEAD

    for worker in under_way:
        grant(book.opened(worker, book.room(queued)))
    for _ in range(5000):
        senders = [worker for worker, count in under_way.items() if count]
        if senders and (not queued or chance.random() < 0.6):
            worker = chance.choice(senders)
            under_way[worker] -= 1
            received[worker] += 1
            queued += size
            grant(book.used(worker, size, queued, book.room(queued)))
        else:
            assert queued, "nobody may send, and nothing is queued"
            queued -= size
            grant(book.freed(book.room(queued)))
        assert queued + size * sum(under_way.values()) <= prefetch + size * (workers + 1)
    assert min(received.values()) > 0
