"""Entries in memory above those on a disk: what was read once is there, and what is old never is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pecan_ray as pecan
from pecan_ray import cache_options
from pecan_ray.autocache.store_speed import memory_speed
from pecan_ray.cache_options import Cache
from pecan_ray.caching.store import EntryStore
from pecan_ray.caching.tiers import TieredStore
from pecan_ray.errors import CacheError, PlanError
from tests.unit.engines.cache_rig import Numbers, double, kept, sorted_numbers
from tests.unit.engines.engine_leases import run_engine

MB = 1 << 20


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(cache_options, "SHARED_MEMORY", tmp_path / "shm")
    return Cache(tmp_path / "disk", 64 * MB, memory_bytes=MB)


@pytest.fixture
def store(cache: Cache) -> Iterator[TieredStore]:
    opened = tiers_of(cache)
    yield opened
    opened.close()


def tiers_of(cache: Cache) -> TieredStore:
    return TieredStore(
        cache.folder, max_bytes=cache.max_bytes, memory=cache.memory_folder, memory_bytes=cache.memory_bytes
    )


def in_memory(store: TieredStore) -> set[str]:
    assert store.memory is not None
    return {place.key for place in store.memory.locations()}


def test_an_entry_goes_into_memory_when_it_is_read_or_comes_from_elsewhere(store: TieredStore) -> None:
    for key in "ab":
        assert store.put(key, "plan", [key.encode() * 1000], elements=10, seconds=1.0)
    assert in_memory(store) == set() and store.get("a") == b"a" * 1000
    store.take_up("far", "plan", b"far" * 100, elements=3, seconds=2.0)
    assert in_memory(store) == {"a", "far"} and store.disk.get("far") == b"far" * 100
    assert store.disk.about("far") == ("plan", 3, 2.0)
    store.disk.remove()
    assert store.get("a") == b"a" * 1000 and "a" in store, "it is read from there"
    assert store.get("b") is None and "b" not in store and store.last_error == ""


def test_what_has_no_room_in_memory_is_read_from_the_disk(store: TieredStore) -> None:
    for number in range(30):
        assert store.put(str(number), "plan", [bytes([number]) * 100_000], elements=10, seconds=1.0)
    for _ in range(2):
        assert all(store.get(str(number)) == bytes([number]) * 100_000 for number in range(30))
    assert store.memory is not None and store.memory.nbytes <= MB and 5 <= len(in_memory(store)) <= 10
    assert store.put("large", "plan", [bytes(2 * MB)], elements=1, seconds=1.0) and store.get("large") == bytes(2 * MB)


def test_what_is_kept_anew_is_found_in_both_and_what_is_damaged_in_memory_comes_from_the_disk(
    store: TieredStore,
) -> None:
    store.put("a", "plan", [b"old"], elements=1, seconds=1.0)
    assert store.get("a") == b"old"
    assert store.put("a", "plan", [b"new" * 100], elements=1, seconds=1.0, anew=True)
    assert store.get("a") == b"new" * 100 and store.memory is not None
    for place in store.memory.locations():
        place.path.write_bytes(bytes(500))
    assert store.get("a") == b"new" * 100 and "damaged" in store.last_error
    assert store.put("a", "plan", [bytes(2 * MB)], elements=1, seconds=1.0, anew=True)
    assert "a" not in store.memory and store.get("a") == bytes(2 * MB), "it does not fit there any more"


@pytest.mark.parametrize("theirs", ["open to others", "a link", "a file"])
def test_a_folder_in_memory_that_others_may_have_made_is_not_used(theirs: str, cache: Cache, tmp_path: Path) -> None:
    folder = cache.memory_folder
    assert folder is not None
    if theirs == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    elif theirs == "a file":
        folder.write_text("")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(CacheError):
        EntryStore(folder, max_bytes=MB, private=True)
    store = tiers_of(cache)
    assert store.memory is None and "nothing is kept in memory" in store.last_error
    assert store.put("a", "plan", [b"x"], elements=1, seconds=1.0) and store.get("a") == b"x"
    store.close()
    assert memory_speed(cache) is None


def test_an_engine_reads_from_memory_what_it_has_read_once(cache: Cache) -> None:
    plan = kept(pecan.PecanPipeline(Numbers()).map(double).autocache().batch(4))
    for _ in range(3):
        assert sorted_numbers(run_engine(plan, cache=cache)) == list(range(35))
    store = tiers_of(cache)
    assert len(in_memory(store)) == 7
    store.close()


@pytest.mark.parametrize("bad", [-1, 1000, True, 1.5])
def test_bytes_of_memory_that_cannot_be_are_refused(bad: Any) -> None:
    with pytest.raises(PlanError, match="memory_bytes"):
        Cache(memory_bytes=bad)
