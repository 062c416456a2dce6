"""Sources that give columns: batches and operators make of them what they make of the same data row by row."""

from __future__ import annotations

import functools
import itertools
import operator
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet as pq

from pecan_ray import PecanPipeline
from pecan_ray.engines.contract import Produced
from pecan_ray.engines.python.columns import MOST_AHEAD, by_columns
from pecan_ray.engines.row_block import RowBlock
from pecan_ray.errors import BatchShapeError, SourceError
from pecan_ray.plan.columns_read import columns_read
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import (
    END,
    OUTPUT_BITS,
    ColumnarSource,
    Element,
    IndependentElements,
    Lease,
    LeaseKey,
    Source,
    Split,
)
from pecan_ray.sampling.spans import Spans
from pecan_ray.sources import Arrays, Csv, Items, Parquet
from tests.long_form import examples
from tests.ray.waiting import until
from tests.unit.engines.engine_leases import (
    ListedLeases,
    OwnSource,
    delivered,
    exact,
    run_engine,
    running,
    whole_leases,
)

ROWS = 90


class ByRows(OwnSource):
    def __init__(self, source: Source) -> None:
        self.source = source

    def splits(self) -> Iterator[Split]:
        return self.source.splits()

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        return self.source.read(split, start)

    def read_past_errors(self, split: Split, start: int = 0) -> Iterator[Element | SourceError]:
        source = self.source
        return (source.read_past_errors if isinstance(source, IndependentElements) else source.read)(split, start)


def table(rows: int = ROWS) -> pa.Table:
    """Rows with columns of all kinds that can be batched without conversion."""
    rng = np.random.default_rng(5)
    numbers = rng.integers(0, 100, rows)
    floats = [None if n % 7 == 0 else float(n) for n in numbers]
    return pa.table(
        {
            "n": pa.array(numbers, pa.int16()),
            "half": pa.array(numbers.astype(np.float16)),
            "holes": pa.array(floats, pa.float32()),
            "day": pa.array([None if n % 11 == 0 else int(n) for n in numbers], pa.date32()),
            "moment": pa.array(numbers, pa.timestamp("us", "UTC")),
            "text": pa.array([None if n % 5 == 0 else f"text {n}" for n in numbers]),
            "bytes": pa.array([bytes([n]) for n in numbers]),
            "word": pa.array([f"w{n % 4}" for n in numbers]).dictionary_encode(),
            "code": pa.array([int(n) % 4 for n in numbers]).dictionary_encode(),
            "even": pa.array([[float(n), None, 2.0] for n in numbers], pa.list_(pa.float32())),
            "fixed": pa.array([[n, n + 1] for n in numbers.tolist()], pa.list_(pa.int64(), 2)),
            "named": pa.array([[f"a{n}"] * 2 for n in numbers.tolist()]),
            "pair": pa.array([{"a": int(n), "b": None} for n in numbers]),
            "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(rows * 6).reshape(rows, 2, 3)),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    pq.write_table(table(), root / "rows.parquet", row_group_size=20)
    lines = [f"{n},{n / 4 if n % 3 else ''},{'true' if n % 2 else 'false'},t{n}" for n in range(ROWS)]
    (root / "rows.csv").write_text("\n".join(["n,x,flag,text", *lines]) + "\n")
    return root


def sources(folder: Path) -> dict[str, Source]:
    numbers = range(ROWS)
    objects = np.empty(ROWS, object)
    objects[:] = [f"object {n}" if n % 2 else None for n in numbers]
    arrays = {
        "image": np.arange(ROWS * 4, dtype=np.uint8).reshape(ROWS, 2, 2),
        "n": np.arange(ROWS, dtype=np.int32),
        "word": np.array([f"w{n}" for n in numbers]),
        "record": np.array([(n, n / 2) for n in numbers], [("a", "i4"), ("b", "f8")]),
        "object": objects,
        "big": np.arange(ROWS).astype(">i4"),
    }
    alike = [{"image": np.full((2, 2), n), "label": n, "n": np.int16(n), "file": b"%d" % n} for n in numbers]
    return {
        "parquet": Parquet(str(folder / "rows.parquet"), split_bytes=1, batch_rows=7),
        "parquet in one split": Parquet(str(folder / "rows.parquet"), batch_rows=13),
        "csv": Csv(str(folder / "rows.csv"), split_bytes=300),
        "arrays": Arrays(arrays, split_rows=17),
        "arrays in one split": Arrays(arrays, split_rows=ROWS),
        "items": Items(alike, split_rows=17),
    }


KINDS = ("parquet", "parquet in one split", "csv", "arrays", "arrays in one split", "items")
Build = Callable[[PecanPipeline], PecanPipeline]


def run(source: Source, build: Build, leases: list[Lease] | None = None, **options: Any) -> Any:
    """Return batches, the positions that they carry, bad elements, and the lengths of splits that were reported."""
    plan = build(PecanPipeline(source)).plan
    passes = plan_shape(plan).num_passes or 1
    listed = ListedLeases(whole_leases([source], num_passes=passes) if leases is None else leases)
    assert by_columns(plan, source) is None or not isinstance(source, ByRows)
    produced = run_engine(plan, listed, **options)
    batches = [(in_words(one.columns), one.rows, list(one.row_parts), one.partial) for one in produced if one.rows]
    spans = together(produced) if plan_shape(plan).serial else delivered(produced)
    bad = [(bad.where, bad.error, in_words(bad.element)) for one in produced for bad in one.bad]
    return batches, spans, bad, {} if plan_shape(plan).serial else listed.lengths  # who takes some reads ahead of them


def together(produced: list[Produced]) -> dict[LeaseKey, Spans]:
    """Return the positions of all batches: which of them carries what was filtered depends on the threads."""
    found: dict[LeaseKey, Spans] = {}
    for key, span in ((key, span) for one in produced for key, spans in one.spans.items() for span in spans):
        found.setdefault(key, Spans()).add(*span)
    return found


def in_words(columns: Any) -> Any:
    return None if columns is None else [(name, exact(values)) for name, values in sorted(columns.items())]


def both(source: Source, build: Build, leases: list[Lease] | None = None, **options: Any) -> Any:
    columns, rows = (run(one, build, leases, order="strict", **options) for one in (source, ByRows(source)))
    assert columns == rows
    return columns


spans_of_a_split = st.lists(st.integers(0, 30 << OUTPUT_BITS) | st.integers(0, 30), min_size=2, max_size=12).map(
    lambda bounds: sorted({b << OUTPUT_BITS if b <= 30 else b for b in bounds})
)


@examples(60)
@given(kind=st.sampled_from(KINDS), bounds=st.lists(spans_of_a_split, min_size=1, max_size=4), data=st.data())
def test_what_is_missing_of_splits_comes_as_from_rows_also_shuffled_and_filtered(
    folder: Path, kind: str, bounds: list[list[int]], data: st.DataObject
) -> None:
    """Leases begin in the middle, have holes, end within a split, behind it, or at its end; outputs may be missing."""
    source = sources(folder)[kind]
    leases = []
    for split, places in zip(source.splits(), bounds, strict=False):
        spans = list(zip(places[::2], places[1::2], strict=False))
        if data.draw(st.booleans()):
            spans.append((places[-1] + 1, END))
        if spans:
            leases.append(Lease(3, split, tuple(spans), pass_index=1))
    size, buffer = data.draw(st.sampled_from([1, 5, 12, ROWS + 1])), data.draw(st.integers(0, ROWS))
    both(source, lambda pipe: (pipe.shuffle(buffer).filter(is_odd, on="n") if buffer else pipe).batch(size), leases)


def failure(source: ColumnarSource, size: int = 4) -> str:
    """Return the error of a source, which is the same by columns and by rows."""
    found = []
    for one in (source, ByRows(source)):
        with pytest.raises((BatchShapeError, SourceError)) as caught:
            run_engine(PecanPipeline(one).batch(size))
        found.append((type(caught.value), str(caught.value), caught.value.fields))
    assert found[0] == found[1]
    return found[0][1]


NULLS: list[tuple[Any, str]] = [
    (pa.array([1, 2, 3, None, 5, 6]), "is a NoneType"),
    (pa.array([None, 2, 3]), "is int64[]"),
    (pa.array([[1, 2], [1, None]]), "is a list"),
    (pa.array([[1, 2]] * 3 + [[1, 2, 3]] * 3), "is int64[3]"),
]


def test_rows_that_are_bad_in_a_file_are_told_in_the_same_words(tmp_path: Path) -> None:
    path = str(tmp_path / "planted.parquet")
    for values, message in NULLS:
        pq.write_table(pa.table({"n": pa.array(range(len(values))), "planted": values}), path, row_group_size=6)
        assert message in failure(Parquet(path, batch_rows=3))
    pq.write_table(pa.table({"n": [1, 2, 3, 4, None, None, None, None, 9, 10]}), path)
    batches, *_ = both(Parquet(path, batch_rows=3), lambda pipe: pipe.batch(4))
    assert [columns[0][1][1].hasobject for columns, *_ in batches] == [False, True, False], "nulls alone are no error"
    lines = ["n", *(str(n) for n in range(33)), "x,y", *(str(n) for n in range(34, 40))]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    source = Csv(str(tmp_path / "rows.csv"))
    for size in (4, 50):
        assert "Element 33" in failure(source, size)
        batches, _, bad, lengths = both(source, operator.methodcaller("batch", size), on_error="skip")
        assert list(lengths.values()) == [40] and len(bad) == 1 and sum(rows for _, rows, *_ in batches) == 39


def test_reading_ahead_is_bounded_and_ends_when_the_batches_are_not_wanted() -> None:
    source = Arrays(n=np.arange(100_000), split_rows=10)
    leases = ListedLeases(whole_leases([source]))
    with running(PecanPipeline(source).batch(10), leases, threads=2) as (_, batches):
        next(batches)
        until(lambda: len(leases.lengths) >= MOST_AHEAD - 2, "nothing is read ahead")
        for _ in range(20):
            next(batches)
        assert len(leases.lengths) < 21 + MOST_AHEAD + 4
        readers = [thread for thread in threading.enumerate() if thread.name == "pecan-read"]
        batches.close()
        until(lambda: not any(thread.is_alive() for thread in readers), "a thread still reads")


def is_odd(value: Any) -> bool:
    return bool(value % 2)


def emptied(element: Element) -> bool:
    element["n"] = -1
    return True


ROW_STEPS: dict[str, Callable[[PecanPipeline, int], PecanPipeline]] = {
    "shuffle": lambda pipe, n: pipe.shuffle(n),
    "take": lambda pipe, n: pipe.take(n),
    "skip": lambda pipe, n: pipe.skip(n // 4),
    "repeat": lambda pipe, n: pipe.repeat(1 + n % 3),
    "odd": lambda pipe, n: pipe.filter(is_odd, on="n"),
    "prefetch": lambda pipe, n: pipe.prefetch(n),
}
STEPS: dict[str, Build] = {
    "add": lambda pipe: pipe.map(lambda value: value + 1, on="n"),
    "odd": lambda pipe: pipe.filter(is_odd, on="n", name="odd ones"),
    "draw": lambda pipe: pipe.map(lambda value, rng, epoch: int(value + rng.integers(1000) + epoch), on="n"),
    "double": lambda pipe: pipe.map(lambda element: {**element, "twice": np.arange(2)}, name="double"),
    "part": lambda pipe: pipe.filter(lambda element: element["n"] % 3 > 0, name="third"),
    "drawn": lambda pipe: pipe.filter(lambda element, rng: bool(element["n"] % 2 or rng.integers(3)), name="drawn"),
    "empty": lambda pipe: pipe.filter(emptied),
    "pick": lambda pipe: pipe.map(lambda element: {"m": 3, "n": element["n"] * 2}, name="pick"),
    "list": lambda pipe: pipe.map(lambda e: {"n": e["n"], "l": [1]} if e["n"] % 5 else {"n": 0, "l": []}, name="list"),
}


@examples(300)
@given(
    kind=st.sampled_from(KINDS),
    rows=st.lists(st.tuples(st.sampled_from(sorted(ROW_STEPS)), st.integers(1, ROWS + 5)), max_size=4),
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=3, unique=True),
    size=st.integers(1, ROWS + 5),
    threads=st.sampled_from([1, 3]),
    joined=st.booleans(),
)
def test_random_pipelines_give_what_they_give_row_by_row(
    folder: Path, kind: str, rows: list[tuple[str, int]], steps: list[str], size: int, threads: int, joined: bool
) -> None:
    """`joined`: by the trainer, which is told where each row comes from, as behind a filter and not a shuffle."""
    if not joined:
        steps = [name for name in steps if name != "list"]  # its elements differ, and only joined rows are cut there

    def build(pipe: PecanPipeline) -> PecanPipeline:
        for name, count in () if joined else rows:
            pipe = ROW_STEPS[name](pipe, count)
        for name in steps:
            pipe = STEPS[name](pipe)
        return pipe.batch(size)

    source = sources(folder)[kind]
    leases = [replace(one, place=one.split.index) for one in whole_leases([source])] if joined else None
    both(source, build, leases, threads=threads, seed=size)


def read_otherwise(element: Element) -> Any:
    element["a"] += 1
    return element["a"]


@pytest.mark.parametrize(
    ("fn", "columns"),
    [
        (lambda e: e["a"] > 1 and (e["b"] or not e["a"]), ("a", "b")),
        (lambda e, rng: {"x": e["a"][0], "y": f"{e['b']}"}, ("a", "b")),
        (functools.partial(lambda e, least: e["a"] > least, least=3), ("a",)),
        (lambda e: True, ()),
        *(
            (fn, None)
            for fn in (read_otherwise, len, lambda e: {**e, "a": 1}, lambda e: e.get("a"), lambda e: "a" in e)
        ),
        *((fn, None) for fn in (lambda e: [e[name] for name in "ab"], lambda e: locals()["e"], lambda *e: e[0]["a"])),
    ],
)
def test_columns_that_a_function_reads_are_known_if_it_does_nothing_else(fn: Any, columns: Any) -> None:
    assert columns_read(fn) == columns


def test_nothing_is_read_row_by_row() -> None:
    class ColumnsAlone(Arrays):
        def read(self, split: Split, start: int = 0) -> Iterator[Element]:
            raise AssertionError("a row was asked for")

    source = ColumnsAlone(n=np.arange(100_000), x=np.ones((100_000, 2)))
    pipe = PecanPipeline(source).shuffle(1000).filter(is_odd, on="n").map(lambda n: n + 1, on="n")
    pipe = pipe.filter(lambda element: element["n"] >= 0).batch(64)
    produced = run_engine(pipe.plan, ListedLeases(whole_leases([source])))
    assert sum(one.rows for one in produced) == 50_000


@examples(40)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=30))
def test_positions_of_rows_are_intervals_of_neighbours(elements: list[int]) -> None:
    numbers = np.array(list(dict.fromkeys(elements)))
    lease = Lease(0, Split(0), ((5 << OUTPUT_BITS, 20 << OUTPUT_BITS), (22 << OUTPUT_BITS, END)))
    block = RowBlock({}, (lease,), np.zeros(len(numbers), np.int64), numbers)
    parts = block.parts(0, block.rows)
    found = [n for _, begin, end in parts for n in range(begin >> OUTPUT_BITS, end >> OUTPUT_BITS)]
    assert found == sorted(n for n in set(elements) if 5 <= n < 20 or n >= 22)
    assert all(end < begin for (_, _, end), (_, begin, _) in itertools.pairwise(parts))
