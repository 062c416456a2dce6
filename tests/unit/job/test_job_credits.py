"""Credits: each worker may send one message while there is room, and a few ahead where they fit."""

from __future__ import annotations

from pecan_ray.job.credits import FEW_AHEAD, MOST_AHEAD, MessageQuota


def test_every_stream_begins_with_one_credit_as_soon_as_there_is_room() -> None:
    book = MessageQuota(100)
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
    book = MessageQuota(1000)
    book.opened("a", True)
    assert book.used("a", 10, 10, True) == {"a": MOST_AHEAD}
    assert book.used("a", 10, 20, True) == {}, "it has enough for a while"
    assert book.used("a", 10, 30, True) == {"a": MOST_AHEAD - FEW_AHEAD}


def test_no_more_are_under_way_than_fit() -> None:
    book = MessageQuota(100)
    book.opened("a", True)
    assert book.used("a", 40, 40, True) == {"a": 1}, "40 queued and 40 under way: a third does not fit"
