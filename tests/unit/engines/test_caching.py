"""Points at which engines keep what splits give, whatever happens to the folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pecan_ray as pecan
from pecan_ray.cache_options import Cache
from pecan_ray.caching.store import EntryStore
from pecan_ray.engines import caching
from pecan_ray.engines.contract import Produced
from pecan_ray.errors import ElementError, PlanError
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import OUTPUT_BITS, Lease
from tests.long_form import examples
from tests.unit.engines.cache_rig import CALLING, CALLS, READS, Numbers, double, kept, sorted_numbers
from tests.unit.engines.engine_leases import (
    FewSlots,
    ListedLeases,
    column,
    delivered,
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


def drawn_in_graph(value: dict[str, Any], rng: Any) -> dict[str, Any]:
    import tensorflow as tf

    return {**value, "r": tf.random.stateless_uniform((), rng)}


def twice_in_graph(value: dict[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    count = value["i"] % 4
    return {"i": tf.fill([count], value["i"]), "n": tf.range(count)}


def named_in_graph(value: dict[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    return {**value, "text": tf.strings.as_string(value["i"]), "words": tf.strings.as_string(value["x"])}


def plus(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "x": value["x"] + 1}


def columns(produced: list[Produced]) -> dict[str, tuple[Any, list[Any]]]:
    """Dtype and values of each column, in the order of its rows."""
    rows = [one for one in produced if one.rows]
    joined = {name: np.concatenate([one.columns[name] for one in rows], axis=None) for name in rows[0].columns}
    return {name: (column.dtype, column.tolist()) for name, column in joined.items()}


PIPES: dict[EngineName, dict[str, Callable[[PecanPipeline], PecanPipeline]]] = {
    "python": {
        "maps": lambda p: p.map(double).autocache().map(spoil).batch(4),
        "nothing behind": lambda p: p.map(double).autocache().batch(4),
        "filters": lambda p: p.filter(odd).map(double).autocache().filter(odd).batch(4),
        "several outputs": lambda p: p.flat_map(twice).autocache().flat_map(twice, name="again").batch(4),
        "splits without elements": lambda p: p.filter(lambda v: v["i"] >= 20, name="late").autocache().batch(4),
        "nothing behind texts": lambda p: p.map(labelled).autocache().batch(4),
        "two points": lambda p: p.autocache(name="idle").map(double).autocache(name="kept").map(spoil).batch(4),
        "shuffled": lambda p: p.map(double).autocache().shuffle(9).batch(4),
        "random": lambda p: p.map(double).autocache().map(drawn).batch(4),
        "nothing before": lambda p: p.autocache().map(spoil).batch(4),
        "elements": lambda p: p.map(double).autocache().map(spoil),
        "padded": lambda p: p.map(double).autocache().padded_batch(4),
        "repeated": lambda p: p.map(double).autocache().batch(4).repeat(2),
        "prefetched": lambda p: p.map(double).autocache().prefetch(3).map(spoil).batch(4),
    },
    "tensorflow": {
        "maps": lambda p: p.autocache().map(plus).batch(4),
        "nothing behind": lambda p: p.autocache().batch(4),
        "filters": lambda p: p.autocache().filter(lambda i: i % 2 > 0, on="i").batch(4),
        "random": lambda p: p.autocache().map(drawn_in_graph).batch(4),
        "elements": lambda p: p.prefetch(2).autocache().map(plus),
        "repeated": lambda p: p.autocache().map(plus).batch(4).repeat(2),
        "two points": lambda p: p.autocache(name="kept").map(plus).autocache(name="idle").batch(4),
        "functions before": lambda p: p.map(plus).autocache().batch(4),
        "filters before": lambda p: p.filter(lambda i: i % 2 > 0, on="i").map(plus).autocache().batch(4),
        "shuffled": lambda p: p.map(plus).autocache().shuffle(9).batch(4),
        "several outputs": lambda p: p.flat_map(twice_in_graph).autocache().prefetch(2).padded_batch(4).repeat(2),
        "random before": lambda p: p.map(drawn_in_graph).autocache().batch(4),
        "elements of functions": lambda p: p.map(named_in_graph).autocache(),
    },
}
ENGINES = tuple(PIPES)
POINTS: dict[str, Callable[[Numbers], PecanPipeline]] = {
    "python": lambda numbers: PecanPipeline(numbers).autocache(),
    "tensorflow": lambda numbers: PecanPipeline(numbers, engine="tensorflow").autocache(),
    "behind a graph": lambda numbers: PecanPipeline(numbers, engine="tensorflow").map(plus).autocache(),
}


@pytest.mark.parametrize(("engine", "shape"), [(engine, shape) for engine in ENGINES for shape in PIPES[engine]])
def test_what_is_kept_is_what_would_have_been_computed_and_later_passes_read_nothing(
    engine: EngineName, shape: str, cache: Cache
) -> None:
    pipe = PIPES[engine][shape](PecanPipeline(Numbers(), engine=engine))
    plan = kept(pipe, name="kept" if shape == "two points" else None)
    plain = run_engine(pipe, threads=3, order="strict")
    reads, calls = READS.copy(), CALLS.copy()
    assert reads and not cache.folder.exists(), "a point at which nothing is kept costs nothing"
    for threads in (3, 1):
        made = run_engine(plan, engine=engine, threads=threads, order="strict", cache=cache)
        assert columns(made) == columns(plain) and delivered(made) == delivered(plain)
    assert reads + reads >= READS and CALLS["double"] <= 2 * calls["double"], "the second pass has read nothing"


def test_columns_and_texts_of_files_come_out_of_entries_as_a_graph_reads_them(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n" * 9)
    table = pa.table({"i": np.arange(40, dtype=np.int16), "f": np.arange(40.0), "s": [f"n{i}" for i in range(40)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    for source in (pecan.sources.TextLines(tmp_path / "a.txt"), pecan.sources.Parquet(tmp_path / "a.parquet")):
        pipe = PecanPipeline(source, engine="tensorflow").autocache().batch(3)
        plain = run_engine(pipe, order="strict")
        for _ in range(2):
            made = run_engine(kept(pipe), engine="tensorflow", order="strict", cache=cache)
            assert columns(made) == columns(plain) and delivered(made) == delivered(plain)


def test_ragged_tensors_of_a_graph_are_not_kept_which_is_said_and_changes_nothing(
    cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    def ragged(value: dict[str, Any]) -> dict[str, Any]:
        import tensorflow as tf

        return {"i": value["i"], "parts": tf.RaggedTensor.from_row_lengths(value["x"], [2, 1])}

    pipe = PecanPipeline(Numbers(), engine="tensorflow").map(ragged).autocache()
    plain = run_engine(pipe, order="strict")
    made = run_engine(kept(pipe), engine="tensorflow", order="strict", cache=cache)
    assert [int(one.columns["i"]) for one in made if one.rows] == list(range(35))
    assert delivered(made) == delivered(plain)
    assert "autocache: column 'parts' is a ragged or sparse tensor, so it is not kept" in caplog.text


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


@pytest.mark.parametrize("point", POINTS)
def test_batches_of_one_entry_and_of_several_get_by_with_two_slots(point: str, cache: Cache) -> None:
    pipe = POINTS[point](Numbers(20)).batch(2)
    plan = kept(pipe)
    leases = whole_leases(list(plan.sources()))
    for pass_, wanted in enumerate([True, False]):
        seen = list[int]()
        given = ListedLeases(leases)
        with running(plan, given, engine=pipe.engine, slots=FewSlots(2), threads=3, cache=cache) as (engine, batches):
            assert {engine.reads(0, lease.split) for lease in leases} == {wanted}, f"files are fetched in pass {pass_}"
            for one in batches:
                seen += one.columns["i"].tolist() if one.rows else []
                if one.slot is not None:
                    one.slot.release()
        assert sorted(seen) == list(range(100))


@pytest.mark.parametrize("point", POINTS)
def test_a_part_of_a_split_makes_no_entry_and_comes_from_that_of_the_whole(point: str, cache: Cache) -> None:
    """A job that goes on in the middle of splits asks for the rest of each."""
    pipe = POINTS[point](Numbers()).batch(4)
    engine = pipe.engine
    spans = ((2 << OUTPUT_BITS, 3 << OUTPUT_BITS), (4 << OUTPUT_BITS, 5 << OUTPUT_BITS))
    rest = [replace(lease, spans=spans) for lease in whole_leases(list(pipe.plan.sources()))]
    plain = run_engine(pipe, rest, order="strict")
    for leases, reads in ((rest, 7), (None, 7), (rest, 0)):
        READS.clear()
        made = run_engine(kept(pipe), leases, engine=engine, order="strict", cache=cache)
        assert READS.total() == reads
    assert columns(made) == columns(plain) and delivered(made) == delivered(plain)


def test_other_keys_and_versions_of_a_file_have_other_entries(cache: Cache) -> None:
    for key, version, computed in (("a", "1", 7), ("a", "1", 0), ("b", "1", 7), ("a", "2", 7), ("b", "1", 0)):
        READS.clear()
        run_engine(kept(pecan.PecanPipeline(Numbers(version=version)).autocache().batch(4), key), cache=cache)
        assert READS.total() == computed


def fails(value: dict[str, Any]) -> dict[str, Any]:
    if value["i"] == 12:
        raise ValueError("twelve")
    return value


def fails_in_graph(value: dict[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    return {**value, "x": tf.debugging.check_numerics(tf.where(value["i"] == 12, np.nan, value["x"]), "twelve")}


class Torn(Numbers):
    def read(self, split: Any, start: int = 0) -> Iterator[Any]:
        for value in super().read(split, start):
            yield {**value, "x": "torn"} if value["i"] == 12 else value


@pytest.mark.parametrize(
    "pipe",
    [
        PecanPipeline(Numbers()).map(fails).autocache().map(plus),
        PecanPipeline(Torn(), engine="tensorflow").autocache().map(plus),
        PecanPipeline(Numbers(), engine="tensorflow").map(fails_in_graph).autocache(),
    ],
    ids=["python", "tensorflow", "behind a graph"],
)
def test_a_split_with_a_bad_element_makes_no_entry_and_the_element_is_told_in_each_epoch(
    pipe: PecanPipeline, cache: Cache
) -> None:
    plan = kept(pipe.batch(4))
    for _ in range(3):
        made = run_engine(plan, engine=pipe.engine, cache=cache, on_error="skip")
        assert [bad.where for one in made for bad in one.bad] == ["element 2 of 2.bin"]
        assert sorted_numbers(made) == [i for i in range(35) if i != 12]
    others = {split: count for split, count in READS.items() if split != 2}
    assert READS[2] >= 3 and others == dict.fromkeys((0, 1, 3, 4, 5, 6), 1), "what a graph lost is read again"
    with pytest.raises(ElementError, match=r"element 2 of 2\.bin"):
        run_engine(plan, engine=pipe.engine, cache=cache)


@pytest.mark.parametrize("point", POINTS)
def test_an_epoch_that_is_left_in_the_middle_keeps_whole_splits_alone(point: str, cache: Cache) -> None:
    pipe = POINTS[point](Numbers(40)).batch(5)
    engine, plan = pipe.engine, kept(pipe)
    with running(plan, engine=engine, cache=cache, order="strict") as (_, batches):
        next(batches)
    assert sorted_numbers(run_engine(plan, engine=engine, cache=cache)) == list(range(200))
    READS.clear()
    assert sorted_numbers(run_engine(plan, engine=engine, cache=cache)) == list(range(200)) and not READS


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
    assert [column(run_engine(plan, cache=cache), "text") for _ in range(2)] == [["first"]] * 2
    assert [path for path in cache.folder.rglob("*") if path.is_file()], "what was read is kept"
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
