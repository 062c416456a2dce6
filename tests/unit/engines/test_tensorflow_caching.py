"""Points behind the source at which the tensorflow engine keeps what splits give: values, positions, states."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray.cache_options import Cache
from pecan_ray.engines.contract import EngineOptions, Produced
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.engines.tensorflow import TensorFlowEngine
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.splits import OUTPUT_BITS, Lease
from tests.unit.engines.cache_rig import READS, Numbers, kept, sorted_numbers
from tests.unit.engines.engine_leases import ListedLeases, all_said, delivered, whole_leases


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Cache:
    """A folder, and nothing counted yet."""
    READS.clear()
    return Cache(tmp_path / "cache", 64 << 20)


def numbers(splits: int = 7, each: int = 5) -> PecanPipeline:
    return PecanPipeline(Numbers(splits, each), engine="tensorflow")


def run(plan: Plan, leases: Iterable[Lease] | None = None, **options: Any) -> list[Produced]:
    sources = list(plan.sources())
    engine = TensorFlowEngine(plan, sources, EngineOptions(**options), HeapSlots())
    with contextlib.closing(engine):
        return all_said(plan, ListedLeases(whole_leases(sources) if leases is None else leases), engine.batches)


def double(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "x": value["x"] * 2}


def drawn(value: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {**value, "r": tf.random.stateless_uniform((), rng)}


def columns(produced: list[Produced]) -> dict[str, tuple[Any, bytes]]:
    """Dtype and bytes of each column, in the order of its rows."""
    rows = [one for one in produced if one.rows]
    joined = {name: np.concatenate([np.atleast_1d(one.columns[name]) for one in rows]) for name in rows[0].columns}
    return {name: (column.dtype, column.tobytes()) for name, column in joined.items()}


PIPES = {
    "maps": lambda p: p.autocache().map(double).batch(4),
    "nothing behind": lambda p: p.autocache().batch(4),
    "filtered behind": lambda p: p.autocache().filter(lambda i: i % 2 > 0, on="i").batch(4),
    "random": lambda p: p.autocache().map(drawn).batch(4),
    "prefetched": lambda p: p.prefetch(2).autocache().map(double).batch(4),
    "elements": lambda p: p.autocache().map(double),
    "repeated": lambda p: p.autocache().map(double).batch(4).repeat(2),
    "two points": lambda p: p.autocache(name="kept").map(double).autocache(name="idle").batch(4),
}  # fmt: skip


@pytest.mark.parametrize("shape", PIPES)
def test_a_second_epoch_reads_nothing_and_gives_the_same_bits_and_positions(shape: str, cache: Cache) -> None:
    pipe = PIPES[shape](numbers())
    plan = kept(pipe, name="kept" if shape == "two points" else None)
    plain = run(pipe.plan, order="strict")
    reads = READS.copy()
    assert reads and not cache.folder.exists(), "a point at which nothing is kept costs nothing"
    for _ in range(3):
        made = run(plan, order="strict", cache=cache)
        assert columns(made) == columns(plain) and delivered(made) == delivered(plain)
    assert reads + reads >= READS, "the second epoch and the third one have read nothing"


@pytest.mark.parametrize("source", ["parquet", "texts"])
def test_columns_and_texts_of_files_come_out_of_entries_as_they_are_read(
    source: str, cache: Cache, tmp_path: Path
) -> None:
    if source == "texts":
        (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n" * 9)
        pipe = PecanPipeline(pecan.sources.TextLines(f"{tmp_path}/*.txt"), engine="tensorflow")
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = pa.table({"i": np.arange(40, dtype=np.int16), "f": np.arange(40.0), "s": [f"n{i}" for i in range(40)]})
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
        pipe = PecanPipeline(pecan.sources.Parquet(f"{tmp_path}/*.parquet"), engine="tensorflow")
    pipe = pipe.autocache().batch(3)
    plain = run(pipe.plan, order="strict")
    for _ in range(2):
        made = run(kept(pipe), order="strict", cache=cache)
        assert delivered(made) == delivered(plain)
        for one, other in zip(made, plain, strict=True):
            assert {name: np.asarray(column).dtype for name, column in one.columns.items()} == {
                name: np.asarray(column).dtype for name, column in other.columns.items()
            }
            assert all(np.array_equal(one.columns[name], other.columns[name]) for name in other.columns)


def test_what_a_state_has_left_of_a_split_comes_from_its_entry(cache: Cache) -> None:
    """A job that goes on in the middle of splits asks for the rest of each."""
    pipe = numbers().autocache().map(double).batch(4)
    rest = [
        replace(lease, spans=((2 << OUTPUT_BITS, 3 << OUTPUT_BITS), (4 << OUTPUT_BITS, 5 << OUTPUT_BITS)))
        for lease in whole_leases(list(pipe.plan.sources()))
    ]
    plain = run(pipe.plan, rest, order="strict")
    READS.clear()
    run(kept(pipe), rest, cache=cache)
    assert READS.total() == 7, "a part of a split makes no entry"
    run(kept(pipe), cache=cache)
    READS.clear()
    made = run(kept(pipe), rest, order="strict", cache=cache)
    assert not READS and columns(made) == columns(plain) and delivered(made) == delivered(plain)


def test_a_split_with_a_bad_element_makes_no_entry_and_the_element_is_told_in_each_epoch(cache: Cache) -> None:
    class Torn(Numbers):
        def read(self, split: Any, start: int = 0) -> Any:
            for value in super().read(split, start):
                yield {**value, "x": "torn"} if value["i"] == 12 else value

    plan = kept(PecanPipeline(Torn(), engine="tensorflow").autocache().map(double).batch(4))
    for _ in range(3):
        made = run(plan, cache=cache, on_error="skip")
        assert [bad.where for one in made for bad in one.bad] == ["element 2 of 2.bin"]
        assert sorted_numbers(made) == [i for i in range(35) if i != 12]
    assert Counter({2: 3, **dict.fromkeys((0, 1, 3, 4, 5, 6), 1)}) == READS


def test_files_are_fetched_as_long_as_they_are_not_kept(cache: Cache) -> None:
    plan = kept(numbers().autocache().batch(5))
    sources = list(plan.sources())
    engine = TensorFlowEngine(plan, sources, EngineOptions(cache=cache), HeapSlots())
    leases = whole_leases(sources)
    with contextlib.closing(engine):
        for wanted in (True, False):
            assert {engine.reads(0, lease.split) for lease in leases} == {wanted}
            all_said(plan, ListedLeases(leases), engine.batches)


def test_an_epoch_that_is_left_in_the_middle_keeps_whole_splits_alone(cache: Cache) -> None:
    plan = kept(numbers(40).autocache().batch(5))
    sources = list(plan.sources())
    engine = TensorFlowEngine(plan, sources, EngineOptions(cache=cache, order="strict"), HeapSlots())
    with contextlib.closing(engine):
        batches = engine.batches(ListedLeases(whole_leases(sources)))
        next(batches)
        batches.close()
    assert sorted_numbers(run(plan, cache=cache)) == list(range(200))
    READS.clear()
    assert sorted_numbers(run(plan, cache=cache)) == list(range(200)) and not READS
