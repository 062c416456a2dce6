"""Rows that go through operators as columns: what comes out is what comes out of the same data row by row."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray import PecanPipeline
from pecan_ray.engines.contract import Produced
from pecan_ray.engines.row_block import RowBlock
from pecan_ray.errors import ColumnError, OpError, OutputTypeError, PecanError
from pecan_ray.plan.columns_read import columns_read
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import END, OUTPUT_BITS, Columns, Element, Lease, LeaseKey, Source, Split, as_columnar
from pecan_ray.sampling.spans import Spans
from pecan_ray.sources import Arrays
from tests.long_form import examples
from tests.unit.engines.engine_leases import ListedLeases, delivered, run_engine, running, whole_leases
from tests.unit.engines.test_python_columns import KINDS, ROWS, ByRows, Uneven, exact, folder, sources

__all__ = ["folder"]

Build = Callable[[PecanPipeline], PecanPipeline]
ON = {"parquet": "small", "csv": "n", "arrays": "label", "items": "small"}


def run(source: Source, build: Build, leases: list[Lease] | None = None, **options: Any) -> Any:
    """Return batches, the positions that they carry, and bad elements."""
    plan = build(PecanPipeline(source)).plan
    passes = plan_shape(plan).num_passes or 1
    listed = ListedLeases(whole_leases([source], num_passes=passes) if leases is None else leases)
    produced = run_engine(plan, listed, **options)
    batches = [(in_words(one.columns), one.rows, list(one.row_parts)) for one in produced if one.rows]
    spans = together(produced) if plan_shape(plan).serial else delivered(produced)
    return batches, spans, [(bad.where, bad.error, in_words(bad.element)) for one in produced for bad in one.bad]


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


def added(value: Any) -> Any:
    return value + 1


def drawn(value: Any, rng: np.random.Generator, epoch: int) -> Any:
    return int(value + rng.integers(1000) + epoch)


def is_odd(value: Any) -> bool:
    return bool(value % 2)


def is_drawn(element: Element, rng: np.random.Generator) -> bool:
    return bool(element["n"] % 2 or rng.integers(3))


def emptied(element: Element) -> bool:
    element["n"] = -1
    return True


def doubled(element: Element) -> Element:
    return {**element, "twice": np.arange(2)}


ROW_STEPS: dict[str, Callable[[PecanPipeline, int], PecanPipeline]] = {
    "shuffle": lambda pipe, n: pipe.shuffle(n),
    "take": lambda pipe, n: pipe.take(n),
    "skip": lambda pipe, n: pipe.skip(n // 4),
    "repeat": lambda pipe, n: pipe.repeat(1 + n % 3),
    "prefetch": lambda pipe, n: pipe.prefetch(n),
    "odd": lambda pipe, n: pipe.filter(is_odd, on="n"),
}
STEPS: dict[str, Build] = {
    "add": lambda pipe: pipe.map(added, on="n"),
    "odd": lambda pipe: pipe.filter(is_odd, on="n", name="odd ones"),
    "draw": lambda pipe: pipe.map(drawn, on="n"),
    "double": lambda pipe: pipe.map(doubled),
    "part": lambda pipe: pipe.filter(lambda element: element["n"] % 3 > 0, name="third"),
    "drawn": lambda pipe: pipe.filter(is_drawn),
    "empty": lambda pipe: pipe.filter(emptied),
    "pick": lambda pipe: pipe.map(lambda element: {"m": 3, "n": element["n"] * 2}, name="pick"),
    "list": lambda pipe: pipe.map(lambda e: {"n": e["n"], "l": [1]} if e["n"] % 5 else {"n": 0, "l": []}, name="list"),
}


class NumberedRows(ByRows):
    """A table whose column of numbers is called n."""

    def __init__(self, source: Source, on: str) -> None:
        super().__init__(source)
        self.on = on

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        return ({**row, "n": row[self.on]} for row in self.source.read(split, start))

    read_past_errors = read


class NumberedColumns(NumberedRows):
    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        table = as_columnar(self.source)
        assert table is not None
        return ({**part, "n": part[self.on]} for part in table.read_columns(split, start))


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
    joined = joined and bool(steps)
    if not joined:
        steps = [name for name in steps if name != "list"]  # its elements differ, and only joined rows are cut there

    def build(pipe: PecanPipeline) -> PecanPipeline:
        for name, count in () if joined else rows:
            pipe = ROW_STEPS[name](pipe, count)
        for name in steps:
            pipe = STEPS[name](pipe)
        return pipe.batch(size)

    source, on = sources(folder)[kind], ON[kind.split()[0].strip(",")]
    found = []
    for numbered in (NumberedColumns, NumberedRows):
        table = numbered(source, on)
        leases = [replace(one, place=one.split.index) for one in whole_leases([table])] if joined else None
        found.append(run(table, build, leases, order="strict", threads=threads, seed=size))
    assert found[0] == found[1]


@examples(60)
@given(
    bounds=st.lists(st.integers(0, 2 * ROWS), min_size=2, max_size=12),
    fine=st.booleans(),
    buffer=st.integers(1, ROWS),
)
def test_what_is_missing_of_splits_is_shuffled_and_filtered(bounds: list[int], fine: bool, buffer: int) -> None:
    source = Arrays(n=np.arange(ROWS), split_rows=ROWS)
    places = sorted({bound << (OUTPUT_BITS - fine) for bound in bounds})
    spans = [*zip(places[::2], places[1::2], strict=False), (places[-1] + 1, END)]
    lease = Lease(2, next(source.splits()), tuple(spans), pass_index=1)
    both(source, lambda pipe: pipe.shuffle(buffer).filter(is_odd, on="n").batch(7), [lease])


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
    pipe = PecanPipeline(source).shuffle(1000).filter(is_odd, on="n").map(added, on="n")
    pipe = pipe.filter(lambda element: element["n"] >= 0).batch(64)
    produced = run_engine(pipe.plan, ListedLeases(whole_leases([source])))
    assert sum(one.rows for one in produced) == 50_000
    found = run_engine(PecanPipeline(source).skip(10).shuffle(1000).take(500).batch(64))
    assert sum(one.rows for one in found) == 500


def failing(value: Any) -> Any:
    if value % 10 == 3:
        raise ValueError(f"no {value}")
    return value


@pytest.mark.parametrize("on_error", ["skip", "quarantine"])
@pytest.mark.parametrize("shuffle", [1, 20])
def test_a_row_that_fails_costs_itself(on_error: str, shuffle: int) -> None:
    source = Arrays(n=np.arange(50), x=np.arange(100.0).reshape(50, 2), split_rows=25)

    def build(pipe: PecanPipeline) -> PecanPipeline:
        return pipe.shuffle(shuffle).map(failing, on="n", name="fail").filter(is_odd, on="n").batch(8)

    _, _, bad = both(source, build, on_error=on_error)
    assert len(bad) == 5 and all("no " in error for _, error, _ in bad)
    assert all((element is None) == (on_error == "skip") for *_, element in bad)


def test_an_error_is_raised_behind_the_batches_before_it() -> None:
    source = Arrays(n=np.arange(1000), split_rows=1000)
    for one in (source, ByRows(source)):
        pipe = (
            PecanPipeline(one).map(lambda v: 1 / (v < 500) and v, on="n", name="first").map(failing, on="n", name="f")
        )
        with running(pipe.filter(lambda v: v < 300, on="n").batch(1), order="strict", threads=2) as (_, batches):
            assert [int(next(batches).columns["n"][0]) for _ in range(3)] == [0, 1, 2]
            with pytest.raises(OpError, match="f failed on element 3 of split 0: ValueError: no 3"):
                next(batches)


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda p: p.filter(lambda v: None, on="n", name="f"), OutputTypeError, "must return whether to keep"),
        (lambda p: p.map(added, on="m", name="f"), ColumnError, "no column 'm'"),
        (lambda p: p.map(lambda v: {v: 1}[v + 1], on="n", name="f"), OpError, "KeyError"),
    ],
)
def test_what_is_wrong_is_said_in_the_same_words(build: Build, error: type[Exception], words: str) -> None:
    source, found = Arrays(n=np.arange(50), split_rows=50), []
    for one in (source, ByRows(source)):
        with pytest.raises(error, match=words) as caught:
            run(one, lambda pipe: build(pipe).batch(8), order="strict", threads=1)
        assert isinstance(caught.value, PecanError)
        found.append((caught.value.message.splitlines()[0], caught.value.fields))
    assert found[0] == found[1]


def test_results_of_any_kind_are_those_of_elements() -> None:
    buffer = np.zeros(2)

    def overwritten(value: Any) -> Any:
        buffer[:] = value
        return buffer

    source = Arrays(n=np.arange(300), split_rows=300)
    results: list[Callable[[Any], Any]] = [
        overwritten,
        lambda v: f"text {v}" if v % 2 else None,
        lambda v: float(v) if v > 100 else np.float64(v),
        lambda v: [int(v)] * 2,
        lambda v: np.datetime64(int(v), "D"),
        lambda v: np.arange(3) if v > 40 else np.arange(3) + v,
        lambda v: 2**62 + int(v),
    ]
    for function in results:

        def build(pipe: PecanPipeline, function: Any = function) -> PecanPipeline:
            return pipe.shuffle(50).map(function, on="n", name="fn").batch(16)

        both(source, build, threads=1)
    seen: list[Any] = []

    def noted(value: Any) -> Any:
        seen.append(value)
        return value

    run(source, lambda pipe: pipe.map(noted, on="n").batch(7), threads=1)
    assert seen == list(range(300)), "a function is given each value once, in order"


def test_functions_write_into_no_column_of_the_source() -> None:
    held = np.arange(40.0).reshape(20, 2)
    rows = np.empty(20, object)
    rows[:] = [[n] for n in range(20)]
    source = Arrays(x=held, n=np.arange(20), listed=rows)

    def write(element: Element) -> Element:
        element["x"] += 1
        element["listed"].append(-1)
        return element

    both(source, lambda pipe: pipe.shuffle(5).map(write).batch(4))
    both(source, lambda pipe: pipe.filter(lambda one: one["x"].fill(0) or one["n"] > 3).batch(4))
    both(source, lambda pipe: pipe.skip(3).map(lambda value: [*value, 0], on="listed").batch(4))
    assert held.tolist() == np.arange(40.0).reshape(20, 2).tolist() and rows.tolist() == [[n] for n in range(20)]


def test_a_buffer_holds_rows_of_unlike_columns_and_large_ones() -> None:
    pieces = (
        {"a": np.arange(30), "b": np.arange(30.0)},
        {"a": np.arange(30, 60, dtype=np.int16), "b": np.array([f"t{n}" for n in range(30)])},
        {"a": np.ones((30, 3))},
        {"a": np.arange(30), "c": np.zeros((30, 40, 40))},
    )

    def build(pipe: PecanPipeline) -> PecanPipeline:
        def told(element: Element) -> Element:
            return {"told": repr([(name, type(one).__name__, np.shape(one)) for name, one in sorted(element.items())])}

        return pipe.shuffle(25).map(told).batch(9)

    both(Uneven(pieces), build)
    both(Uneven(pieces[3:]), lambda pipe: pipe.shuffle(7).batch(4))


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
