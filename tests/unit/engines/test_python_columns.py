"""Sources that give columns: what the engine makes of them is what it makes of the same data row by row."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
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
from pecan_ray.errors import BatchShapeError, CorruptSourceError, SourceError
from pecan_ray.plan.splits import (
    END,
    OUTPUT_BITS,
    ColumnarSource,
    Columns,
    Element,
    IndependentElements,
    Lease,
    Source,
    Split,
)
from pecan_ray.sources import Arrays, Csv, Items, Parquet
from tests.long_form import examples
from tests.ray.waiting import until
from tests.unit.engines.engine_leases import (
    ListedLeases,
    OwnSource,
    delivered,
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
            "small": pa.array(numbers, pa.int16()),
            "flag": pa.array(numbers % 3 == 0),
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
            "nothing": pa.array([None] * rows, pa.int32()),
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
        "label": np.arange(ROWS, dtype=np.int32),
        "word": np.array([f"w{n}" for n in numbers]),
        "record": np.array([(n, n / 2) for n in numbers], [("a", "i4"), ("b", "f8")]),
        "object": objects,
        "big": np.arange(ROWS).astype(">i4"),
    }
    alike = [{"image": np.full((2, 2), n), "label": n, "small": np.int16(n), "file": b"%d" % n} for n in numbers]
    return {
        "parquet": Parquet(str(folder / "rows.parquet"), split_bytes=1, batch_rows=7),
        "parquet in one split": Parquet(str(folder / "rows.parquet"), batch_rows=13),
        "parquet, some columns": Parquet(str(folder / "rows.parquet"), ["text", "small"], split_bytes=1),
        "csv": Csv(str(folder / "rows.csv"), split_bytes=300),
        "csv in one split": Csv(str(folder / "rows.csv")),
        "arrays": Arrays(arrays, split_rows=17),
        "arrays in one split": Arrays(arrays, split_rows=ROWS),
        "items": Items(alike, split_rows=17),
    }


KINDS = (
    *("parquet", "parquet in one split", "parquet, some columns", "csv", "csv in one split"),
    *("arrays", "arrays in one split", "items"),
)


def exact(value: Any) -> Any:
    """Return a value in a form in which equality means the same type and content."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return "array", value.dtype.str, value.shape, value.tobytes(), value.flags.writeable
    if isinstance(value, (np.ndarray, list, tuple)):
        return type(value).__name__, [exact(one) for one in value]
    return type(value).__name__, repr(value)


def told(produced: list[Produced]) -> list[Any]:
    return [
        (
            [(name, exact(values)) for name, values in batch.columns.items()],
            {key: list(spans) for key, spans in batch.spans.items()},
            (batch.rows, batch.epoch, batch.partial, batch.slot is None),
        )
        for batch in produced
    ]


def both(source: Source, leases: list[Lease], size: int, build: Any = None, **options: Any) -> list[Any]:
    """Run the same leases by columns and by rows; return batches, reported lengths and bad elements of each."""
    found = []
    for one in (source, ByRows(source)):
        pipe = PecanPipeline(one).batch(size)
        plan = (pipe if build is None else build(pipe)).plan
        assert (by_columns(plan, one) is None) == isinstance(one, ByRows)
        given = ListedLeases(leases)
        produced = run_engine(plan, given, **options)
        assert delivered(produced) == given.target()
        bad = [(error.where, error.error) for batch in produced for error in batch.bad]
        found.append((told(produced), given.lengths, bad))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 8, ROWS + 1])
def test_batches_are_those_of_the_rows(folder: Path, kind: str, size: int) -> None:
    source = sources(folder)[kind]
    columns, rows = both(source, whole_leases([source]), size, order="strict")
    assert columns == rows
    assert sum(batch[2][0] for batch in columns[0]) == sum(columns[1].values()) == ROWS
    relaxed, _ = both(source, whole_leases([source], num_passes=2), size, threads=4)
    assert sum(batch[2][0] for batch in relaxed[0]) == 2 * ROWS
    assert [batch[2][2] for batch in relaxed[0] if batch[2][0] < size] in ([], [True]), "one partial batch at most"


spans_of_a_split = st.lists(st.integers(0, 30 << OUTPUT_BITS) | st.integers(0, 30), min_size=2, max_size=12).map(
    lambda bounds: sorted({b << OUTPUT_BITS if b <= 30 else b for b in bounds})
)


@examples(60)
@given(kind=st.sampled_from(KINDS), bounds=st.lists(spans_of_a_split, min_size=1, max_size=4), data=st.data())
def test_what_is_missing_of_splits_comes_as_from_rows(
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
    columns, rows = both(source, leases, data.draw(st.integers(1, 12)), order="strict")
    assert columns == rows


def doubled(batch: Element, rng: np.random.Generator) -> Element:
    batch["small"] *= 2
    return {**batch, "random": rng.random(3)}


@pytest.mark.parametrize("threads", [1, 3])
def test_operators_on_batches_are_given_the_same_batches(folder: Path, threads: int) -> None:
    def build(pipe: PecanPipeline) -> PecanPipeline:
        return pipe.map(doubled, name="double").prefetch(2).filter(lambda batch: bool(batch["small"][0] % 4 == 0))

    source = sources(folder)["parquet"]
    columns, rows = both(source, whole_leases([source]), 8, build, order="strict", threads=threads, seed=11)
    # What was filtered is carried by whichever batch is finished next; `both` has checked that all is carried once.
    found = ([(batch[0], batch[2]) for batch in side if batch[2][0]] for side in (columns[0], rows[0]))
    assert next(found) == next(found)
    assert 0 < len(columns[0]) < 12


def failures(source: ColumnarSource, size: int = 4) -> list[Any]:
    found = []
    for one in (source, ByRows(source)):
        with pytest.raises((BatchShapeError, SourceError)) as caught:
            run_engine(PecanPipeline(one).batch(size))
        found.append((type(caught.value).__name__, str(caught.value), caught.value.fields))
    return found


def parquet_of(folder: Path, **columns: Any) -> Parquet:
    path = folder / "planted.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=6)
    return Parquet(str(path), batch_rows=3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([1, 2, 3, None, 5, 6]), "is a NoneType"),
        (pa.array([None, 2, 3]), "is int64[]"),
        (pa.array([[1.0, 2.0], [1.0, 2.0], [1.0]]), "is float64[1]"),
        (pa.array([[1, 2], [1, None]]), "is a list"),
        (pa.array([[1, 2]] * 3 + [[1, 2, 3]] * 3), "is int64[3]"),
    ],
)
def test_columns_that_cannot_be_stacked_are_refused_in_the_same_words(
    tmp_path: Path, values: Any, message: str
) -> None:
    columns, rows = failures(parquet_of(tmp_path, n=pa.array(range(len(values))), planted=values))
    assert columns == rows
    assert columns[0] == "BatchShapeError" and message in columns[1]


@dataclass(frozen=True)
class Uneven(OwnSource):
    pieces: tuple[dict[str, Any], ...]

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        for piece in self.pieces:
            for row in range(len(next(iter(piece.values())))):
                yield {name: values[row] for name, values in piece.items()}

    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        yield from self.pieces


def test_columns_that_change_are_refused_in_the_same_words(tmp_path: Path) -> None:
    columns, rows = failures(Uneven(({"a": np.arange(3)}, {"a": np.arange(3), "b": np.arange(3)})))
    assert columns == rows and "has the columns ['a', 'b']" in columns[1]
    for number, kind in enumerate([pa.int32(), pa.int64()]):
        pq.write_table(pa.table({"n": pa.array([1, 2, 3], kind)}), tmp_path / f"{number}.parquet")
    columns, rows = failures(Parquet(str(tmp_path)))
    assert columns == rows and "is int64[]" in columns[1] and "0 of " in columns[1]
    uneven = Uneven(({"a": np.arange(3)}, {"a": np.arange(3), "b": np.arange(2)}))
    with pytest.raises(SourceError, match=r"element 3 of split 0: ValueError: .*unequal lengths.*'b': 2"):
        run_engine(PecanPipeline(uneven).batch(2), whole_leases([uneven]))
    nulls = parquet_of(tmp_path, n=pa.array([1, 2, 3, 4, None, None, None, None, 9, 10]))
    columns, rows = both(nulls, whole_leases([nulls]), 4, order="strict")
    assert columns == rows, "nulls that do not meet numbers in a batch are no error"
    assert [batch[0][0][1][0] for batch in columns[0]] == ["array", "ndarray", "array"]


@pytest.mark.parametrize("size", [4, 50])
def test_a_bad_line_costs_itself_by_columns_as_by_rows(tmp_path: Path, size: int) -> None:
    lines = ["n", *(str(n) for n in range(33)), "x,y", *(str(n) for n in range(34, 40))]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    source = Csv(str(tmp_path / "rows.csv"))
    columns, rows = failures(source, size)
    assert columns == rows and columns[0] == CorruptSourceError.__name__ and "Element 33" in columns[1]
    columns, rows = both(source, whole_leases([source]), size, on_error="skip", order="strict")
    assert columns[1:] == rows[1:] and list(columns[1].values()) == [40] and len(columns[2]) == 1
    values = [[(batch[0], batch[2]) for batch in side[0] if batch[2][0]] for side in (columns, rows)]
    assert values[0] == values[1] and sum(counts[0] for _, counts in values[0]) == 39


def test_a_batch_does_not_share_memory_with_the_source() -> None:
    held = {"n": np.arange(8), "listed": np.empty(8, object)}
    for row in range(8):
        held["listed"][row] = [row]

    def write_into(batch: Any) -> Any:
        batch["n"] += 1
        for values in batch["listed"]:
            values.append(-1)
        return batch

    written = run_engine(PecanPipeline(Arrays(held)).batch(4).map(write_into))
    assert sorted(row.tolist() for batch in written for row in batch.columns["listed"]) == [[n, -1] for n in range(8)]
    assert held["n"].tolist() == list(range(8))
    assert held["listed"].tolist() == [[n] for n in range(8)]


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
