"""What goes wrong with the folder of a cache in the middle of an epoch: it costs the cache, never the data."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.caching.store import EntryStore
from pecan_ray.engines.contract import Produced
from pecan_ray.options import Cache
from tests.unit.engines.engine_leases import ListedLeases, delivered, running, whole_leases
from tests.unit.engines.test_caching import CALLING, CALLS, READS, Numbers, kept, numbers

SPLITS, EACH = 12, 5
ALL = list(range(SPLITS * EACH))


def large(value: dict[str, Any]) -> dict[str, Any]:
    with CALLING:
        CALLS["large"] += 1
    return {**value, "x": np.full(20_000, value["i"], np.uint8)}


@pytest.fixture(autouse=True)
def counted() -> None:
    READS.clear()
    CALLS.clear()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 64 << 20)


def epoch(cache: Cache, between: Callable[[], object] | None = None, at: int = 4) -> list[int]:
    """Go through an epoch, let something happen in the middle of it; return the numbers, each position once."""
    plan = kept(pecan.PecanPipeline(Numbers(SPLITS, EACH)).map(large).autocache().batch(EACH))
    leases = ListedLeases(whole_leases(list(plan.sources())))
    found: list[Produced] = []
    with running(plan, leases, cache=cache) as (_, batches):
        for number, produced in enumerate(batches):
            if number == at and between is not None:
                between()
            found.append(produced)
    assert delivered(found) == leases.wanted()
    columns = [one.columns for one in found if one.rows]
    assert all((x == i % 256).all() for each in columns for x, i in zip(each["x"], each["i"], strict=True))
    return numbers(found)


def overwrite_index(folder: Path) -> None:
    (folder / "index.sqlite").write_bytes(os.urandom(1 << 16))


def replace_segments(folder: Path) -> None:
    shutil.rmtree(folder / "segments")
    (folder / "segments").write_text("a file")


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("harm", [shutil.rmtree, overwrite_index, replace_segments])
def test_a_folder_that_is_harmed_in_the_middle_of_an_epoch_costs_nothing_but_time(
    filled: bool, harm: Callable[[Path], object], cache: Cache
) -> None:
    if filled:
        assert epoch(cache) == ALL
    assert epoch(cache, lambda: harm(cache.folder)) == ALL
    if harm is shutil.rmtree:
        assert epoch(cache) == ALL
        reads = READS.copy()
        assert epoch(cache) == ALL and reads == READS, "the next job has a folder again, and fills it"


def _fill_a_full_disk(cache: Cache) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]  # a list of them
    logging.getLogger("pecan_ray.cache").addHandler(handler)

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    assert epoch(cache, full) == ALL
    assert len(said) == 1 and "could not be written" in said[0]
    assert epoch(cache) == ALL
    os._exit(0)


def test_a_disk_that_fills_in_the_middle_of_an_epoch_is_said_once(cache: Cache) -> None:
    process = get_context("fork").Process(target=_fill_a_full_disk, args=(cache,))
    process.start()
    process.join()
    assert process.exitcode == 0
    with EntryStore(cache.folder, max_bytes=cache.max_bytes) as store:
        assert store.verify()[1] == ()


def test_an_index_of_a_newer_version_is_left_alone_and_everything_computed(
    cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    assert epoch(cache) == ALL
    with contextlib.closing(sqlite3.connect(cache.folder / "index.sqlite")) as index:
        index.execute("PRAGMA user_version = 99")
    CALLS.clear()
    assert epoch(cache) == ALL and CALLS["large"] == len(ALL)
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "format 99" in said and "use another folder" in said
    with contextlib.closing(sqlite3.connect(cache.folder / "index.sqlite")) as index:
        assert index.execute("SELECT COUNT(*) FROM entries").fetchone() == (SPLITS,)


def test_a_clock_that_jumps_keeps_and_evicts_the_same(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """No decision of a store looks at a clock of the day, and what computing took is never below nothing."""
    jumps = count()
    monkeypatch.setattr(time, "time", lambda: 1e9 - 1e6 * next(jumps))
    monkeypatch.setattr(time, "monotonic", lambda: 1e6 - 100.0 * next(jumps))
    small = Cache(cache.path, 1 << 20)  # ten entries of twelve
    for _ in range(3):
        assert epoch(small) == ALL
    with EntryStore(cache.folder, max_bytes=1 << 20) as store:
        assert store.verify()[1] == () and 0 < store.nbytes <= 1 << 20
        assert all(size.seconds >= 0 for size in store.sizes())


def test_two_jobs_that_fill_the_same_folder_at_once_keep_each_entry_once(cache: Cache) -> None:
    """One goes through an epoch between two batches of the other one."""
    assert epoch(cache, lambda: epoch(cache)) == ALL
    with EntryStore(cache.folder, max_bytes=cache.max_bytes) as store:
        assert store.verify() == (SPLITS, ())
    CALLS.clear()
    assert epoch(cache) == ALL and not CALLS
