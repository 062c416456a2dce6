"""Who fetches a block that several nodes miss."""

from __future__ import annotations

import pytest

from pecan_ray.cache import fetch_turns
from pecan_ray.cache.fetch_turns import TURN_S, Fetcher, FetchTurns

ONE, OTHER = Fetcher("a", 1, 0), Fetcher("b", 1, 0)


def test_the_first_that_asks_fetches_and_the_others_are_told() -> None:
    turns = FetchTurns()
    assert turns.take("key", ONE, 0.0) is None
    assert turns.take("key", OTHER, 1.0) == ONE
    assert turns.take("key", ONE, 2.0) is None, "it is its own"
    assert turns.take("another", OTHER, 2.0) is None


def test_a_turn_ends_when_the_block_comes_or_whoever_has_it_gives_up_or_in_time() -> None:
    turns = FetchTurns()
    turns.take("key", ONE, 0.0)
    turns.came("key")
    assert turns.take("key", OTHER, 0.0) is None
    turns.give_up(["key", "another"], ONE)
    assert turns.take("key", ONE, 0.0) == OTHER, "it was not its own"
    turns.give_up(["key"], OTHER)
    assert turns.take("key", ONE, 1.0) is None
    assert turns.take("key", OTHER, 1.0 + TURN_S - 0.1) == ONE
    assert turns.take("key", OTHER, 1.0 + TURN_S) is None


def test_a_bounded_number_of_turns_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_turns, "MOST_TURNS", 10)
    turns = FetchTurns()
    for number in range(20):
        assert turns.take(str(number), ONE, 0.0) is None
    assert len(turns) == 10
    assert turns.take("15", OTHER, 0.0) is None, "of others nobody knows"
    assert turns.take("other", OTHER, TURN_S) is None and len(turns) == 1
