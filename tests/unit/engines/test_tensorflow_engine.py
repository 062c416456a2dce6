"""The tensorflow engine: positions, numbers, tf.data pipelines, graphs and their end; and what both engines count."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray import errors
from pecan_ray.engines.contract import BadElement, EngineModule
from pecan_ray.engines.counting import EVERY, OpCount
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.engines.leases_behind import LeasesBehind
from pecan_ray.engines.registry import ENGINES
from pecan_ray.engines.tensorflow.broadcast_constants import GraphFunction
from pecan_ray.engines.tensorflow.iterating import Elements
from pecan_ray.engines.tensorflow.own_seed import without_global_seed
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.behind import plan_behind
from pecan_ray.plan.operators import ElementOp
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease
from pecan_ray.sampling.spans import Spans
from pecan_ray.sources import Items
from pecan_ray.sources.tf_wide_constants import NARROW
from tests.ray.waiting import until
from tests.unit.engines import engine_leases
from tests.unit.engines.engine_leases import ListedLeases, all_said, built, column, delivered, running, sources_of
from tests.unit.engines.tensorflow_rig import ROWS, all_of, numbers, run


def by_thirds(i: Any) -> Any:
    return tf.repeat(i, i % 3)


PLANS: dict[str, Callable[[PecanPipeline], PecanPipeline]] = {
    "map": lambda p: p.map(lambda i: i * 2, on="i", name="twice").batch(16),
    "filter": lambda p: p.filter(lambda i: i % 3 == 0, on="i").batch(16),
    "flat_map twice": lambda p: p.flat_map(by_thirds, on="i").flat_map(by_thirds, on="i").batch(4),
    "shuffle": lambda p: p.shuffle(20).batch(16),
    "padded": lambda p: p.map(lambda e: {"i": e["i"], "v": tf.range(e["i"] % 5)}, name="ragged").padded_batch(16),
    "buckets": lambda p: p.map(lambda e: {"i": e["i"], "v": tf.range(e["i"] % 9)}, name="ragged").bucket_by_length(
        [3, 6], sizes=[4, 5, 6], length="v"
    ),
    "unbatch": lambda p: p.batch(8).unbatch().batch(5),
    "concat": lambda p: p.concat(numbers()).batch(16),
    "mix": lambda p: p.mix(numbers(), weights=[1, 3]).batch(16),
    "nothing left": lambda p: p.filter(lambda i: i < 0, on="i").batch(16),
    "flat_map": lambda p: p.flat_map(by_thirds, on="i").batch(16),
    "unbatched": lambda p: p.map(lambda i: i + 1, on="i", name="next"),
}


@pytest.mark.parametrize("plan", PLANS)
def test_every_position_is_in_exactly_one_batch_of_columns_or_of_elements(plan: str) -> None:
    pipe = PLANS[plan](numbers())
    items = pecan.sources.Items([{"i": np.int64(i)} for i in range(ROWS)], split_rows=7)
    one_by_one = PLANS[plan](PecanPipeline(items, name="numbers", engine="tensorflow"))
    batches, *found = run(pipe, threads=2), *(run(one, order="strict", threads=2) for one in (pipe, one_by_one))
    assert delivered(batches) == delivered(found[0]) == delivered(found[1]) == all_of(pipe)
    values = [np.hstack([[], *(one.columns["i"].ravel() for one in each if one.rows)]) for each in found]
    assert np.array_equal(values[0], values[1])
    if plan in ("map", "filter", "unbatch", "shuffle"):
        plain = PLANS[plan](PecanPipeline(pecan.sources.Arrays(i=np.arange(ROWS), split_rows=7)))
        theirs = Counter(int(i) for batch in plain.iter_batches(debug=True) for i in np.ravel(batch["i"]))
        assert Counter(map(int, column(batches))) == theirs, "those of the other engine"
    if plan == "map":
        assert sorted((batch.partial, batch.rows) for batch in batches) == [(False, 16)] * 6 + [(True, 4)]
    sizes = (4, 4, 4, 5, 5, 5, 6, 6, 6)  # of buckets, by the length
    for batch in batches if plan == "buckets" else ():
        assert not batch.rows or batch.partial == (batch.rows < sizes[int(batch.columns["i"].max() % 9)])


@pytest.mark.parametrize("batched", ["padded_batch", "bucket_by_length"])
def test_columns_of_bool_are_padded(batched: str) -> None:
    masks = numbers(4).map(lambda one: {"i": one["i"], "mask": tf.fill([one["i"]], one["i"] == 1)})

    def padded(padding: Any) -> list[list[bool]]:
        pipe = (
            masks.padded_batch(4, padding=padding)
            if batched == "padded_batch"
            else masks.bucket_by_length([9], sizes=4, length="mask", padding=padding)
        )
        (batch,) = run(pipe, order="strict")
        assert batch.columns["mask"].dtype == bool
        return [row.tolist() for row in batch.columns["mask"]]

    no, yes = False, True
    assert padded(0) == padded({"i": 7}) == [[no, no, no], [yes, no, no], [no, no, no], [no, no, no]]
    assert padded({"mask": True}) == [[yes, yes, yes], [yes, yes, yes], [no, no, yes], [no, no, no]]


def test_columns_come_through_whole_or_value_by_value(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"v": pa.array([1, 2, None, 4])}, "'v' is object"),
        ({"v": pa.array([["a"], ["b", None]])}, "'v' is list"),
        ({"v": pa.array([[1], [2, 3], [4], []])}, ""),
        ({"v": pa.array(["a", "é", "", "d"])}, ""),
        ({"v": pa.array([[1.0, 2.0]] * 4), "w": pa.array([1, 2, 3, 4], pa.int8())}, ""),
    ]
    for number, (columns, refused) in enumerate(cases):
        path = str(tmp_path / f"{number}.parquet")
        pq.write_table(pa.table(columns), path)
        pipe = PecanPipeline(pecan.sources.Parquet(path), engine="tensorflow").batch(1)
        if refused:
            with pytest.raises(errors.OutputTypeError, match=refused):
                run(pipe)
            continue
        batches = run(pipe, order="strict")
        for name, wanted in columns.items():
            got = [[v.decode() if isinstance(v, bytes) else v for v in np.ravel(row)] for row in column(batches, name)]
            assert got == [np.ravel(given).tolist() for given in wanted.to_pylist()]


def noisy(x: Any, rng: Any) -> Any:
    return x + tf.random.stateless_uniform([4], rng)


def test_random_numbers_depend_on_seed_epoch_and_element_alone() -> None:
    pipe = numbers(x=np.zeros((ROWS, 4), np.float32)).map(noisy, on="x").batch(16)

    def drawn(epoch: int = 0, **options: Any) -> dict[int, tuple[float, ...]]:
        batches = run(pipe, AllLeases(list(pipe.plan.sources()), epoch, 1), **options)
        return {int(i): tuple(x) for i, x in zip(column(batches), column(batches, "x"), strict=True)}

    one = drawn(order="strict", threads=1)
    assert one == drawn(order="relaxed", threads=2)
    assert len(set(one.values())) == ROWS
    assert not set(one.values()) & {*drawn(seed=1).values(), *drawn(epoch=3).values()}


def test_functions_are_given_the_epoch_in_each_epoch_of_one_worker() -> None:
    pipe = numbers().map(lambda i, rng, epoch: i + 1000 * epoch, on="i")
    pipe = pipe.filter(lambda i, epoch: i % 1000 >= epoch, on="i").batch(16)
    with built(pipe, order="strict") as engine:
        for epoch in range(3):
            batches = all_said(pipe.plan, AllLeases(sources_of(pipe), epoch, 1), engine.batches)
            assert column(batches) == [1000 * epoch + i for i in range(epoch, ROWS)]


def test_operations_that_hold_a_state_draw_other_numbers_in_each_stretch_of_an_epoch() -> None:
    """A worker is given many, as where its rows are joined with those of others."""
    start = PecanPipeline(Items([{"i": n} for n in range(16)], split_rows=16), engine="tensorflow")
    pipe = start.map(lambda element: {"a": tf.random.uniform([]), "b": tf.random.uniform([], seed=1)}).batch(4)
    split = next(iter(sources_of(pipe)[0].splits()))

    def drawn() -> list[float]:
        found: list[float] = []
        with built(pipe) as engine:
            for epoch, start in product(range(2), range(0, 16, 8)):
                span = (start << OUTPUT_BITS, (start + 8) << OUTPUT_BITS)
                for made in engine.batches(ListedLeases([Lease(epoch, split, (span,))])):
                    found += [float(value) for name in "ab" for value in made.columns.get(name, ())]
        return found

    once = drawn()
    assert len(once) == 64 and len(set(once)) == len(once) and sorted(once) == sorted(drawn())


def test_what_shuffle_and_mix_draw_does_not_depend_on_the_process_and_its_global_seed() -> None:
    """A worker seeds its global generators, each in its own way, and users seed those of the trainer."""
    other = PecanPipeline(pecan.sources.Arrays(i=np.arange(1000, 1040)), engine="tensorflow")
    pipe = numbers().shuffle(20).mix(other.shuffle(9, seed=1), weights=[2, 1]).batch(8)
    found = []
    with without_global_seed():  # it is given back to other tests
        for seed in (1, 2):
            tf.random.set_seed(seed)
            first = float(tf.random.uniform([]))
            found.append(column(run(pipe)))
            second = float(tf.random.uniform([]))
            tf.random.set_seed(seed)
            assert [first, second] == [float(tf.random.uniform([])) for _ in range(2)], (
                "the user's numbers are left alone"
            )
    assert found[0] == found[1] and sorted(found[0]) == [*range(ROWS), *range(1000, 1040)]


def test_what_a_lease_asks_for_is_delivered_and_a_plan_that_begins_behind_its_first_batches_yields_the_others() -> None:
    pipe = numbers().flat_map(by_thirds, on="i").batch(3)
    split = next(iter(next(pipe.plan.sources()).splits()))
    whole = run(pipe, ListedLeases([Lease(0, split)]), order="strict")
    rest = Spans([(0, END)])
    for span in whole[0].spans[0, 0, 0]:
        rest.remove(*span)
    leases = ListedLeases([Lease(0, split, spans=tuple(rest))])
    assert column(run(pipe, leases, order="strict")) == column(whole)[3:]
    assert leases.lengths == {(0, 0, 0): 7}
    pipe = numbers().skip(5).map(lambda i: i * 2, on="i", name="twice").take(60).batch(8)
    left = plan_behind(pipe.plan, 3)
    assert left is not None and left.elements == (29,)
    sources = sources_of(pipe)
    behind = run(left.plan, LeasesBehind(AllLeases(sources, 0, 1), sources, left.elements), order="strict")
    assert column(behind) == [2 * i for i in range(29, 65)] == column(run(pipe, order="strict"))[24:]


def test_operators_follow_the_columns_of_a_tf_data_pipeline() -> None:
    pipe = PecanPipeline.from_tf_data(lambda: tf.data.Dataset.range(10).map(lambda x: (x, {"double": x * 2})))
    batches = run(pipe.map(lambda v: v + 1, on="1/double", name="more").batch(4), order="strict")
    assert (column(batches, "0"), column(batches, "1/double")) == (list(range(10)), [2 * i + 1 for i in range(10)])


def test_the_end_of_an_iterator_is_waited_for_elsewhere() -> None:
    ended: list[str] = []

    class Data:
        element_spec = None

        def __iter__(self) -> Iterator[int]:
            try:
                yield from range(3)
            finally:
                ended.append(threading.current_thread().name)

    elements = Elements(Data())
    assert next(elements) == 0
    elements.close()
    until(lambda: ended == ["pecan-end-of-graph"], "nobody has given it up")
    assert list(elements) == [] and list(Elements(None)) == []
    assert list(Elements(Data())) == [0, 1, 2]


def test_a_process_ends_while_graphs_are_under_way_of_which_one_was_closed() -> None:
    script = """
import numpy as np
import pecan_ray as pecan
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.engines.tensorflow import TensorFlowEngine
from pecan_ray.engines.tensorflow.chunks import chunk_bounds

rows = pecan.sources.Items([{"x": np.full(4, n, np.float32)} for n in range(10_000)])
plan = pecan.PecanPipeline(rows, engine="tensorflow").map(lambda x: x * 2, on="x").batch(4).plan
engines = [TensorFlowEngine(plan, list(plan.sources()), EngineOptions(threads=2), HeapSlots()) for _ in range(2)]
forgotten, closed = [engine.batches(AllLeases(list(plan.sources()), 0, 1)) for engine in engines]
for batches in (forgotten, closed):
    print([next(batches).rows for _ in range(20)] == [4] * 20)
closed.close()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "True\nTrue\n", done.stderr


def test_integers_are_not_rounded() -> None:
    values = [[2**63 + 1, 7], [2**63 + 3, 9]]
    pipe = PecanPipeline(Items([{"v": one} for one in values]), engine="tensorflow").batch(2)
    assert [batch["v"].tolist() for batch in pipe.iter_batches(debug=True)] == [values]


def test_a_graph_that_yields_nothing_for_long_is_told_with_what_it_was_given() -> None:
    reached, may_go_on = threading.Event(), threading.Event()

    def ponders(i: Any) -> Any:
        if i == 17:
            reached.set()
            assert may_go_on.wait(60)
        return i

    pipe = numbers(20).map(lambda i: tf.ensure_shape(tf.py_function(ponders, [i], tf.int64), ()), on="i").batch(4)
    with running(pipe) as (engine, batches), ThreadPoolExecutor(1) as pool:
        made = pool.submit(list, batches)
        try:
            assert reached.wait(60)
            # It is given more at first, and counts from the last time on.
            told = next(told for look in range(100_000) if (told := engine.under_way(6.0 * look)) is not None)
        finally:
            may_go_on.set()
        assert len(column(made.result(60))) == 20 and engine.under_way(1e9) is None
    assert told.text.startswith("the graph has yielded nothing for {seconds}, since it was given element ")


MEANS = np.array([123.68, 116.78, 103.94], np.float32)
IMAGE = np.random.default_rng(0).uniform(0, 255, (20, 30, 3)).astype(np.float32)
SPEC = tf.TensorSpec((20, 30, 3), tf.float32)


def constants(function: GraphFunction, *args: Any) -> set[tuple[int, ...]]:
    graph = tf.function(function.__call__, autograph=False).get_concrete_function(*args).graph
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for called in definition.library.function for node in called.node_def)]
    return {
        tuple(dim.size for dim in node.attr["value"].tensor.tensor_shape.dim) for node in nodes if node.op == "Const"
    }


def test_constants_of_channels_become_rows_and_the_result_stays() -> None:
    fns: list[Callable[[Any], Any]] = [
        lambda image: image - MEANS,
        lambda image: MEANS - image,
        lambda image: tf.maximum(image * MEANS, MEANS.reshape(1, 3)),
        lambda image: (image - MEANS) / (MEANS + 1) + MEANS,
    ]
    for fn in fns:
        function = GraphFunction(fn, SPEC)
        assert np.array_equal(function(tf.constant(IMAGE)), function.traced(tf.constant(IMAGE)))
        assert (30, 3) in constants(function, SPEC)
    function = GraphFunction(lambda images: images - MEANS, tf.TensorSpec((None, 20, 30, 3), tf.float32))
    assert np.array_equal(function(tf.constant(IMAGE[None])), IMAGE[None] - MEANS), "a batch has one dimension more"


OTHERS: dict[str, tuple[Callable[[Any], Any], tuple[int | None, ...]]] = {
    "one channel": (lambda image: image - MEANS, (20, 30, 1)),
    "wide": (lambda image: image - np.ones(NARROW + 1, np.float32), (20, 30, NARROW + 1)),
    "row": (lambda image: image - np.ones((30, 3), np.float32), (20, 30, 3)),
    "scalar": (lambda image: image / 255.0, (20, 30, 3)),
    "computed": (lambda image: image - tf.reduce_mean(image, axis=(0, 1)), (20, 30, 3)),
    "long": (lambda image: image - MEANS, (2, 1 << 16, 3)),
    "rows vary": (lambda image: image - MEANS, (None, None, 3)),
    "more dimensions": (lambda image: image - np.ones((1, 1, 1, 3), np.float32), (20, 30, 3)),
    "vector": (lambda image: image - MEANS, (3,)),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_functions_stay_as_they_are(case: str) -> None:
    fn, shape = OTHERS[case]
    function = GraphFunction(fn, tf.TensorSpec(shape, tf.float32))
    assert function._call is function.traced
    image = tf.constant(np.ones([side or 5 for side in shape], np.float32))
    assert np.array_equal(function(image), fn(image))


OFFERED = [name for name, member in vars(EngineModule).items() if inspect.isfunction(member) and name[0] != "_"]


@pytest.mark.parametrize("name", get_args(EngineName))
def test_every_engine_offers_the_same_functions_and_runs_a_quarantined_element_again(name: EngineName) -> None:
    assert set(ENGINES) == set(get_args(EngineName))
    module, seen = ENGINES[name].load(), list[Any]()
    for offered in OFFERED:
        wanted = list(inspect.signature(getattr(EngineModule, offered)).parameters)[1:]
        assert list(inspect.signature(getattr(module, offered)).parameters) == wanted

    def noted(x: float) -> float:
        seen.append(x)
        return x

    plan = PecanPipeline(Items([1.0]), engine=name).map(noted, on="item").plan
    ops = [op for op in plan.ops if isinstance(op, ElementOp)]
    module.replay(ops, BadElement("noted", "", "", {"item": 2.0}), 0)
    assert len(seen) == 1


COUNTED_ROWS = 160


def counted(pipe: PecanPipeline, epoch: int = 0) -> Mapping[str, OpCount]:
    with running(pipe, AllLeases(sources_of(pipe), epoch, 1), count_epoch=0) as (engine, batches):
        assert sum(produced.rows for produced in batches) > 0
        return dict(engine.counts())


COUNTED_X = np.ones((COUNTED_ROWS, 8), np.float32)
COUNTED: dict[str, Callable[[PecanPipeline], PecanPipeline]] = {
    "maps": lambda p: p.map(lambda x: x[:4], on="x", name="cut").map(lambda i: i + 1, on="i", name="next").batch(8),
    "filter": lambda p: p.filter(lambda i: i % 3 == 0, on="i", name="thirds").batch(8),
    "created": lambda p: p.map(lambda e: {**e, "y": e["x"] * 2}, name="twice").batch(8),
    "flat_map": lambda p: p.flat_map(_three, name="three").batch(8),
}


def _three(element: dict[str, Any]) -> Any:
    if isinstance(element["i"], (np.generic, int)):
        return [element, element, element]
    return {name: tf.stack([value] * 3) for name, value in element.items()}


@pytest.mark.parametrize("plan", COUNTED)
def test_both_engines_count_the_same_in_the_first_epoch_alone(plan: str) -> None:
    pipes = [
        COUNTED[plan](engine_leases.numbers(COUNTED_ROWS, 20, engine=engine, x=COUNTED_X))
        for engine in get_args(EngineName)
    ]
    ours, theirs = map(counted, pipes)
    assert ours == theirs
    elements = COUNTED_ROWS // EVERY
    assert all(count.elements_in == elements for count in ours.values())
    if plan == "maps":  # sizes are those of all columns
        assert ours["cut"] == OpCount(elements, elements, elements * (8 * 4 + 8), elements * (4 * 4 + 8))
        assert [counted(pipe, epoch=1) for pipe in pipes] == [{}, {}]


def test_a_graph_counts_strings_by_their_lengths() -> None:
    pipe = PecanPipeline(pecan.sources.Items([{"text": "ab" * n} for n in range(16)]), engine="tensorflow")
    found = counted(pipe.map(lambda text: tf.strings.join([text, "!"]), on="text", name="shout").batch(4))
    assert found["shout"].bytes_out == found["shout"].bytes_in + found["shout"].elements_in == 2 * 8 + 2
