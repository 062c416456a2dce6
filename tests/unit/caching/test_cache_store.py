"""The store of cached entries: whole or not there, whatever happens to the disk and to those who share it."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.cache import EvictionPolicy
from pecan_ray.cache.eviction import UNUSED_S
from pecan_ray.caching import segments as segments_module
from pecan_ray.caching.checked_segments import CheckedSegments
from pecan_ray.caching.store import EntryStore
from pecan_ray.caching.store_index import FORMAT_VERSION
from pecan_ray.errors import CacheError, PlanError
from tests.long_form import examples

MB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store(folder: Path) -> Iterator[EntryStore]:
    with EntryStore(folder, max_bytes=64 * MB) as opened:
        yield opened


def entry(number: int, nbytes: int = 1000) -> bytes:
    return bytes((number + place) % 256 for place in range(256)) * (nbytes // 256) + bytes(nbytes % 256)


def put(store: EntryStore, number: int, nbytes: int = 1000, *, kind: str = "plan", seconds: float = 1.0) -> bool:
    return store.put(f"key-{number}", kind, [entry(number, nbytes)], elements=10, seconds=seconds)


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "segments").iterdir())


def test_what_was_put_comes_back_also_to_others_of_the_same_user(store: EntryStore, folder: Path) -> None:
    for number in range(20):
        assert put(store, number, 1000 * (number + 1))
    before = store.nbytes
    assert put(store, 1) and store.nbytes == before, "what is there is not written again"
    assert store.get("key-20") is None
    with EntryStore(folder, max_bytes=64 * MB) as other:
        for number in range(20):
            assert other.get(f"key-{number}") == entry(number, 1000 * (number + 1))
    assert len(segments(folder)) == 1, "small entries share a file"
    for path in [folder / "segments", *segments(folder), folder / "index.sqlite"]:
        assert path.stat().st_mode & 0o077 == 0, path
    assert store.put("parts", "plan", [b"one", b"", b"two"], elements=2, seconds=0.1)
    assert store.put("empty", "plan", [], elements=0, seconds=0.1)
    assert (store.get("parts"), store.get("empty"), store.last_error) == (b"onetwo", b"", "")
    assert not put(store, 21, 65 * MB) and "does not fit" in store.last_error and store.get("key-0") is not None


@pytest.mark.parametrize("size", [5000, 500_000])  # one is read, the other one mapped
@pytest.mark.parametrize("damage", ["flip", "zero", "cut", "remove", "empty"])
def test_a_damaged_entry_is_dropped_and_never_served(damage: str, size: int, store: EntryStore, folder: Path) -> None:
    put(store, 1, size)
    put(store, 2, size)
    (path,) = segments(folder)
    data = path.read_bytes()
    left = {
        "flip": data[: size // 2] + bytes([data[size // 2] ^ 1]) + data[size // 2 + 1 :],
        "zero": data[:1000] + bytes(1000) + data[2000:],
        "cut": data[: size // 2],
        "empty": b"",
    }
    path.unlink() if damage == "remove" else path.write_bytes(left[damage])
    with EntryStore(folder, max_bytes=64 * MB) as other:
        assert other.get("key-1") is None and "key-1" not in other, "it is dropped, and computed again"
        assert (other.get("key-2") == entry(2, size)) == (damage in ("flip", "zero"))
        assert put(other, 1, size) and other.get("key-1") == entry(1, size)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("kind", ["pipe", "link", "device", "folder"])
def test_what_is_no_file_is_not_read_and_not_waited_for(kind: str, own: bool, folder: Path) -> None:
    with EntryStore(folder, max_bytes=64 * MB, checked=CheckedSegments(MB)) as store:
        put(store, 1, 100_000)
        (path,) = segments(folder)
        path.rename(folder / "elsewhere")
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to("/dev/zero" if kind == "device" else folder / "elsewhere")
        assert store.get("key-1", own=own) is None and path.name in store.last_error
    with EntryStore(folder, max_bytes=64 * MB) as store:
        assert put(store, 1) and store.get("key-1", own=own) == entry(1) and store.remove() == 1


COLUMNS = {
    "entries": ("key", "kind", "segment", "start", "nbytes", "elements", "seconds", "checksum"),
    "segments": ("name", "nbytes", "last_used"),
}
LIES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.binary(max_size=4),
    st.text(max_size=4),
    st.sampled_from(["../../elsewhere", "0123456789abcdef.segment"]),
)
OF_THE_INDEX = st.sampled_from([(table, column) for table, columns in COLUMNS.items() for column in columns])


@examples(40)
@given(st.lists(st.tuples(OF_THE_INDEX, LIES), min_size=1, max_size=4), st.booleans())
def test_an_index_that_lies_costs_entries_and_no_more(lies: list[Any], reopened: bool) -> None:
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path, "cache")
        Path(path, "elsewhere").touch()
        store = EntryStore(folder, max_bytes=MB, segment_bytes=MB // 16)
        for number in range(12):
            put(store, number, 30_000, kind=f"plan-{number % 2}")
        with contextlib.closing(sqlite3.connect(folder / "index.sqlite")) as index, index:
            for (table, column), value in lies:
                some = "WHERE key < 'key-5'" if table == "entries" else ""
                with contextlib.suppress(sqlite3.IntegrityError):  # NULL, as which NaN is kept
                    index.execute(f"UPDATE OR REPLACE {table} SET {column} = ? {some}", (value,))
        if reopened:
            store.close()
            store = EntryStore(folder, max_bytes=MB, segment_bytes=MB // 16)
        for number in range(24):
            assert store.get(f"key-{number}") in (None, entry(number, 30_000))
            store.about(f"key-{number}")
            put(store, number, 30_000, kind=f"plan-{number % 2}")
        store.bound({"plan-0": MB // 4})
        assert store.nbytes >= 0 and store.sizes() is not None and len(store.locations()) <= 36
        store.verify()
        store.remove()
        store.close()
        assert Path(path, "elsewhere").exists(), "what an index names is removed only if it is a segment"


def test_an_entry_is_found_under_its_own_key_alone(store: EntryStore, folder: Path) -> None:
    put(store, 1)
    put(store, 2)
    with contextlib.closing(sqlite3.connect(folder / "index.sqlite")) as index, index:
        (start,) = index.execute("SELECT start FROM entries WHERE key = 'key-2'").fetchone()
        index.execute("UPDATE entries SET start = ? WHERE key = 'key-1'", (start,))
        index.execute("UPDATE entries SET checksum = (SELECT checksum FROM entries WHERE key = 'key-2')")
    assert store.get("key-1") is None and store.get("key-2") == entry(2)


@pytest.mark.parametrize("system", ["maps", "is older"])
def test_a_large_entry_stays_readable_when_its_segment_has_gone(
    system: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if system == "is older":
        monkeypatch.setattr(segments_module, "MADV_POPULATE_READ", 9999)
    with EntryStore(folder, max_bytes=8 * MB) as store:
        for number in range(3):
            assert put(store, number, 300_000)
        held = {number: store.get(f"key-{number}") for number in range(3)}
        assert {type(data) for data in held.values()} == {memoryview if system == "maps" else bytes}
        store.remove()
        assert segments(folder) == []
        assert all(data == entry(number, 300_000) for number, data in held.items())


@pytest.mark.parametrize("policy", ["benefit", "lru"])
def test_the_least_worth_goes_and_the_rest_fits(policy: EvictionPolicy, folder: Path) -> None:
    with EntryStore(folder, max_bytes=16 * MB, policy=policy) as store:
        for number in range(40):
            assert put(store, number, MB, seconds=5.0 if number < 8 else 1.0)
            assert store.nbytes <= 16 * MB
            assert store.get("key-0") is not None, "it saves most, and was used last"
        assert (store.get("key-7") is not None) == (policy == "benefit")
        assert store.get("key-39") is not None, "what this process writes into now stays"
        assert sum(path.stat().st_size for path in segments(folder)) == store.nbytes


def test_notes_are_found_by_their_beginnings_and_none_where_the_index_cannot_be_read(
    store: EntryStore, folder: Path
) -> None:
    for key in ("job a", "job b", "job c", "speed"):
        store.note(key, key.upper())
    store.forget_note("job c")
    assert store.notes("job ") == {"a": "JOB A", "b": "JOB B"} and store.read_note("speed") == "SPEED"
    with contextlib.closing(sqlite3.connect(folder / "index.sqlite")) as index, index:
        index.execute("DROP TABLE notes")
    assert store.notes("job ") == {} and store.read_note("speed") is None and "cannot be read" in store.last_error


def say_version(folder: Path, version: int) -> None:
    index = sqlite3.connect(folder / "index.sqlite")
    index.execute(f"PRAGMA user_version = {version}")
    index.close()


def test_an_index_of_a_newer_version_is_refused_and_left_alone_and_an_older_one_emptied(folder: Path) -> None:
    with EntryStore(folder, max_bytes=MB) as store:
        put(store, 1)
        store.note("speed", "slow")
    say_version(folder, FORMAT_VERSION + 1)
    before = (folder / "index.sqlite").read_bytes()
    with pytest.raises(CacheError, match=rf"format {FORMAT_VERSION + 1}.*use another folder"):
        EntryStore(folder, max_bytes=MB)
    assert (folder / "index.sqlite").read_bytes() == before
    say_version(folder, FORMAT_VERSION - 1)
    with EntryStore(folder, max_bytes=MB) as store:
        assert store.get("key-1") is None and store.read_note("speed") is None and not store.last_error
        assert segments(folder) == []
        assert put(store, 1) and store.get("key-1") == entry(1)


def test_an_index_that_is_no_database_is_put_aside(folder: Path) -> None:
    with EntryStore(folder, max_bytes=MB) as store:
        put(store, 1)
    (folder / "index.sqlite").write_bytes(b"no database, " * 1000)
    with EntryStore(folder, max_bytes=MB) as store:
        assert store.get("key-1") is None
        assert put(store, 2) and store.get("key-2") == entry(2)
    assert list(folder.glob("index.damaged-*"))
    assert len(segments(folder)) == 1, "nobody knows what lies in the other file"


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (Path("/proc/pecan"), tmp_path / "file" / "in" / "it"):
        with pytest.raises(CacheError, match=f"{path}.* cannot be opened"):
            EntryStore(path, max_bytes=MB)
    with pytest.raises(PlanError, match="max_bytes"):
        EntryStore(tmp_path, max_bytes=0)


def _fill_with_a_limit(folder: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with EntryStore(folder, max_bytes=64 * MB) as store:
        assert put(store, 0, MB)
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 * MB, most))
        kept = [put(store, number, MB) for number in range(1, 6)]
        assert kept[0] and not all(kept) and "could not be written" in store.last_error
        for number, there in enumerate([True, *kept]):
            found = store.get(f"key-{number}")
            assert (found == entry(number, MB)) if there else found is None
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        assert put(store, 9, 1000) and store.get("key-9") == entry(9)
    os._exit(0)


def test_a_disk_that_is_full_costs_what_does_not_fit(folder: Path) -> None:
    process = get_context("fork").Process(target=_fill_with_a_limit, args=(folder,))
    process.start()
    process.join()
    assert process.exitcode == 0


def _open(folder: Path) -> None:
    EntryStore(folder, max_bytes=16 * MB).close()


def test_processes_that_open_a_new_folder_at_once_all_get_it(tmp_path: Path) -> None:
    with get_context("fork").Pool(4) as processes:
        for number in range(25):
            processes.map(_open, [tmp_path / str(number)] * 4, chunksize=1)
            assert (tmp_path / str(number) / "index.sqlite").is_file()
    assert not list(tmp_path.glob("*/*.new-*"))


def _write(folder: Path, mine: int, is_killed: bool) -> None:
    store = EntryStore(folder, max_bytes=16 * MB)
    for number in range(40):
        key, size = (f"both-{number}", 3000) if number % 2 else (f"{mine}-{number}", 300_000)
        store.put(key, "plan", [entry(number, size)], elements=1, seconds=1.0)
        for back in (number, number // 2):
            for key in (f"both-{back}", f"{mine}-{back}", f"{1 - mine}-{back}"):
                found = store.get(key)
                assert found is None or found == entry(back, len(found)), (key, store.last_error)
    assert len(store.sizes()) == 1
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)


def test_several_processes_write_and_read_at_once_and_one_is_killed(folder: Path) -> None:
    writers = [
        get_context("fork").Process(target=_write, args=(folder, number % 2, number == 3)) for number in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0, -signal.SIGKILL]
    with EntryStore(folder, max_bytes=16 * MB) as store:
        whole, damaged = store.verify()
        assert whole > 20 and damaged == ()
        assert store.nbytes <= 16 * MB


def test_a_writer_that_was_killed_before_it_published_leaves_nothing(folder: Path) -> None:
    EntryStore(folder, max_bytes=MB).close()
    left = folder / "segments" / "0123456789abcdef.segment"
    left.write_bytes(b"half an entry")
    with EntryStore(folder, max_bytes=64 * MB) as store:
        assert not left.exists()
        put(store, 1, MB)
        with EntryStore(folder, max_bytes=64 * MB) as other:
            assert put(store, 2, MB) and other.get("key-2") == entry(2, MB), "one that is being written stays"


def kept(store: EntryStore) -> dict[str, int]:
    return {size.kind: size.nbytes for size in store.sizes()}


@pytest.mark.parametrize("policy", ["resident", "fifo", "benefit"])
def test_a_kind_takes_no_more_than_its_room_and_others_are_not_touched(folder: Path, policy: EvictionPolicy) -> None:
    with EntryStore(folder, max_bytes=64 * MB, policy=policy, by_kind=True) as store:
        for number in range(24):
            put(store, number, MB, kind=("a", "b", "other")[number % 3])
        assert kept(store) == {"a": 8 * MB, "b": 8 * MB, "other": 8 * MB}
        store.bound({"a": 4 * MB, "b": 20 * MB, "new": 0})
        for number in range(100, 160):
            put(store, number, MB, kind=("a", "b", "new")[number % 3])
        found = kept(store)
        assert MB <= found["a"] <= 4 * MB, "segments go as a whole"
        assert 16 * MB <= found["b"] <= 20 * MB
        assert "new" not in found
        store.bound(None)
        put(store, 200, MB, kind="new")
        assert kept(store)["new"] == MB
        assert store.last_error == ""


def hits(store: EntryStore, data: str, epochs: int) -> float:
    """Go over data of 200 entries in random orders; return which share was there in the last epoch."""
    here = 0
    for epoch in range(epochs):
        here = 0
        for number in random.Random(f"{data} {epoch}").sample(range(200), 200):
            if store.get(f"{data} {number}") is not None:
                here += 1
            else:
                store.put(f"{data} {number}", data, [bytes(1000)], elements=1, seconds=0.0)
    return here / 200


def test_what_has_room_is_found_in_each_epoch_and_gives_way_to_other_data_when_nobody_uses_it(folder: Path) -> None:
    before = random.getstate()
    random.seed(1)  # a full store lets in by chance what others must go for
    with EntryStore(folder, max_bytes=200 * 1024 // 2, policy="resident") as store:
        assert 0.4 <= hits(store, "old", 5) <= 0.55  # more reads than are noted in the index at a time
        assert hits(store, "new", 2) < 0.1
    for segment in segments(folder):
        os.utime(segment, times=(0.0, time.time() - UNUSED_S - 60))
    with EntryStore(folder, max_bytes=200 * 1024 // 2, policy="resident") as store:
        assert hits(store, "new", 3) > 0.4
        assert store.nbytes <= 200 * 1024 // 2
    random.setstate(before)
