"""Points at which the python engine keeps what splits give, whatever happens to the folder; and entries as bytes."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import pecan_ray as pecan
from pecan_ray.cache_options import Cache
from pecan_ray.caching.store import EntryStore
from pecan_ray.engines import caching
from pecan_ray.engines.contract import Produced
from pecan_ray.engines.entry_format import EntryReader, EntryWriter
from pecan_ray.engines.kept_elements import kept_tally
from pecan_ray.engines.plain import NotPlainError
from pecan_ray.errors import OpError, PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import OUTPUT_BITS, Lease
from tests.long_form import examples
from tests.unit.engines.cache_rig import CALLING, CALLS, READS, Numbers, double, kept, sorted_numbers
from tests.unit.engines.engine_leases import (
    FewSlots,
    ListedLeases,
    column,
    delivered,
    exact,
    run_engine,
    running,
    whole_leases,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Cache:
    """A folder, and nothing counted yet."""
    READS.clear()
    CALLS.clear()
    return Cache(tmp_path / "cache", 64 << 20)


def odd(value: dict[str, Any]) -> bool:
    return bool(value["i"] % 2)


def twice(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number in range(value["i"] % 4):
        yield {**value, "n": number}


def spoil(value: dict[str, Any]) -> dict[str, Any]:
    value["x"] += 1000  # in place, as users do
    return value


def labelled(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "text": f"number {value['i']}", "odd": value["i"] % 2 == 1, "half": value["i"] / 2, "b": b"x"}


def drawn(value: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**value, "r": rng.random()}


def flat(produced: list[Produced]) -> dict[str, list[Any]]:
    names = produced[0].columns
    return {
        name: np.concatenate([one.columns[name] for one in produced if one.rows], axis=None).tolist() for name in names
    }


PIPES = {
    "maps": lambda p: p.map(double).autocache().map(spoil).batch(4),
    "nothing behind": lambda p: p.map(double).autocache().batch(4),
    "filters": lambda p: p.filter(odd).map(double).autocache().filter(odd).batch(4),
    "several outputs": lambda p: p.flat_map(twice).autocache().flat_map(twice, name="again").batch(4),
    "splits without elements": lambda p: p.filter(lambda v: v["i"] >= 20, name="late").autocache().batch(4),
    "nothing behind texts": lambda p: p.map(labelled).autocache().batch(4),
    "two points": lambda p: p.autocache(name="idle").map(double).autocache(name="kept").map(spoil).batch(4),
    "shuffled": lambda p: p.map(double).autocache().shuffle(9).batch(4),
    "taken": lambda p: p.map(double).autocache().take(17).batch(4),
    "random": lambda p: p.map(double).autocache().map(drawn).batch(4),
    "nothing before": lambda p: p.autocache().map(spoil).batch(4),
    "nothing behind filters": lambda p: p.filter(odd).autocache().batch(4),
    "elements": lambda p: p.map(double).autocache().map(spoil),
    "padded": lambda p: p.map(double).autocache().padded_batch(4),
    "repeated": lambda p: p.map(double).autocache().batch(4).repeat(2),
    "prefetched": lambda p: p.map(double).autocache().prefetch(3).map(spoil).batch(4),
}  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", PIPES)
def test_what_is_kept_is_what_would_have_been_computed(shape: str, threads: int, cache: Cache) -> None:
    pipe = PIPES[shape](pecan.PecanPipeline(Numbers()))
    plan = kept(pipe, name="kept" if shape == "two points" else None)
    plain = run_engine(pipe, threads=threads, order="strict")
    reads, calls = READS.copy(), CALLS.copy()
    assert reads and not cache.folder.exists(), "a point at which nothing is kept costs nothing"
    accumulators = [kept_tally.sums]
    for _ in range(2):
        made = run_engine(plan, threads=threads, order="strict", cache=cache)
        accumulators.append(kept_tally.sums)
        assert shape == "taken" or delivered(made) == delivered(plain)
        assert flat(made) == flat(plain)
    again = READS - reads - reads
    if shape == "taken":  # what it has read ahead, and not gone through, is not kept
        assert again.keys() <= {3, 4, 5, 6}
        return
    assert not again, "the second pass has read nothing"
    assert CALLS["double"] <= 2 * calls["double"]
    if shape in ("maps", "nothing behind", "shuffled"):
        counts = [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(accumulators)]
        assert counts == [(0, 35), (35, 0)], "what is computed is told from what comes out of the cache"


@given(
    spans=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=6),
    threads=st.integers(1, 3),
    shape=st.sampled_from(["several outputs, drawn behind", "several outputs as rows", "filtered as rows"]),
)
@examples(120)
def test_parts_of_a_split_come_from_its_entry(spans: list[tuple[int, int]], threads: int, shape: str) -> None:
    start = pecan.PecanPipeline(Numbers(1))
    pipe = (start.filter(odd) if shape == "filtered as rows" else start.flat_map(twice)).autocache()
    pipe = (pipe.map(drawn) if "drawn" in shape else pipe).batch(3)
    unit, at, asked = 1 << (OUTPUT_BITS - 3), 0, []
    for gap, size in spans:
        asked.append(((at + gap) * unit, (at + gap + size) * unit))
        at += gap + size + 1
    lease = Lease(0, next(Numbers(1).splits()), tuple(asked))
    computed = run_engine(pipe, [lease], threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(folder, 64 << 20)
        whole = rows_of(run_engine(kept(pipe), cache=cache))
        READS.clear()
        read = run_engine(kept(pipe), [lease], threads=threads, cache=cache)
    assert not READS and delivered(read) == delivered(computed)
    assert rows_of(read) == rows_of(computed) and set(rows_of(read)) <= set(whole)


def rows_of(produced: list[Produced]) -> list[tuple[Any, ...]]:
    names = [name for name in ("i", "n", "r") if any(name in one.columns for one in produced)]
    return sorted(zip(*(column(produced, name) for name in names), strict=True))


def test_batches_of_one_entry_and_of_several_get_by_with_two_slots(cache: Cache) -> None:
    plan = kept(pecan.PecanPipeline(Numbers(20)).autocache().batch(2))
    leases = whole_leases(list(plan.sources()))
    for pass_, wanted in enumerate([True, False]):
        seen = list[int]()
        with running(plan, slots=FewSlots(2), threads=3, cache=cache) as (engine, batches):
            assert {engine.reads(0, lease.split) for lease in leases} == {wanted}, f"files are fetched in pass {pass_}"
            for one in batches:
                seen += one.columns["i"].tolist() if one.rows else []
                if one.slot is not None:
                    one.slot.release()
        assert sorted(seen) == list(range(100))


def test_a_part_of_a_split_makes_no_entry_and_other_keys_and_versions_of_a_file_have_others(cache: Cache) -> None:
    plan = kept(pecan.PecanPipeline(Numbers(1)).map(double).autocache().batch(2))
    split = next(Numbers(1).splits())
    for lease, reads in ((Lease(0, split, ((0, 3 << OUTPUT_BITS),)), 1), (Lease(0, split), 2), (Lease(1, split), 2)):
        found = sorted_numbers(run_engine(plan, [lease], cache=cache))
        assert (found, READS[0]) == ([0, 1, 2, 3, 4][: 3 if reads == 1 else 5], reads)
    for key, version, computed in (("a", "1", 7), ("a", "1", 0), ("b", "1", 7), ("a", "2", 7), ("b", "1", 0)):
        READS.clear()
        run_engine(kept(pecan.PecanPipeline(Numbers(version=version)).autocache().batch(4), key), cache=cache)
        assert READS.total() == computed


def test_a_split_with_a_bad_element_makes_no_entry_and_the_element_is_told_in_each_epoch(cache: Cache) -> None:
    def fails(value: dict[str, Any]) -> dict[str, Any]:
        if value["i"] == 12:
            raise ValueError("twelve")
        return value

    plan = kept(pecan.PecanPipeline(Numbers()).map(fails).autocache().batch(4))
    for _ in range(3):
        made = run_engine(plan, cache=cache, on_error="skip")
        assert [bad.where for one in made for bad in one.bad] == ["element 2 of 2.bin"]
        assert sorted_numbers(made) == [i for i in range(35) if i != 12]
    assert Counter({2: 3, **dict.fromkeys((0, 1, 3, 4, 5, 6), 1)}) == READS
    with pytest.raises(OpError, match="twelve"):
        run_engine(plan, cache=cache)


def test_what_cannot_be_kept_is_computed_in_each_epoch_and_said_once(
    cache: Cache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_own(value: dict[str, Any]) -> dict[str, Any]:
        return {**value, "own": threading.Lock()}

    own = pecan.PecanPipeline(Numbers()).map(of_own).autocache().map(lambda v: {"i": v["i"]}, name="without").batch(4)
    plain = kept(pecan.PecanPipeline(Numbers()).autocache().batch(4))
    usual = caching.MOST_ENTRY_BYTES
    for plan, folder, most in ((kept(own), cache, usual), (plain, Cache("/proc/nowhere"), usual), (plain, cache, 40)):
        monkeypatch.setattr(caching, "MOST_ENTRY_BYTES", most)
        READS.clear()
        for _ in range(2):
            assert sorted_numbers(run_engine(plan, cache=folder)) == list(range(35))
        assert READS[0] == 2
    said = Counter(record.message for record in caplog.records if record.name == "pecan_ray.cache")
    of_kinds, nowhere, large = said
    assert set(said.values()) == {2}, "once in each pass"
    assert "column 'own', which holds a" in of_kinds and "computed in each epoch" in of_kinds
    assert "nothing is kept" in nowhere and "a split gives more than" in large


def test_a_damaged_entry_is_computed_again(cache: Cache) -> None:
    plan = kept(pecan.PecanPipeline(Numbers()).map(double).autocache().batch(4))
    first = run_engine(plan, cache=cache, order="strict")
    (segment,) = (cache.folder / "segments").iterdir()
    data = bytearray(segment.read_bytes())
    data[::1500] = bytes(byte ^ 0xFF for byte in data[::1500])
    segment.write_bytes(data)
    for _ in range(2):
        assert flat(run_engine(plan, cache=cache, order="strict")) == flat(first)
    assert max(READS.values()) == 2, "the second pass has mended it"


def test_a_point_behind_what_is_not_of_one_split_and_a_version_or_a_share_that_is_none_are_refused() -> None:
    pipe, no_text = pecan.PecanPipeline(Numbers()).map(double), cast(Any, 3)
    for before in ("batch", "shuffle", "take", "repeat"):
        with pytest.raises(PlanError, match=f"autocache: it stands behind {before}"):
            getattr(pipe, before)(2).autocache()
    with pytest.raises(PlanError, match="version"):
        pipe.autocache(version=no_text)
    for bad in (-0.1, 1, True, cast(Any, "a fifth"), float("nan")):
        with pytest.raises(PlanError, match=r"refresh=...\) must be a share"):
            pipe.autocache(refresh=bad)


def test_a_share_of_the_splits_is_computed_again_in_each_epoch_and_kept_anew(cache: Cache) -> None:
    """Of what is random before a point, so much is new; the rest is what it was."""
    splits, each = 60, 3
    plan = kept(pecan.PecanPipeline(Numbers(splits, each)).map(drawn).autocache(refresh=0.25).batch(4))
    draws: list[dict[int, float]] = []
    renewed: list[frozenset[int]] = []
    for epoch in range(4):
        leases = ListedLeases(whole_leases(list(plan.sources()), epoch=epoch))
        READS.clear()
        made = run_engine(plan, leases, cache=cache)
        assert delivered(made) == leases.target()
        draws.append(dict(rows_of(made)))
        renewed.append(frozenset(+READS))
    assert len(renewed[0]) == splits and all(5 <= len(again) <= 25 for again in renewed[1:])
    assert len(set(renewed[1:])) == 3, "each epoch renews others"
    for before, after, again in zip(draws, draws[1:], renewed[1:], strict=False):
        assert {i // each for i in before if before[i] != after[i]} == again
    with EntryStore(cache.folder, max_bytes=cache.max_bytes) as store:
        assert store.verify() == (splits, ())


@pytest.mark.parametrize("written", ["lines.new", "lines.txt"])
def test_a_local_file_of_the_same_time_and_size_has_another_entry_when_it_was_changed(
    cache: Cache, tmp_path: Path, written: str
) -> None:
    file, target = tmp_path / "lines.txt", tmp_path / written
    file.write_text("first")
    plan = kept(PecanPipeline(pecan.sources.TextLines(str(file))).autocache().batch(1))
    before = kept_tally.sums[0]
    assert [column(run_engine(plan, cache=cache), "text") for _ in range(2)] == [["first"]] * 2
    assert kept_tally.sums[0] > before
    status = file.stat()
    target.write_text("other")
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    target.replace(file)
    assert column(run_engine(plan, cache=cache), "text") == ["other"]


def numbered(value: dict[str, Any]) -> dict[str, Any]:
    with CALLING:
        CALLS[f"element {value['i']}"] += 1
    return value


@pytest.mark.parametrize(("taken", "whole"), [(35, 30), (12, 10)])
def test_later_passes_of_a_repeat_take_what_the_first_one_kept(cache: Cache, taken: int, whole: int) -> None:
    plan = kept(PecanPipeline(Numbers()).map(numbered).autocache().take(taken).repeat(3))
    made = run_engine(plan, order="strict", cache=cache)
    assert [int(one.columns["i"]) for one in made if one.rows] == 3 * list(range(taken))
    # Of the split in which a pass ends nothing can be kept.
    assert [CALLS[f"element {number}"] for number in range(whole)] == [1] * whole


SPLITS, EACH = 12, 5
ALL = list(range(SPLITS * EACH))


def large(value: dict[str, Any]) -> dict[str, Any]:
    with CALLING:
        CALLS["large"] += 1
    return {**value, "x": np.full(20_000, value["i"], np.uint8)}


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
    assert delivered(found) == leases.target()
    columns = [one.columns for one in found if one.rows]
    assert all((x == i % 256).all() for each in columns for x, i in zip(each["x"], each["i"], strict=True))
    return sorted_numbers(found)


def remove(folder: Path) -> None:
    """Remove a folder into which somebody may write meanwhile."""
    shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}-removed")))


def overwrite_index(folder: Path) -> None:
    (folder / "index.sqlite").write_bytes(os.urandom(1 << 16))


def replace_segments(folder: Path) -> None:
    remove(folder / "segments")
    (folder / "segments").write_text("a file")


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("harm", [remove, overwrite_index, replace_segments])
def test_a_folder_that_is_harmed_in_the_middle_of_an_epoch_costs_nothing_but_time(
    filled: bool, harm: Callable[[Path], object], cache: Cache
) -> None:
    if filled:
        assert epoch(cache) == ALL
    assert epoch(cache, lambda: harm(cache.folder)) == ALL
    if harm is remove:
        assert epoch(cache) == ALL
        reads = READS.copy()
        assert epoch(cache) == ALL and reads == READS, "the next job has a folder again, and fills it"


def test_two_jobs_that_fill_the_same_folder_at_once_keep_each_entry_once(cache: Cache) -> None:
    """One goes through an epoch between two batches of the other one."""
    assert epoch(cache, lambda: epoch(cache)) == ALL
    with EntryStore(cache.folder, max_bytes=cache.max_bytes) as store:
        assert store.verify() == (SPLITS, ())
    CALLS.clear()
    assert epoch(cache) == ALL and not CALLS


WIDTH = 1 << OUTPUT_BITS


def there_and_back(*values: dict[str, Any], length: int | None = None) -> list[dict[str, Any]]:
    writer = EntryWriter()
    for number, value in enumerate(values):
        writer.add(number, 0, WIDTH, value)
    entry = EntryReader(b"".join(writer.finish(len(values) if length is None else length)))
    assert len(entry) == len(values)
    return [one.value for one in entry]


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
ARRAYS = arrays.arrays(
    st.sampled_from(["u1", "<i4", ">f4", "f8", "c8", "?", "M8[s]", "S3", "U2"]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
SCALARS = arrays.arrays(st.sampled_from(["u1", "f4", "?"]), ()).map(lambda array: array[()])
VALUES = PLAIN | ARRAYS | SCALARS | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(), PLAIN, max_size=2)


@given(rows=st.lists(st.fixed_dictionaries({"a": VALUES, "é b": VALUES}), max_size=6))
@examples(300)
def test_whatever_is_plain_comes_back_as_it_was(rows: list[dict[str, Any]]) -> None:
    assert exact(there_and_back(*rows)) == exact(rows)


SINGLE: list[Any] = [
    np.arange(6, dtype=np.float32).reshape(2, 3).T,
    np.zeros((0, 5), np.uint8),
    float("nan"),
    np.array([1.5, 2.5], ml_dtypes.bfloat16),
    np.array(["a", "bcd"], object),
    np.array([b"a", b""], object),
    2**70,
    "\ud800 surrogate",
    (1, [2, {"three": 3}]),
]
MIXED: list[list[Any]] = [
    [np.zeros(3, "f4"), np.zeros(3, "f8"), None, "a", 5, np.float32(2), 2**65, 7],
    [np.zeros(3, "f4"), None, np.ones(3, "f4")],
    [np.zeros((0, 2), "f4"), np.zeros((3, 1), "f4"), np.zeros((2, 2), "f4")],
    [5, "five", None, 2**65, True, 5.5],
    [True, None, False, True, 1],
    [b"1", None, b"", "1", b"\0"],
]


def test_a_column_of_one_type_or_of_several_keeps_each() -> None:
    for values in [*([value] * 2 for value in SINGLE), *MIXED]:
        rows = [{"x": value} for value in values]
        assert exact(there_and_back(*rows)) == exact(rows)


def test_arrays_are_copied_when_they_are_added_and_may_be_written_into_when_they_are_read() -> None:
    array = np.arange(5)
    writer = EntryWriter()
    writer.add(0, 0, WIDTH, {"x": array})
    array[:] = 9
    (one,) = EntryReader(b"".join(writer.finish(1)))
    assert one.value["x"].tolist() == [0, 1, 2, 3, 4]
    one.value["x"][0] = 7
    (again,) = EntryReader(b"".join(writer.finish(1)))
    assert again.value["x"][0] == 0


def test_origins_and_the_length_of_the_split_are_kept() -> None:
    writer, source_refs = EntryWriter(), [(3, 0, WIDTH // 2), (3, WIDTH // 2, WIDTH // 2), (7, 0, WIDTH)]
    for origin in source_refs:
        writer.add(*origin, {"x": 1})
    entry = EntryReader(b"".join(writer.finish(9)))
    assert entry.length == 9 and [(one.element, one.output, one.width) for one in entry] == source_refs
    assert list(EntryReader(b"".join(EntryWriter().finish(4)))) == []


class Own:
    pass


def test_what_is_not_plain_or_has_other_columns_is_refused_by_name() -> None:
    masked = np.ma.masked_array([1, 2], [False, True])
    for value in (Own(), [Own()], np.array([Own()], object), masked):
        with pytest.raises(NotPlainError, match="column 'x', which holds a"):
            there_and_back({"y": 1, "x": value})
    with pytest.raises(NotPlainError, match=r"\['b'\] and \['a'\]"):
        there_and_back({"a": 1}, {"b": 1})


def test_what_is_no_entry_is_a_value_error() -> None:
    writer, large = EntryWriter(), EntryWriter()
    for number in range(5):
        writer.add(number, 0, WIDTH, {"x": np.arange(number), "y": "text", "z": [number]})
    large.add(0, 0, WIDTH, {"x": np.zeros(100_000, np.uint8)})
    whole, head = b"".join(writer.finish(5)), b"".join(large.finish(1))
    for cut in range(0, len(whole) - 64, 7):
        with pytest.raises(ValueError, match=r"no entry|format|damaged"):
            EntryReader(whole[:cut])
    assert len(EntryReader(head)) == 1
    for entry in (b"something else", head[:0], head[:7], head[:100], head[:-60_000]):
        with pytest.raises(ValueError, match="no entry"):  # though one that begins alike was whole
            EntryReader(entry)


def test_entries_that_begin_alike_are_read_each_by_itself() -> None:
    first, second = np.arange(12, dtype=np.int16), np.arange(12, 24, dtype=np.int16)
    for one in (first, second, first):
        (value,) = there_and_back({"x": one, "name": f"{one[0]:4}", "even": bool(one[0] % 24)})
        assert np.array_equal(value["x"], one)
        assert value["name"] == f"{one[0]:4}"
        assert value["even"] is bool(one[0] % 24)
