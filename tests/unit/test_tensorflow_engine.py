from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray import errors
from pecan_ray.engines import positions
from pecan_ray.engines.contract import EngineOptions, Produced
from pecan_ray.engines.inprocess import AllLeases
from pecan_ray.engines.positions import MOST_INTERVALS
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.engines.tensorflow import TensorFlowEngine
from pecan_ray.engines.tensorflow.chunks import cuts
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Origin
from pecan_ray.sampling.spans import Spans

ROWS = 100


def numbers(rows: int = ROWS, **columns: Any) -> pecan.PecanPipeline:
    source = pecan.sources.Arrays(i=np.arange(rows), split_rows=7, **columns)
    return pecan.PecanPipeline(source, name="numbers", engine="tensorflow")


def run(pipe: pecan.PecanPipeline, leases: Any = None, **options: Any) -> list[Produced]:
    sources = list(pipe.plan.sources())
    engine = TensorFlowEngine(pipe.plan, sources, EngineOptions(**options), HeapSlots())
    try:
        return list(engine.batches(leases or AllLeases(sources, 0, 1)))
    finally:
        engine.close()


def values(batches: list[Produced], column: str = "i") -> list[Any]:
    return [value for batch in batches if batch.rows for value in batch.columns[column]]


def covered(batches: list[Produced]) -> dict[tuple[int, int, int], Spans]:
    """Return the positions that all batches stand for; fails if one is in two of them."""
    found: dict[tuple[int, int, int], Spans] = {}
    for batch in batches:
        for key, intervals in batch.spans.items():
            seen = found.setdefault(key, Spans())
            for start, stop in intervals:
                before = seen.size()
                seen.add(start, stop)
                assert seen.size() == before + stop - start, f"{key}: [{start}, {stop}) came twice"
    return found


def all_of(pipe: pecan.PecanPipeline) -> dict[tuple[int, int, int], Spans]:
    return {
        (branch, 0, split.index): Spans([(0, (split.elements or 0) << OUTPUT_BITS)])
        for branch, source in enumerate(pipe.plan.sources())
        for split in source.splits()
    }


def by_thirds(i: Any) -> Any:
    return tf.repeat(i, i % 3)


PLANS: dict[str, Callable[[pecan.PecanPipeline], pecan.PecanPipeline]] = {
    "map": lambda p: p.map(lambda i: i * 2, on="i", name="twice").batch(16),
    "filter": lambda p: p.filter(lambda i: i % 3 == 0, on="i").batch(16),
    "nothing left": lambda p: p.filter(lambda i: i < 0, on="i").batch(16),
    "flat_map": lambda p: p.flat_map(by_thirds, on="i").batch(16),
    "flat_map twice": lambda p: p.flat_map(by_thirds, on="i").flat_map(by_thirds, on="i").batch(4),
    "shuffle": lambda p: p.shuffle(20).batch(16),
    "padded": lambda p: p.map(lambda e: {"i": e["i"], "v": tf.range(e["i"] % 5)}, name="ragged").padded_batch(16),
    "buckets": lambda p: p.map(lambda e: {"i": e["i"], "v": tf.range(e["i"] % 9)}, name="ragged").bucket_by_length(
        [3, 6], sizes=[4, 5, 6], length="v"
    ),
    "unbatch": lambda p: p.batch(8).unbatch().batch(5),
    "concat": lambda p: p.concat(numbers()).batch(16),
    "mix": lambda p: p.mix(numbers(), weights=[1, 3]).batch(16),
    "unbatched": lambda p: p.map(lambda i: i + 1, on="i", name="next"),
}


@pytest.mark.parametrize("order", ["strict", "relaxed"])
@pytest.mark.parametrize("plan", PLANS)
def test_every_position_is_in_exactly_one_batch(plan: str, order: str) -> None:
    pipe = PLANS[plan](numbers())
    batches = run(pipe, order=order, threads=2)
    assert covered(batches) == all_of(pipe)


def by_python(rows: int = ROWS) -> pecan.PecanPipeline:
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(rows), split_rows=7))


@pytest.mark.parametrize("plan", ["map", "filter", "nothing left", "unbatch", "shuffle", "unbatched"])
def test_both_engines_yield_the_same_elements(plan: str) -> None:
    ours = Counter(int(i) for batch in run(PLANS[plan](numbers())) if batch.rows for i in np.ravel(batch.columns["i"]))
    theirs = Counter(
        int(i) for batch in PLANS[plan](by_python()).iter_batches(debug=True) for i in np.ravel(batch["i"])
    )
    assert ours == theirs


def as_items(rows: int = ROWS) -> pecan.PecanPipeline:
    source = pecan.sources.Items([{"i": np.int64(i)} for i in range(rows)], split_rows=7)
    return pecan.PecanPipeline(source, name="numbers", engine="tensorflow")


@pytest.mark.parametrize("plan", ["map", "flat_map twice", "shuffle", "buckets"])
def test_sources_of_columns_and_of_elements_yield_the_same_batches(plan: str) -> None:
    by_columns, one_by_one = (run(PLANS[plan](pipe), order="strict") for pipe in (numbers(), as_items()))
    assert covered(by_columns) == covered(one_by_one) == all_of(numbers())
    assert list(map(int, values(by_columns))) == list(map(int, values(one_by_one)))


@pytest.mark.parametrize(
    ("columns", "refused"),
    [
        ({"v": pa.array([1, 2, None, 4])}, "'v' is object"),
        ({"v": pa.array(["a", "b", None, "d"])}, "'v' is NoneType"),
        ({"v": pa.array([["a"], ["b", None]])}, "'v' is list"),
        ({"v": pa.array([[1], [2, 3], [4], []])}, ""),
        ({"v": pa.array([["a", "b"], ["c", "d"]])}, ""),
        ({"v": pa.array(["a", "é", "", "d"])}, ""),
        ({"v": pa.array([[1.0, 2.0]] * 4), "w": pa.array([1, 2, 3, 4], pa.int8())}, ""),
    ],
)
def test_columns_come_through_whole_or_value_by_value(tmp_path: Path, columns: dict[str, Any], refused: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    source = pecan.sources.Parquet(str(tmp_path / "rows.parquet"))
    pipe = pecan.PecanPipeline(source, engine="tensorflow").batch(1)
    if refused:
        with pytest.raises(errors.OutputTypeError, match=refused):
            run(pipe)
        return
    batches = run(pipe, order="strict")
    for name, column in columns.items():
        got = [[v.decode() if isinstance(v, bytes) else v for v in np.ravel(row)] for row in values(batches, name)]
        assert got == [np.ravel(given).tolist() for given in column.to_pylist()]


def test_a_chunk_of_columns_is_no_larger_than_a_graph_should_hold() -> None:
    table = {"v": np.zeros((3000, 1000), np.float32)}  # 4 kB a row
    assert {stop - start for start, stop in cuts(table, 3000)} == {262, 3000 % 262}
    assert [stop - start for start, stop in cuts({"v": np.zeros(3000)}, 3000)] == [1024, 1024, 952]


def test_the_last_smaller_batch_is_marked_partial() -> None:
    batches = run(numbers().batch(16), order="strict")
    assert [(batch.rows, batch.partial) for batch in batches] == [(16, False)] * 6 + [(4, True)]
    buckets = run(PLANS["buckets"](numbers()))
    assert all(batch.partial == (batch.rows < batch_size(batch)) for batch in buckets)


def batch_size(batch: Produced) -> int:
    longest = int(batch.columns["i"].max() % 9) if batch.rows else 0
    return next(size for bound, size in ((3, 4), (6, 5), (99, 6)) if longest < bound)


def noisy(x: Any, rng: Any) -> Any:
    return x + tf.random.stateless_uniform([4], rng)


def test_random_numbers_depend_on_seed_epoch_and_element_alone() -> None:
    pipe = numbers(x=np.zeros((ROWS, 4), np.float32)).map(noisy, on="x").batch(16)

    def drawn(**options: Any) -> dict[int, tuple[float, ...]]:
        batches = run(pipe, **options)
        return {int(i): tuple(x) for i, x in zip(values(batches), values(batches, "x"), strict=True)}

    one = drawn(order="strict", threads=1)
    assert one == drawn(order="relaxed", threads=2)
    assert len(set(one.values())) == ROWS
    assert not set(one.values()) & set(drawn(seed=1).values())
    sources = list(pipe.plan.sources())
    later = run(pipe, AllLeases(sources, 1, 1))
    assert not set(one.values()) & {tuple(x) for x in values(later, "x")}


class Given:
    """Leases that were cut before."""

    def __init__(self, leases: list[Lease]) -> None:
        self._left = list(leases)
        self.lengths: dict[tuple[int, int, int], int] = {}

    def take(self, branch: int = 0) -> Lease | None:
        return self._left.pop(0) if self._left else None

    def ended(self, lease: Lease, elements: int) -> None:
        self.lengths[lease.key] = elements


def test_only_what_a_lease_asks_for_is_delivered() -> None:
    pipe = numbers().flat_map(by_thirds, on="i").batch(3)
    split = next(iter(next(pipe.plan.sources()).splits()))
    whole = run(pipe, Given([Lease(0, split)]), order="strict")
    first = whole[0].spans[0, 0, 0]
    rest = Spans([(0, END)])
    for span in first:
        rest.remove(*span)
    leases = Given([Lease(0, split, spans=tuple(rest))])
    again = run(pipe, leases, order="strict")
    assert values(again) == values(whole)[3:]
    assert leases.lengths == {(0, 0, 0): 7}


def refuses_37(i: Any) -> Any:
    with tf.control_dependencies([tf.debugging.assert_none_equal(i, tf.constant(37, i.dtype), message="not 37")]):
        return tf.identity(i)


def test_an_error_in_the_graph_names_op_and_element() -> None:
    with pytest.raises(errors.OpError, match=r"refuses_37 failed on element 2 of split 5.*not 37") as caught:
        run(numbers().map(refuses_37, on="i").batch(16))
    assert (caught.value.op, caught.value.element) == ("refuses_37", 2)


@pytest.mark.parametrize("on_error", ["skip", "quarantine"])
def test_bad_elements_are_left_out_and_told(on_error: Any) -> None:
    pipe = numbers().map(refuses_37, on="i").batch(16)
    batches = run(pipe, on_error=on_error)
    assert sorted(values(batches)) == [i for i in range(ROWS) if i != 37]
    [bad] = [one for batch in batches for one in batch.bad]
    assert (bad.op, bad.where) == ("refuses_37", "element 2 of split 5") and "not 37" in bad.error
    assert (bad.element == {"i": 37}) if on_error == "quarantine" else bad.element is None
    assert covered(batches) == all_of(pipe)


def test_a_truncated_jpeg_is_named(tmp_path: Path) -> None:
    whole = tf.io.encode_jpeg(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).numpy()
    (tmp_path / "class").mkdir()
    for number in range(5):
        (tmp_path / "class" / f"{number}.jpg").write_bytes(whole[:200] if number == 3 else whole)
    pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(tmp_path), engine="tensorflow")
    pipe = pipe.map(lambda image: tf.image.decode_jpeg(image, channels=3), on="image", name="decode").batch(2)
    with pytest.raises(errors.OpError, match=r"decode failed on .*3\.jpg: Invalid"):
        run(pipe)


def test_elements_of_unequal_shapes_are_named() -> None:
    pipe = numbers().map(lambda e: {"v": tf.zeros([tf.where(e["i"] == 50, 3, 2)])}, name="vary").batch(16)
    with pytest.raises(errors.BatchShapeError, match=r"'v' of element 1 of split 7"):
        run(pipe)


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (lambda p: p.map(lambda v: v, on="nope"), errors.ColumnError, "no column 'nope'; there are \\['i'\\]"),
        (lambda p: p.map(lambda e: e["i"], name="bare"), errors.OutputTypeError, "bare returned .*must return a dict"),
        (lambda p: p.map(np.sum, on="i", name="by_numpy"), errors.OpError, "by_numpy cannot be compiled"),
        (lambda p: p.map(lambda v: v, on="i", processes=True, name="other"), errors.PlanError, "other: processes=True"),
        (lambda p: p.zip(numbers()), errors.PlanError, "both sides have the column 'i'"),
    ],
)
def test_plans_that_cannot_be_a_graph_are_refused(build: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(build(numbers()).batch(4))


def test_elements_of_other_columns_or_dtypes_are_refused() -> None:
    for other, text in (({"j": 1}, "columns"), ({"i": 1.5}, "float64"), ({"i": [1]}, r"int64\[1\]")):
        source = pecan.sources.Items([{"i": 1}, other])
        with pytest.raises(errors.OutputTypeError, match=text):
            run(pecan.PecanPipeline(source, engine="tensorflow").batch(2))


def test_a_corrupt_file_raises_the_source_error(tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(10):
            writer.write(b"%d" % number * 100)
    path.write_bytes(path.read_bytes()[:-30])
    pipe = pecan.PecanPipeline(pecan.sources.TFRecords(path), engine="tensorflow").batch(4)
    with pytest.raises(errors.CorruptSourceError, match=r"data\.tfrecord"):
        run(pipe)
    batches = run(pipe, on_error="skip")
    assert len(values(batches, "record")) == 9
    assert [one.op for batch in batches for one in batch.bad] == ["read TFRecords"]


def test_strings_bytes_and_other_dtypes_come_through() -> None:
    items = [{"s": "ä", "b": b"\x00x", "f": 1.5, "n": np.float32(2), "a": np.arange(3), "t": True}]
    [batch] = run(pecan.PecanPipeline(pecan.sources.Items(items * 2), engine="tensorflow").batch(2))
    dtypes = {name: column.dtype for name, column in batch.columns.items()}
    assert dtypes == {"s": object, "b": object, "f": np.float64, "n": np.float32, "a": np.int64, "t": np.bool_}
    assert batch.columns["s"][0] == "ä".encode() and batch.columns["b"][1] == b"\x00x"


def test_plans_that_need_the_whole_sequence_end_with_their_last_batch() -> None:
    other = pecan.PecanPipeline(pecan.sources.Arrays(j=np.arange(30)), engine="tensorflow")
    for pipe, expected in (
        (numbers().take(10).batch(4), list(range(10))),
        (numbers().skip(95).batch(2), list(range(95, 100))),
        (numbers().take(3).repeat(2).batch(4), [0, 1, 2, 0, 1, 2]),
        (numbers().zip(other).batch(8), list(range(30))),
    ):
        batches = run(pipe, order="strict")
        assert values(batches) == expected
        assert [bool(batch.spans) for batch in batches] == [False] * (len(batches) - 1) + [True]
        assert all(batch.rows for batch in batches)
        assert set(covered(batches)) == set(all_of(pipe))


def test_control_flow_over_tensors_becomes_part_of_the_graph() -> None:
    def halve_if_even(i: Any) -> Any:
        if i % 2 == 0:
            return i // 2
        return i

    batches = run(numbers(10).map(halve_if_even, on="i").batch(10), order="strict")
    assert values(batches) == [i // 2 if i % 2 == 0 else i for i in range(10)]


def shards(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.range(100).shard(num_shards, index).batch(4)


def test_an_existing_tf_data_pipeline_is_read_shard_by_shard() -> None:
    pipe = pecan.PecanPipeline.from_tf_data(shards, num_shards=4)
    batches = run(pipe)
    assert sorted(i for batch in batches for i in batch.columns["0"]) == list(range(100))
    assert set(covered(batches)) == {(0, 0, shard) for shard in range(4)}


def test_operators_follow_an_existing_tf_data_pipeline() -> None:
    pipe = pecan.PecanPipeline.from_tf_data(lambda: tf.data.Dataset.range(10).map(lambda x: (x, {"double": x * 2})))
    batches = run(pipe.map(lambda v: v + 1, on="1/double", name="more").batch(4), order="strict")
    assert values(batches, "0") == list(range(10))
    assert values(batches, "1/double") == [2 * i + 1 for i in range(10)]


def test_what_is_no_tf_data_pipeline_is_refused() -> None:
    with pytest.raises(errors.PlanError, match="needs a function"):
        pecan.PecanPipeline.from_tf_data(tf.data.Dataset.range(3))
    with pytest.raises(errors.PlanError, match="takes 1 arguments"):
        run(pecan.PecanPipeline.from_tf_data(lambda shard: None))
    with pytest.raises(errors.PlanError, match="returned int"):
        run(pecan.PecanPipeline.from_tf_data(lambda: 3))


def test_an_error_in_an_existing_pipeline_names_the_shard() -> None:
    def make() -> Any:
        return tf.data.Dataset.range(10).map(lambda i: refuses_37(i + 30))

    with pytest.raises(errors.OpError, match=r"make failed on element 7 of shard 0"):
        run(pecan.PecanPipeline.from_tf_data(make))
    batches = run(pecan.PecanPipeline.from_tf_data(make), on_error="skip")
    assert sum(batch.rows for batch in batches) == 9
    assert sum(len(batch.bad) for batch in batches) == 1


def test_leaving_a_stretch_early_leaves_the_engine_usable() -> None:
    pipe = numbers().batch(4)
    sources = list(pipe.plan.sources())
    engine = TensorFlowEngine(pipe.plan, sources, EngineOptions(), HeapSlots())
    stretch = engine.batches(AllLeases(sources, 0, 1))
    next(stretch)
    stretch.close()
    assert sum(batch.rows for batch in engine.batches(AllLeases(sources, 1, 1))) == ROWS


def test_the_end_of_an_iterator_is_waited_for_elsewhere() -> None:
    from pecan_ray.engines.tensorflow.iterating import Elements

    ended: list[str] = []
    gone = threading.Event()

    class Numbers:
        """An iterator that notes which thread gives it up."""

        def __init__(self) -> None:
            self._left = iter(range(3))

        def __iter__(self) -> Numbers:
            return self

        def __next__(self) -> int:
            return next(self._left)

        def __del__(self) -> None:
            ended.append(threading.current_thread().name)
            gone.set()

    class Data:
        element_spec = None

        def __iter__(self) -> Numbers:
            return Numbers()

    elements = Elements(Data())
    assert next(elements) == 0 and list(elements) == [1, 2]
    elements.close()
    assert gone.wait(10) and ended == ["pecan-end-of-graph"]
    assert list(elements) == [] and list(Elements(None)) == []


def test_elements_are_those_of_the_dataset() -> None:
    from pecan_ray.engines.tensorflow.iterating import Elements

    def make(n: Any) -> Any:
        columns = {"z": tf.fill([n + 1], n), "a": tf.strings.as_string(n), "nested": {"y": n * 2, "b": n * 3}}
        return columns, (n, tf.cast(n, tf.float32))

    data = tf.data.Dataset.range(5).map(make)
    expected, found = list(iter(data)), list(Elements(data))
    tf.nest.map_structure(np.testing.assert_array_equal, expected, found)
    assert [list(columns) for columns, _ in found] == [["z", "a", "nested"]] * 5
    assert isinstance(found[0][1], tuple) and len(found) == 5
    ragged = tf.data.Dataset.range(3).map(lambda n: {"r": tf.RaggedTensor.from_row_lengths(tf.range(n), [n])})
    assert [element["r"].to_list() for element in Elements(ragged)] == [[[]], [[0]], [[0, 1]]]
    failing = Elements(tf.data.Dataset.range(2).map(lambda n: tf.gather(tf.range(1), n)))
    assert int(next(failing)) == 0
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(failing)


@pytest.mark.parametrize("way", ["forgotten", "closed"])
def test_a_process_ends_while_a_graph_is_under_way(way: str) -> None:
    script = """
import sys
import numpy as np
import pecan_ray as pecan
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.inprocess import AllLeases
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.engines.tensorflow import TensorFlowEngine
from pecan_ray.engines.tensorflow.chunks import cuts

rows = pecan.sources.Items([{"x": np.full(4, n, np.float32)} for n in range(100_000)])
plan = pecan.PecanPipeline(rows, engine="tensorflow").map(lambda x: x * 2, on="x").batch(4).plan
engine = TensorFlowEngine(plan, list(plan.sources()), EngineOptions(threads=2), HeapSlots())
batches = engine.batches(AllLeases(list(plan.sources()), 0, 1))
print([next(batches).rows for _ in range(20)] == [4] * 20)
if sys.argv[1] == "closed":
    batches.close()
"""
    done = subprocess.run([sys.executable, "-c", script, way], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "True\n", done.stderr


def test_bad_elements_are_told_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "MOST_BAD", 16)

    def below_ten(i: Any) -> Any:
        tf.debugging.Assert(i < 10, [i])
        return i

    pipe = numbers().map(below_ten, on="i").batch(8)
    produced = run(pipe, on_error="skip")
    reports = [batch for batch in produced if not batch.rows]
    assert [(len(one.bad), one.partial) for one in reports] == [(16, False)] * 5 + [(10, False)]
    assert covered(produced) == all_of(pipe)
    identities = [bad.identity for one in reports for bad in one.bad]
    assert len(set(identities)) == 90 and identities[0] == ("below_ten", Origin(0, 0, 0, 1, 3))


def test_what_a_filter_drops_waits_as_few_intervals() -> None:
    rows = 4 * MOST_INTERVALS
    source = pecan.sources.Arrays(i=np.arange(rows), split_rows=rows)
    pipe = pecan.PecanPipeline(source, engine="tensorflow").filter(lambda i: i < 0, on="i").batch(8)
    (report,) = run(pipe, threads=2)
    assert (report.rows, report.partial) == (0, False)
    assert report.spans == {(0, 0, 0): [(0, rows << OUTPUT_BITS)]}


def test_a_graph_that_yields_nothing_for_long_is_told_with_what_it_was_given() -> None:
    reached, may_go_on = threading.Event(), threading.Event()

    def ponders(i: Any) -> Any:
        if i == 17:
            reached.set()
            assert may_go_on.wait(60)
        return i

    pipe = numbers(20).map(lambda i: tf.ensure_shape(tf.py_function(ponders, [i], tf.int64), ()), on="i").batch(4)
    sources = list(pipe.plan.sources())
    engine = TensorFlowEngine(pipe.plan, sources, EngineOptions(), HeapSlots())
    batches: list[Produced] = []
    thread = threading.Thread(target=lambda: batches.extend(engine.batches(AllLeases(sources, 0, 1))))
    thread.start()
    try:
        assert reached.wait(60)
        # It is given more at first, and counts from the last time on.
        told = next(told for look in range(100_000) if (told := engine.under_way(6.0 * look)) is not None)
    finally:
        may_go_on.set()
    thread.join(60)
    text = "the graph has yielded nothing for {seconds}, since it was given element "
    assert told.text.startswith(text) and len(values(batches)) == 20
    assert engine.under_way(1e9) is None
    engine.close()


def refusing(error: BaseException) -> Callable[[Any], Any]:
    """A function of a tensor that raises while the graph runs, where 7 is in it."""

    def run(value: Any) -> Any:
        if 7 in value:
            raise error
        return value

    return lambda i: tf.ensure_shape(tf.numpy_function(run, [i], tf.int64), i.shape)


REFUSED: dict[str, tuple[Callable[[pecan.PecanPipeline, Any], pecan.PecanPipeline], int, str]] = {
    "batch": (lambda p, fn: p.batch(4).map(fn, on="i", name="op"), 4, "op"),
    "batches filtered": (lambda p, fn: p.batch(4).filter(lambda i: fn(i)[0] >= 0, on="i", name="op"), 4, "op"),
    "behind unbatch": (lambda p, fn: p.batch(4).unbatch().map(of_one(fn), on="i", name="op").batch(2), 1, "op"),
    "zip": (lambda p, fn: p.map(of_one(fn), on="i", name="op").zip(zeros()).batch(4), 1, "op"),
    "behind take": (lambda p, fn: p.take(40).map(of_one(fn), on="i", name="op").batch(4), 1, "op"),
    "length": (
        lambda p, fn: p.bucket_by_length([3, 50], sizes=[4, 4, 4], length=lambda e: of_one(fn)(e["i"])),
        1,
        "bucket_by_length",
    ),
}


def of_one(fn: Any) -> Any:
    return lambda i: fn(i[tf.newaxis])[0]


def zeros() -> pecan.PecanPipeline:
    return pecan.PecanPipeline(pecan.sources.Arrays(z=np.zeros(40)), engine="tensorflow")


@pytest.mark.parametrize("case", REFUSED)
def test_what_fails_behind_a_batch_or_in_a_part_of_the_data_is_named_and_counted(case: str) -> None:
    make, left_out, op = REFUSED[case]
    with pytest.raises(errors.OpError) as caught:
        run(make(numbers(40), refusing(ValueError("no sevens"))))
    assert caught.value.fields["op"] == op and "no sevens" in str(caught.value)
    batches = run(make(numbers(40), refusing(ValueError("no sevens"))), on_error="quarantine")
    (bad,) = [bad for batch in batches for bad in batch.bad]
    assert (bad.op, bad.elements_left_out) == (op, left_out) and bad.error.endswith("ValueError: no sevens")
    assert sum(batch.rows for batch in batches) == 40 - left_out
    if left_out == 1:
        assert bad.origin == Origin(0, 0, 0, 1, 0) and bad.element["i"] == 7
    with pytest.raises(errors.OpError, match=rf"{op} failed .*SystemExit"):
        run(make(numbers(40), refusing(SystemExit(3))), on_error="skip")


def test_a_length_that_cannot_be_traced_is_an_error_by_name() -> None:
    def fails(element: Any) -> Any:
        raise ValueError("no length")

    for length, said in ((fails, "no length"), (lambda e: tf.stack([e["i"], e["i"]]), "must return one number")):
        with pytest.raises(errors.ElementError, match=f"bucket_by_length.*{said}"):
            run(numbers().bucket_by_length([3], sizes=2, length=length))


def test_flat_map_of_whole_batches_is_refused_by_name() -> None:
    with pytest.raises(errors.PlanError, match="spread: the tensorflow engine has no flat_map of whole batches"):
        run(numbers().batch(4).flat_map(lambda batch: batch, name="spread"))


@pytest.mark.parametrize(
    ("kind", "fn", "message"),
    [
        ("map", lambda e: {"i": object()}, "what it returns cannot be used in a TensorFlow graph"),
        ("map", lambda e: {"i": None}, "odd returned NoneType, but it must return a tensor in column 'i'"),
        ("map", lambda e: {"i": np.ma.masked_array([1, 2], [False, True])}, "odd returned MaskedArray"),
        ("filter", lambda e: None, "odd returned NoneType, but it must return whether to keep"),
        ("filter", lambda e: "no", "it is a tensor of string"),
        ("filter", lambda e: tf.constant([True, False]), "but it must return whether to keep the element, one bool"),
        ("flat_map", lambda e: {"i": tf.constant(1)}, "odd: column 'i' is one value and has no rows"),
        ("flat_map", lambda e: {"i": tf.ragged.constant([[1], [1, 2]])}, "cannot be used in a TensorFlow graph"),
        ("flat_map", lambda e: {"i": tf.zeros(2), "j": tf.zeros(3)}, "odd returned columns of unequal lengths"),
    ],
)
def test_what_cannot_be_in_a_graph_is_an_error_by_name(kind: str, fn: Any, message: str) -> None:
    with pytest.raises(errors.OutputTypeError, match=message) as caught:
        run(getattr(numbers(), kind)(fn, name="odd").batch(4))
    assert caught.value.op == "odd"


def test_a_length_that_is_text_is_an_error_by_name() -> None:
    with pytest.raises(errors.OutputTypeError, match=r"length returned .*it is a tensor of string"):
        run(numbers().bucket_by_length([4], sizes=2, length=lambda e: tf.constant("3")))


def at_7(odd: Any, dtype: Any = tf.int64) -> Callable[[Any], Any]:
    """A function of a number that returns it, and for 7 something else, when the graph runs."""
    return lambda i: tf.ensure_shape(
        tf.numpy_function(lambda v: odd if v == 7 else dtype.as_numpy_dtype(v), [i], dtype), ()
    )


def sometimes(element: dict[str, Any], times: Any) -> dict[str, Any]:
    return {"i": element["i"], "j": tf.repeat(element["i"], tf.where(tf.reduce_any(element["i"] == 7), times, 1))}


AT_7: dict[str, tuple[Callable[[pecan.PecanPipeline], pecan.PecanPipeline], str]] = {
    "dict": (lambda p: p.map(at_7({"a": 1}), on="i", name="odd"), "Unsupported object type dict"),
    "dtype": (lambda p: p.map(at_7("x"), on="i", name="odd"), "returned by pyfunc_.* is string, but expects int64"),
    "uneven": (lambda p: p.map(at_7([[1], [1, 2]]), on="i", name="odd"), "Shape of tensor input"),
    "sparse": (lambda p: p.map(at_7(tf.sparse.from_dense([1, 0])), on="i", name="odd"), "SparseTensor"),
    "ragged": (lambda p: p.map(at_7(tf.ragged.constant([[1], [1, 2]])), on="i", name="odd"), "RaggedTensor"),
    "NaN of a filter": (lambda p: p.filter(lambda i: nan_at_7(i) + 1, on="i", name="odd"), "NaN"),
    "answers": (lambda p: p.filter(lambda i: tf.fill([tf.where(i == 7, 2, 1)], True), on="i", name="odd"), "one bool"),
    "NaN as length": (lambda p: bucketed(p, lambda e: tf.where(e["i"] == 7, float("nan"), 1)), "NaN or infinity"),
    "outputs": (lambda p: p.flat_map(lambda e: sometimes({"i": e["i"][tf.newaxis]}, 2), name="odd"), "unequal lengths"),
    "no outputs": (lambda p: p.flat_map(listed_but_7, on="i", name="odd").map(of_rank_0, on="i"), "one value"),
}


def nan_at_7(i: Any) -> Any:
    return tf.where(i == 7, float("nan"), 1.0)


def listed_but_7(i: Any) -> Any:
    return tf.numpy_function(lambda v: v if v == 7 else v[np.newaxis], [i], tf.int64)


def bucketed(pipe: pecan.PecanPipeline, length: Any) -> pecan.PecanPipeline:
    return pipe.bucket_by_length([3, 50], sizes=[4, 4, 4], length=length).unbatch()


def of_rank_0(value: Any) -> Any:
    return tf.ensure_shape(value, ())


@pytest.mark.parametrize("case", AT_7)
def test_a_value_that_is_none_for_one_element_is_an_error_with_its_place_or_left_out(case: str) -> None:
    make, text = AT_7[case]
    op = "bucket_by_length" if "length" in case else "odd"
    with pytest.raises(errors.ElementError, match=text) as caught:
        run(make(numbers(40)).batch(4))
    assert (caught.value.op, caught.value.element) == (op, 0) and "element 0 of split 1" in str(caught.value)
    batches = run(make(numbers(40)).batch(4), on_error="skip")
    [bad] = [one for batch in batches for one in batch.bad]
    assert (bad.op, bad.where) == (op, "element 0 of split 1")
    assert sorted(values(batches)) == [i for i in range(40) if i != 7]


def test_batches_of_unequal_columns_are_named_by_what_made_them_and_left_out() -> None:
    pipe = numbers(40).batch(4).map(lambda e: sometimes(e, 2), name="odd").unbatch().batch(2)
    with pytest.raises(
        errors.OutputTypeError, match=r"odd returned columns of unequal lengths.*element 4 of split 0"
    ) as caught:
        run(pipe)
    assert (caught.value.op, caught.value.element) == ("odd", 4)
    batches = run(pipe, on_error="skip")
    [bad] = [one for batch in batches for one in batch.bad]
    assert (bad.op, bad.elements_left_out) == ("odd", 4)
    assert sorted(values(batches)) == [i for i in range(40) if i not in range(4, 8)]


@pytest.mark.parametrize(
    ("column", "behind", "text"),
    [
        ([[1], [1, 2]], "batch", "odd returned a list in column 'i' of which no tensor can be made"),
        ({"a": 1}, "batch", "column 'i', which odd made, is a dict where it leaves the graph"),
        (tf.sparse.from_dense([1, 0]), "batch", "is a SparseTensor where it leaves the graph"),
        (tf.sparse.from_dense([1, 0]), "padded_batch", "padded_batch: column 'i', which odd made, is a SparseTensor"),
        (tf.ragged.constant([[1], [1, 2]]), "padded_batch", "is a RaggedTensor where it is padded"),
    ],
)
def test_what_is_no_tensor_is_refused_where_it_would_leave_the_graph(column: Any, behind: str, text: str) -> None:
    pipe = numbers().map(lambda e: {"i": column}, name="odd").map(lambda e: dict(e), name="next")
    with pytest.raises(errors.OutputTypeError, match=text) as caught:
        run(getattr(pipe, behind)(4))
    assert caught.value.op in ("odd", "next")


def test_what_is_no_tensor_may_pass_from_one_map_to_the_next() -> None:
    sparse = numbers(8).map(lambda i: tf.sparse.from_dense([i, 0]), on="i").filter(lambda e: True)
    [batch] = run(sparse.map(tf.sparse.to_dense, on="i").batch(8))
    assert sorted(batch.columns["i"].tolist()) == [[i, 0] for i in range(8)]


def test_a_tuple_is_one_tensor_with_a_row_for_each_of_its_parts() -> None:
    [batch] = run(numbers(4).map(lambda e: {"i": (e["i"], 2 * e["i"])}).batch(4))
    assert batch.columns["i"].tolist() == [[i, 2 * i] for i in range(4)]


def test_padding_asks_for_the_rank_and_a_length() -> None:
    with pytest.raises(errors.OutputTypeError, match="not known how many dimensions column 'i' has"):
        run(numbers().map(lambda e: {"i": tf.numpy_function(lambda v: v, [e["i"]], tf.int64)}).padded_batch(4))
    with pytest.raises(errors.OutputTypeError, match="column 'i' is one value, which has no length"):
        run(numbers().bucket_by_length([3], sizes=2, length="i"))


def test_a_function_of_length_is_called_once_and_its_large_numbers_stay_large() -> None:
    calls: list[int] = []

    def length(element: dict[str, Any]) -> Any:
        def noted(i: Any) -> Any:
            calls.append(int(i))
            return np.int64(1 << 40) if i % 2 else np.int64(0)

        return tf.numpy_function(noted, [element["i"]], tf.int64)

    batches = run(numbers(40).bucket_by_length([3], sizes=[4, 5], length=length))
    assert sorted(calls) == list(range(40))
    assert all(len({i % 2 for i in batch.columns["i"]}) == 1 for batch in batches if batch.rows)


@pytest.mark.parametrize("at", [0, 7])
@pytest.mark.parametrize(
    "value", [[[1], [1, 2]], {"a": 1}, None, tf.ragged.constant([[1], [1, 2]])], ids=lambda v: type(v).__name__
)
def test_values_of_a_source_of_which_no_tensor_can_be_made_are_bad_elements(value: Any, at: int) -> None:
    items = [{"v": value if i == at else [[1, 2], [3, i]]} for i in range(20)]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items), engine="tensorflow").batch(4)
    with pytest.raises(errors.OutputTypeError, match=r"element \d of split \d: column 'v'"):
        run(pipe)
    batches = run(pipe, on_error="quarantine")
    [bad] = [one for batch in batches for one in batch.bad]
    assert bad.op == "source" and (bad.element is None or bad.element["v"] is value)
    assert sorted(v[1][1] for v in values(batches, "v")) == [i for i in range(20) if i != at]
    assert covered(batches) == all_of(pipe)


def test_what_fails_now_and_then_in_a_graph_is_told_as_a_bad_element() -> None:
    calls: list[int] = []

    def once(number: Any) -> Any:
        calls.append(int(number))
        if number == 7 and calls.count(7) == 1:
            raise ValueError("not now")
        return number

    pipe = numbers().map(lambda i: tf.ensure_shape(tf.numpy_function(once, [i], tf.int64), ()), on="i", name="odd")
    found = run(pipe.batch(4), on_error="skip")
    (bad,) = [bad for one in found for bad in one.bad]
    assert (
        bad.op == "odd" and "failed on element 0 of split 1" in bad.error and "not when it was run alone" in bad.error
    )
    assert 7 not in values(found)


@pytest.mark.parametrize("rows", [[[0.0] * 0] * 5, [[1.0], [], [2.0, 3.0], []]])
def test_rows_without_content_go_through_a_graph(rows: list[list[float]]) -> None:
    """TensorFlow's own unbatch ends the process there."""
    source = pecan.sources.Items([{"x": np.array(row, np.float32)} for row in rows])
    pipe = pecan.PecanPipeline(source, name="hollow", engine="tensorflow")
    found = [batch["x"].tolist() for batch in pipe.iter_batches(debug=True)]
    assert found == rows
