"""Checksums of entries, checked again as soon as anything may have happened to their pages, and not before."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import resource
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest

from pecan_ray.caching import checked_segments
from pecan_ray.caching.checked_segments import PAGE_TABLE, CheckedSegments
from pecan_ray.caching.segments import MOST_PARTS, EntryChecksum, SegmentWriter, read_entry
from pecan_ray.caching.store import EntryStore
from pecan_ray.caching.tiers import TieredStore

MB = 1 << 20
SIZE = 300_000
KEYS = [f"key-{number}" for number in range(4)]


def entry(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


@pytest.fixture
def pages() -> None:
    if not Path(PAGE_TABLE).exists():
        pytest.skip("this system tells nothing of its pages")


@pytest.fixture
def store(tmp_path: Path, pages: None) -> Iterator[EntryStore]:
    with EntryStore(tmp_path, max_bytes=64 * MB, checked=CheckedSegments(64 * MB)) as opened:
        fill(opened)
        yield opened


def fill(store: EntryStore) -> None:
    for number, key in enumerate(KEYS):
        assert store.put(key, "plan", [entry(number)], elements=1, seconds=1.0)
    settle(store)


def settle(store: EntryStore) -> None:
    settle_files(store.folder / "tick", segments(store))


def settle_files(ticking: Path, files: list[Path]) -> None:
    """Wait for the next tick of the clock by which changes of files are told from each other: some milliseconds."""
    ticking.touch()
    while any(ticking.stat().st_ctime_ns <= path.stat().st_ctime_ns for path in files):
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
def checks(monkeypatch: pytest.MonkeyPatch, pages: None) -> list[int]:
    """The sizes of what was checked."""
    done: list[int] = []
    add = EntryChecksum.add

    def counted(self: EntryChecksum, data: bytes | memoryview) -> None:
        done.append(len(data))
        add(self, data)

    monkeypatch.setattr(EntryChecksum, "add", counted)
    return done


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_an_entry_is_checked_once_and_not_served_any_more_when_its_file_is_damaged(
    own: bool, in_memory: bool, tmp_path: Path, checks: list[int]
) -> None:
    checked = CheckedSegments(64 * MB, in_memory=in_memory)
    with EntryStore(tmp_path, max_bytes=64 * MB, checked=checked) as store:
        fill(store)
        checks.clear()
        for _ in range(3):
            assert all(store.get(key, own=own) == entry(number) for number, key in enumerate(KEYS))
        assert checks == [SIZE] * len(KEYS)
        (place,) = (place for place in store.locations() if place.key == "key-2")
        overwrite(place.path, place.start + 1000, entry(2)[1000] ^ 1)
        assert store.get("key-2", own=own) is None and "damaged" in store.last_error and "key-2" not in store
        assert store.get("key-3", own=own) == entry(3)


def test_what_the_system_took_out_of_memory_or_brought_back_with_another_entry_is_checked_again(
    store: EntryStore, checks: list[int]
) -> None:
    for key in KEYS:
        store.get(key, own=False)
    (held,) = store._checked._held.values()
    held.memory.madvise(mmap.MADV_DONTNEED)
    checks.clear()
    assert store.get("key-0", own=False) == entry(0) and checks == [SIZE]
    for key in KEYS:
        store.get(key, own=False)
    checks.clear()
    places = {place.key: place for place in store.locations()}
    # The last page of the first entry, in which the next one begins, and 15 pages before it, which come with it.
    edge = places["key-1"].start // mmap.PAGESIZE * mmap.PAGESIZE
    last_in_block = (edge // (64 << 10)) * (64 << 10)
    held.memory.madvise(mmap.MADV_DONTNEED, last_in_block, edge + mmap.PAGESIZE - last_in_block)
    assert not held.is_in_memory(places["key-0"].start, SIZE) and not held.is_in_memory(places["key-1"].start, SIZE)
    assert held.is_in_memory(places["key-2"].start, SIZE)
    for key in ("key-1", "key-0", "key-2"):
        assert store.get(key, own=False) == entry(int(key[-1]))
    assert checks == [SIZE, SIZE], "the third one has stayed"


def test_a_page_that_is_written_into_is_nobody_elses(store: EntryStore) -> None:
    for _ in range(2):
        data = store.get("key-1")
        assert isinstance(data, memoryview) and data == entry(1)
        data[5] ^= 0xFF
        read = store.get("key-1", own=False)
        assert isinstance(read, memoryview) and read.readonly and read == entry(1)


def test_what_is_removed_is_let_go_of_by_whoever_has_mapped_it(store: EntryStore) -> None:
    with EntryStore(store.folder, max_bytes=64 * MB) as other:
        for remove in (other.remove, store.remove):
            assert store.get("key-0", own=False) is not None and mapped(store.folder) == 1
            remove()
            assert store.get("key-1", own=False) is None
            assert mapped(store.folder) == 0
            fill(store)


def test_no_more_is_held_than_it_may_be(tmp_path: Path, checks: list[int]) -> None:
    """The first entries that came stay; of segments in which little was checked no more is mapped than twice that."""
    with EntryStore(tmp_path / "store", max_bytes=64 * MB, checked=CheckedSegments(2 * SIZE)) as store:
        fill(store)
        checks.clear()
        for _ in range(3):
            assert all(store.get(key, own=False) == entry(number) for number, key in enumerate(KEYS))
        assert len(checks) == 2 + 3 * 2 and store._checked.nbytes == 2 * SIZE
    held = CheckedSegments(10 * SIZE)
    for number, path in enumerate(segment_files(tmp_path, 4, 10 * SIZE)):
        data = held.entry(path, 0, SIZE, EntryChecksum.of(entry(number)))
        assert (data is not None) == (number < 2)
    assert held.mapped_bytes == 20 * SIZE and held.nbytes == 2 * SIZE


def segment_files(folder: Path, count: int, nbytes: int) -> list[str]:
    files = [folder / f"{number}.segment" for number in range(count)]
    for number, file in enumerate(files):
        file.write_bytes(entry(number) + bytes(nbytes - SIZE))
    settle_files(folder / "tick", files)
    return [str(file) for file in files]


@pytest.mark.parametrize("own", [False, True])
def test_a_file_that_is_cut_off_while_it_is_mapped_is_damaged(
    own: bool, store: EntryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,), real = segments(store), mmap.mmap

    def cut(fd: int, nbytes: int, **options: int) -> mmap.mmap:
        if fd != -1:
            os.truncate(path, 1000)
        return real(fd, nbytes, **options)

    monkeypatch.setattr(mmap, "mmap", cut)
    assert store.get("key-0", own=own) is None and "damaged" in store.last_error


def test_what_has_gone_into_memory_is_held_there_alone(tmp_path: Path, checks: list[int]) -> None:
    with contextlib.closing(
        TieredStore(tmp_path / "disk", max_bytes=64 * MB, memory=tmp_path / "memory", memory_bytes=64 * MB)
    ) as store:
        fill(store.disk)
        assert all(store.get(key, own=False) == entry(number) for number, key in enumerate(KEYS))
        assert store.disk._checked.nbytes == 0 and store.memory is not None
        settle(store.memory)
        for _ in range(2):
            checks.clear()
            assert all(store.get(key, own=False) == entry(number) for number, key in enumerate(KEYS))
        assert checks == [] and store.memory._checked.nbytes == len(KEYS) * SIZE


@pytest.mark.parametrize("tells", [False, True])
def test_where_nothing_is_told_of_pages_or_maps_are_limited_each_read_is_checked(
    tells: bool, store: EntryStore, checks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if tells:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 46 if hard == resource.RLIM_INFINITY else hard, hard))
    else:
        monkeypatch.setattr(checked_segments, "PAGE_TABLE", "/nowhere")
    try:
        for _ in range(2):
            assert store.get("key-0", own=False) == entry(0)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert checks == [SIZE, SIZE] and store._checked.mapped_bytes == 0


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


def test_an_entry_of_many_parts_is_written_and_checked_as_a_whole(tmp_path: Path) -> None:
    dice = random.Random(2)
    parts = [dice.randbytes(dice.randrange(200)) for _ in range(3 * MOST_PARTS + 7)]
    data, writer = b"".join(parts), SegmentWriter(tmp_path, "one.segment")
    for _ in range(2):
        start, checksum = writer.append(parts)
        assert read_entry(tmp_path / "one.segment", start, len(data)) == data
        assert checksum == EntryChecksum.of(data) != EntryChecksum.of(data[:-1] + bytes([data[-1] ^ 1]))
    writer.close()
