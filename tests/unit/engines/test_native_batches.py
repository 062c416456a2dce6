"""A batch behind a tf.data pipeline: TensorFlow makes it, and it is what the engine's own graph would have made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray import errors
from pecan_ray.engines.contract import EngineOptions, Produced
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.engines.tensorflow import TensorFlowEngine, engine, feed
from pecan_ray.plan.fingerprint import canonical_text
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease
from pecan_ray.sources.tf_data import TfDataSource
from tests.unit.engines.engine_leases import ListedLeases, delivered, whole_leases

ROWS, SHARDS = 50, 4


def plain(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.range(ROWS).shard(num_shards, index)


def uneven(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.range(index * 9 % 20)  # 0, 9, 18, 7


def mixed(num_shards: int, index: int) -> Any:
    def columns(n: Any) -> Any:
        text = tf.strings.as_string(n)
        some = tf.cast(tf.stack([n, n]), tf.bfloat16)
        return {"n": n, "text": text, "odd": n % 2 == 1, "some": some}, tf.random.uniform([], seed=1)

    return plain(num_shards, index).filter(lambda n: n % 5 != 1).map(columns)


def quantized(num_shards: int, index: int) -> Any:
    return plain(num_shards, index).map(lambda n: {"q": tf.bitcast(tf.cast([n, 2], tf.int32), tf.qint32)})


def empty(num_shards: int, index: int) -> Any:
    return plain(num_shards, index).filter(lambda n: n < 0)


def first_column(element: dict[str, Any]) -> Any:
    return next(iter(element.values()))


BEHIND: dict[str, Callable[[pecan.PecanPipeline, int], pecan.PecanPipeline]] = {
    "batch": lambda pipe, size: pipe.batch(size),
    "map": lambda pipe, size: pipe.map(lambda one: {**one, "twice": 2 * first_column(one)}).batch(size),
    "filter": lambda pipe, size: pipe.filter(lambda one: first_column(one) % 3 == 0).batch(size),
    "shuffle": lambda pipe, size: pipe.shuffle(7).batch(size),
    "repeat": lambda pipe, size: pipe.repeat(2).batch(size),
    "padded": lambda pipe, size: pipe.map(lambda one: {"n": first_column(one)}).padded_batch(size),
    "map of batches": lambda pipe, size: pipe.batch(size).map(lambda batch: {**batch, "b": first_column(batch) + 1}),
    "unbatch": lambda pipe, size: pipe.batch(size).unbatch(),
}


def engine_of(make: Callable[..., Any], size: int, behind: str = "batch", **options: Any) -> tuple[Any, Any]:
    pipe = BEHIND[behind](pecan.PecanPipeline.from_tf_data(make, num_shards=SHARDS), size)
    sources = list(pipe.plan.sources())
    return sources, TensorFlowEngine(pipe.plan, sources, EngineOptions(**options), HeapSlots())


def read(
    make: Callable[..., Any], size: int, leases: Any = None, behind: str = "batch", **options: Any
) -> tuple[list[Produced], ListedLeases]:
    sources, running = engine_of(make, size, behind, **options)
    given = ListedLeases(leases or whole_leases(sources, num_passes=2 if behind == "repeat" else 1))
    return list(running.batches(given)), given


def shown(batches: list[Produced]) -> list[Any]:
    return [(canonical_text(one.columns), one.rows, one.partial, one.spans) for one in batches if one.rows]


@pytest.mark.parametrize("size", [1, 4, 13, 64])
@pytest.mark.parametrize("make", [plain, uneven, mixed, quantized, empty])
def test_batches_are_those_of_the_engines_own_graph(make: Callable[..., Any], size: int) -> None:
    batches, given = read(make, size)
    graph, _ = read(make, size, on_error="skip")  # which asks about elements one by one
    assert shown(batches) == shown(graph)
    assert delivered(batches) == given.target()
    assert len(given.lengths) == SHARDS


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("make", [plain, uneven, mixed, empty])
def test_operators_get_the_elements_that_are_read_one_by_one(
    make: Callable[..., Any], behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as one_by_one:
        one_by_one.setattr(engine, "elements_of_first_batch", lambda plan: 1)
        expected, _ = read(make, 4, behind=behind, on_error="skip", order="strict")
    monkeypatch.setattr(TfDataSource, "read", lambda *_args: pytest.fail("an element was read alone"))
    batches, given = read(make, 4, behind=behind, on_error="skip", order="strict")
    # A batch may carry the positions of elements that a filter has dropped behind it.
    assert [one[:-1] for one in shown(batches)] == [one[:-1] for one in shown(expected)]
    assert delivered(batches) == given.target()
    assert len(given.lengths) == len(given.given)


def test_a_batch_goes_on_from_shard_to_shard_in_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TensorFlowEngine, "_assignment", None)  # the engine's own graph is not used
    batches, _ = read(uneven, 8)
    assert [one.rows for one in batches] == [8, 8, 8, 8, 2]
    assert [one.partial for one in batches] == [False] * 4 + [True]
    assert np.concatenate([one.columns["0"] for one in batches]).tolist() == [*range(9), *range(18), *range(7)]


@pytest.mark.parametrize("spans", [((5, END),), ((3, 9),), ((0, 2), (6, END)), ((0, 2), (6, 8))])
def test_a_lease_of_some_elements_gives_these(spans: tuple[tuple[int, int], ...]) -> None:
    sources, _ = engine_of(plain, 4)
    ends = [(first << OUTPUT_BITS, stop if stop == END else stop << OUTPUT_BITS) for first, stop in spans]
    leases = [Lease(0, split, spans=tuple(ends)) for split in sources[0].splits()]
    batches, given = read(plain, 4, leases)
    assert delivered(batches) == given.target()
    graph, _ = read(plain, 4, leases, on_error="skip")
    assert shown(batches) == shown(graph)


def test_elements_of_a_lease_of_some_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One beside them may have killed a worker."""
    monkeypatch.setattr(feed, "read_in_runs", None)
    sources, _ = engine_of(plain, 8)
    lease = Lease(0, next(iter(sources[0].splits())), spans=((3 << OUTPUT_BITS, 5 << OUTPUT_BITS),))
    batches, _ = read(plain, 8, [lease], "map")
    assert [one.columns["0"].tolist() for one in batches if one.rows] == [[3 * SHARDS, 4 * SHARDS]]


@pytest.mark.parametrize("behind", ["batch", "map"])
def test_an_element_that_fails_is_named_and_what_is_before_it_is_read_once(behind: str) -> None:
    def failing(num_shards: int, index: int) -> Any:
        bad = tf.constant(30 if index == 2 else -1, tf.int64)

        def checked(n: Any) -> Any:
            with tf.control_dependencies([tf.debugging.assert_none_equal(n, bad)]):
                return tf.identity(n)

        return plain(num_shards, index).map(checked)

    sources, running = engine_of(failing, 4, behind)
    batches, came = running.batches(ListedLeases(whole_leases(sources))), list[int]()
    with pytest.raises(errors.PecanError, match="element 7 of shard 2"):
        came.extend(n for one in batches for n in one.columns["0"].tolist())
    assert came == [n for index in (0, 1, 2) for n in range(index, ROWS, SHARDS)][: len(came)]
    assert len(came) >= 24


def test_elements_of_unequal_shapes_are_refused_by_name() -> None:
    def unequal(num_shards: int, index: int) -> Any:
        return plain(num_shards, index).map(lambda n: {"x": tf.zeros([1 + n // 25])})

    with pytest.raises(errors.PecanError, match="'x'"):
        read(unequal, 8)
