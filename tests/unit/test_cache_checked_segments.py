"""Entries are not checked again while their pages stay, and are as soon as anything may have happened to them."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest

from pecan_ray.cache import checked_segments
from pecan_ray.cache.checked_segments import PAGE_TABLE
from pecan_ray.cache.segments import EntryChecksum
from pecan_ray.cache.store import EntryStore

pytestmark = pytest.mark.skipif(not Path(PAGE_TABLE).exists(), reason="this system tells nothing of its pages")

MB = 1 << 20
SIZE = 300_000
KEYS = [f"key-{number}" for number in range(4)]


def entry(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EntryStore]:
    with EntryStore(tmp_path, max_bytes=64 * MB, held_bytes=64 * MB) as opened:
        fill(opened)
        yield opened


def fill(store: EntryStore) -> None:
    for number, key in enumerate(KEYS):
        assert store.put(key, "plan", [entry(number)], elements=1, seconds=1.0)
    settle(store)


def settle(store: EntryStore) -> None:
    """Wait for the next tick of the clock by which changes of files are told from each other: some milliseconds."""
    ticking = store.folder / "tick"
    ticking.touch()
    while any(ticking.stat().st_ctime_ns <= path.stat().st_ctime_ns for path in segments(store)):
        os.utime(ticking)


def segments(store: EntryStore) -> list[Path]:
    return sorted((store.folder / "segments").iterdir())


def overwrite(path: Path, place: int, byte: int) -> None:
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(bytes([byte]))


def mapped(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(f"{folder}/segments/")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what was checked."""
    done: list[int] = []
    add = EntryChecksum.add

    def counted(self: EntryChecksum, data: bytes | memoryview) -> None:
        done.append(len(data))
        add(self, data)

    monkeypatch.setattr(EntryChecksum, "add", counted)
    return done


@pytest.fixture
def memory_store(tmp_path: Path) -> Iterator[EntryStore]:
    with EntryStore(tmp_path, max_bytes=64 * MB, held_bytes=64 * MB, in_memory=True) as opened:
        fill(opened)
        yield opened


@pytest.mark.parametrize("own", [False, True])
def test_an_entry_is_checked_once_as_long_as_its_pages_stay(own: bool, store: EntryStore, checks: list[int]) -> None:
    for _ in range(3):
        assert all(store.get(key, own=own) == entry(number) for number, key in enumerate(KEYS))
    assert checks == [SIZE] * len(KEYS)


@pytest.mark.parametrize("own", [False, True])
def test_what_is_damaged_after_it_was_checked_is_dropped_and_never_served(own: bool, store: EntryStore) -> None:
    for number, key in enumerate(KEYS):
        assert store.get(key, own=own) == entry(number)
    (place,) = (place for place in store.places() if place.key == "key-2")
    overwrite(place.path, place.start + 1000, entry(2)[1000] ^ 1)
    assert store.get("key-2", own=own) is None and "damaged" in store.trouble
    assert "key-2" not in store
    assert store.get("key-3", own=own) == entry(3)


def test_what_the_system_has_taken_out_of_memory_is_checked_again(store: EntryStore, checks: list[int]) -> None:
    store.get("key-0", own=False)
    (held,) = store._checked._held.values()
    held.memory.madvise(mmap.MADV_DONTNEED)
    assert store.get("key-0", own=False) == entry(0)
    assert checks == [SIZE, SIZE]


def test_a_page_that_is_written_into_is_nobody_elses(store: EntryStore) -> None:
    for _ in range(2):
        data = store.get("key-1")
        assert isinstance(data, memoryview) and data == entry(1)
        data[5] ^= 0xFF
        read = store.get("key-1", own=False)
        assert isinstance(read, memoryview) and read.readonly and read == entry(1)


def test_a_file_that_grows_is_looked_at_anew(store: EntryStore, checks: list[int]) -> None:
    store.get("key-0", own=False)
    with EntryStore(store.folder, max_bytes=64 * MB) as reader:
        assert store.put("more", "plan", [entry(9)], elements=1, seconds=1.0)
        checks.clear()
        assert store.get("key-0", own=False) == entry(0) and store.get("more", own=False) == entry(9)
        assert checks == [SIZE, SIZE]
        assert reader.get("more") == entry(9)


def test_what_is_removed_is_let_go_of_by_whoever_has_mapped_it(store: EntryStore) -> None:
    with EntryStore(store.folder, max_bytes=64 * MB) as other:
        assert store.get("key-0", own=False) is not None and mapped(store.folder) == 1
        other.remove()
        assert store.get("key-1", own=False) is None
        assert mapped(store.folder) == 0
    fill(store)
    assert store.get("key-0", own=False) is not None and mapped(store.folder) == 1
    store.remove()
    assert mapped(store.folder) == 0


def test_no_more_is_held_than_it_may_be(tmp_path: Path, checks: list[int]) -> None:
    with EntryStore(tmp_path, max_bytes=64 * MB, held_bytes=2 * SIZE) as store:
        fill(store)
        checks.clear()
        for _ in range(3):
            assert all(store.get(key, own=False) == entry(number) for number, key in enumerate(KEYS))
        assert len(checks) == 2 + 3 * 2, "the first two that came stay"
        assert store._checked.nbytes == 2 * SIZE


def test_a_system_that_tells_nothing_of_its_pages_checks_each_time(
    store: EntryStore, checks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_segments, "PAGE_TABLE", "/nowhere")
    for _ in range(2):
        assert store.get("key-0", own=False) == entry(0)
    assert checks == [SIZE, SIZE]


def _read_in_child(store: EntryStore, checks: list[int]) -> None:
    checks.clear()
    assert store.get("key-0", own=False) == entry(0)
    os._exit(0 if checks == [SIZE] else 1)


def test_a_process_that_was_forked_checks_by_itself(store: EntryStore, checks: list[int]) -> None:
    store.get("key-0", own=False)
    child = get_context("fork").Process(target=_read_in_child, args=(store, checks))
    child.start()
    child.join()
    assert child.exitcode == 0


@pytest.mark.parametrize("own", [False, True])
def test_in_memory_an_entry_is_checked_until_its_file_is_written_to(
    own: bool, memory_store: EntryStore, checks: list[int]
) -> None:
    for _ in range(3):
        assert all(memory_store.get(key, own=own) == entry(number) for number, key in enumerate(KEYS))
    assert checks == [SIZE] * len(KEYS)
    (place,) = (place for place in memory_store.places() if place.key == "key-0")
    overwrite(place.path, place.start + 7, entry(0)[7] ^ 4)
    assert memory_store.get("key-0", own=own) is None
