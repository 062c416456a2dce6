"""A store that keeps what is in use: by numbers, and with files on a disk."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from pecan_ray.cache.eviction import LET_IN, UNUSED_S, lets_in
from pecan_ray.caching.store import EntryStore

ENTRY = bytes(1000)
ENTRIES, FEW = 600, 200


def test_what_comes_is_let_in_seldom_where_all_is_in_use_and_always_where_something_is_not() -> None:
    draw = random.Random(0)
    let_in = sum(lets_in(UNUSED_S - 1, 0.5, draw.random()) for _ in range(20_000))
    assert let_in / 20_000 == pytest.approx(LET_IN / 2, rel=0.2)
    assert all(lets_in(UNUSED_S + 1, 0.5, draw.random()) for _ in range(1000))


def hits(store: EntryStore, data: str, epochs: int, entries: int = ENTRIES) -> list[float]:
    """Go over data in random orders; return which share was there in each epoch."""
    found = []
    for epoch in range(epochs):
        order = random.Random(f"{data} {epoch}").sample(range(entries), entries)
        here = 0
        for number in order:
            if store.get(f"{data} {number}") is not None:
                here += 1
            else:
                store.put(f"{data} {number}", data, [ENTRY], elements=1, seconds=0.0)
        found.append(here / entries)
    return found


def test_a_fifth_of_what_is_read_has_room(tmp_path: Path) -> None:
    with EntryStore(tmp_path, max_bytes=ENTRIES * 1024 // 5, policy="resident") as store:
        found = hits(store, "data", 5)
        assert found[0] == 0.0
        assert 0.16 <= sum(found[2:]) / 3 <= 0.22, found
        assert store.nbytes <= ENTRIES * 1024 // 5


def test_other_data_takes_the_place_of_what_nobody_uses(tmp_path: Path) -> None:
    with EntryStore(tmp_path, max_bytes=FEW * 1024 // 2, policy="resident") as store:
        hits(store, "old", 2, FEW)
        slowly = hits(store, "new", 2, FEW)
        assert slowly[-1] < 0.1, slowly
    for segment in (tmp_path / "segments").iterdir():
        os.utime(segment, times=(0.0, time.time() - UNUSED_S - 60))
    with EntryStore(tmp_path, max_bytes=FEW * 1024 // 2, policy="resident") as store:
        found = hits(store, "new", 3, FEW)
        assert found[-1] > 0.4, found
