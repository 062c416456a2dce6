"""When a worker must say something: neither so seldom that it is taken for lost, nor oftener than anyone needs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job.heartbeat import BEATS, HEARTBEAT_S, Heartbeat


def told_at(lots: list[float], timeout_s: float, lot_s: float, until: float = 600.0) -> list[float]:
    """When a worker that looks once a second tells how it gets on, asking after such times, again and again."""
    heartbeat, told = Heartbeat(timeout_s), []
    asks, now, turn = lots[0], 0.0, 0
    while now < until:
        while asks <= now:
            heartbeat.asked, turn = asks, turn + 1
            asks += lots[turn % len(lots)]
        if heartbeat.due(now, lot_s):
            heartbeat.told = now
            told.append(now)
        now += 1.0
    return told


def test_a_worker_of_few_tells_every_ten_seconds_however_often_it_asks() -> None:
    assert told_at([0.5], 60.0, 0.5, until=31) == [0, 10, 20, 30]


def test_a_worker_of_many_tells_once_a_lot() -> None:
    """Its questions say that it lives: between two of them one word is enough."""
    told = told_at([33.0], 60.0, 33.0)
    assert len(told) == pytest.approx(600 / 33, abs=2)


@given(
    lots=st.lists(st.floats(0.1, 500.0), min_size=1, max_size=5),
    timeout_s=st.floats(9.0, 300.0),
    lot_s=st.floats(0.5, 500.0),
)
def test_it_is_never_silent_for_longer_than_a_part_of_the_deadline(
    lots: list[float], timeout_s: float, lot_s: float
) -> None:
    told = told_at(lots, timeout_s, lot_s)
    asked, at = [], 0.0
    for turn in range(10_000):
        at += lots[turn % len(lots)]
        if at > 600:
            break
        asked.append(at)
    heard = sorted([*told, *asked])
    longest = max(later - earlier for earlier, later in zip(heard, [*heard[1:], 600.0], strict=True))
    assert longest <= timeout_s / BEATS + 1.0


@given(lot_s=st.floats(0.5, 60.0))
def test_how_it_gets_on_is_told_even_where_it_asks_all_the_time(lot_s: float) -> None:
    told = told_at([0.1], 60.0, lot_s, until=200)
    longest = max(later - earlier for earlier, later in itertools.pairwise(told))
    assert longest <= max(HEARTBEAT_S, lot_s) + 1.0
