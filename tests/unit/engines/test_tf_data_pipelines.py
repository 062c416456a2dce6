"""Batches behind a tf.data pipeline, which TensorFlow makes, and its next shard, which is opened ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray import errors
from pecan_ray.engines.contract import EngineOptions, Produced
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.engines.tensorflow import TensorFlowEngine, engine, iterating, native
from pecan_ray.plan.fingerprint import canonical_text
from pecan_ray.plan.splits import OUTPUT_BITS, Lease
from pecan_ray.sources.tf_data import TfDataSource
from tests.unit.engines.engine_leases import ListedLeases, delivered, whole_leases

ROWS, SHARDS = 48, 4


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
    "shuffle": lambda pipe, size: pipe.shuffle(7).batch(size),
    "repeat": lambda pipe, size: pipe.repeat(2).batch(size),
    "map of batches": lambda pipe, size: pipe.batch(size).map(lambda batch: {**batch, "b": first_column(batch) + 1}),
    "filter": lambda pipe, size: pipe.filter(lambda one: first_column(one) % 3 == 0).batch(size),
    "padded": lambda pipe, size: pipe.map(lambda one: {"n": first_column(one)}).padded_batch(size),
    "unbatch": lambda pipe, size: pipe.batch(size).unbatch(),
    "nothing": lambda pipe, size: pipe,
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


@pytest.mark.parametrize("size", [4, 13])
@pytest.mark.parametrize("make", [plain, uneven, mixed, quantized, empty])
def test_batches_are_those_of_the_engines_own_graph(make: Callable[..., Any], size: int) -> None:
    batches, given = read(make, size)
    graph, _ = read(make, size, on_error="skip")  # which asks about elements one by one
    assert shown(batches) == shown(graph)
    assert delivered(batches) == given.target()
    assert len(given.lengths) == SHARDS


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("make", [uneven, mixed])
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


@pytest.mark.parametrize("behind", ["batch", "map", "unbatch", "nothing"])
def test_a_lease_of_some_elements_gives_these_and_nothing_behind_them_is_computed(behind: str) -> None:
    computed = list[int]()

    def noting(num_shards: int, index: int) -> Any:
        def note(n: Any) -> Any:
            computed.append(int(n))
            return n

        noted = tf.data.Dataset.range(20).map(lambda n: tf.reshape(tf.numpy_function(note, [n], tf.int64), []))
        return noted.map(lambda n: {"n": n + 1})

    sources, _ = engine_of(noting, 4)
    spans = ((0, 2 << OUTPUT_BITS), (5 << OUTPUT_BITS, 7 << OUTPUT_BITS))
    batches, given = read(noting, 4, [Lease(0, next(iter(sources[0].splits())), spans=spans)], behind)
    assert delivered(batches) == given.target()
    assert [int(n) for one in batches if one.rows for n in np.atleast_1d(one.columns["n"])] == [1, 2, 6, 7]
    assert max(computed) == 6, "the last one that was asked for"


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


WAIT_S = 60.0


class LeasesBesideOthers(ListedLeases):
    """Leases that may be taken beside another one, as a job gives them that has enough for all workers."""

    def take_concurrent(self, branch: int, reading: int, streams: int) -> Lease | None:
        assert (reading, streams) == (1, 2)
        return self.take(branch)


def mapped(num_shards: int, index: int) -> Any:
    return plain(num_shards, index).map(lambda n: {"n": n, "draw": tf.random.uniform([])}).batch(3)


def shuffled(num_shards: int, index: int) -> Any:
    return plain(num_shards, index).shuffle(ROWS)


def counting(num_shards: int, index: int) -> Any:
    count = tf.Variable(0)
    return plain(num_shards, index).map(lambda n: {"n": n, "count": count.assign_add(1)})


def python(num_shards: int, index: int) -> Any:
    return plain(num_shards, index).map(lambda n: tf.numpy_function(np.negative, [n], tf.int64))


class RangeRequest:
    """A function that makes a dataset, and tells which shards it has made."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self.produced: set[int] = set()
        self._changed = threading.Condition()

    def __call__(self, num_shards: int, index: int) -> Any:
        made = self._make(num_shards, index)
        with self._changed:
            self.produced.add(index)
            self._changed.notify_all()
        return made

    def wait_for(self, index: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: index in self.produced, WAIT_S)


def begun(make: Any, leases: Any = LeasesBesideOthers) -> tuple[Any, Iterator[Any]]:
    pipe = pecan.PecanPipeline.from_tf_data(make, num_shards=SHARDS)
    sources = list(pipe.plan.sources())
    given = leases(whole_leases(sources))
    return given, TensorFlowEngine(pipe.plan, sources, EngineOptions(), HeapSlots()).batches(given)


def values(produced: Any) -> list[str]:
    return [str({name: column.tolist() for name, column in one.columns.items()}) for one in produced]


@pytest.mark.parametrize("make", [plain, mapped, shuffled, counting])
def test_a_shard_is_opened_while_the_one_before_it_is_read_and_changes_nothing(make: Any) -> None:
    asked = RangeRequest(make)
    leases, batches = begun(asked)
    first = next(batches)
    assert asked.wait_for(1) and asked.produced == {0, 1}, "two at a time"
    produced = [first, *batches]
    assert delivered(produced) == leases.target()
    assert values(produced) == values(begun(make, ListedLeases)[1])


def test_a_shard_that_calls_python_is_not_overtaken() -> None:
    """What it calls may draw from the process's random generators, which belong to one shard at a time."""
    asked = RangeRequest(python)
    _, batches = begun(asked)
    for number, _ in enumerate(batches):
        assert asked.produced == set(range(number * SHARDS // ROWS + 1))


def test_an_error_of_a_shard_that_was_opened_ahead_comes_in_its_turn() -> None:
    def failing(num_shards: int, index: int) -> Any:
        data = plain(num_shards, index)
        return data.map(lambda n: tf.debugging.check_numerics(tf.math.log(tf.cast(n - 1, tf.float32)), "bad"))

    def refused(num_shards: int, index: int) -> Any:
        return plain(num_shards, index) if index == 0 else "no dataset"

    _, batches = begun(failing)  # the log of -1, and then of 0
    with pytest.raises(errors.OpError, match="element 0 of shard 0"):
        next(batches)
    _, batches = begun(refused)
    assert [next(batches).rows for _ in range(ROWS // SHARDS)] == [1] * (ROWS // SHARDS)
    with pytest.raises(errors.PlanError, match="returned str, not a"):
        next(batches)


def test_a_shard_that_was_opened_ahead_is_given_up_with_the_assignment() -> None:
    before = set(iterating._all)
    asked = RangeRequest(mapped)
    _, batches = begun(asked)
    next(batches)
    assert asked.wait_for(1)
    opened = set(iterating._all) - before
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    for thread in threading.enumerate():
        if thread.name == "pecan-next-shard":
            thread.join(WAIT_S)
    opened |= set(iterating._all) - before
    assert opened and not any(one.is_open for one in opened)


@pytest.mark.parametrize(("chosen", "pool"), [(None, 8), (3, 3)], ids=["ours", "the user's"])
@pytest.mark.parametrize("behind", ["nothing", "batch", "map"])
def test_a_shard_has_a_pool_of_threads_unless_its_user_has_chosen_one(
    behind: str, chosen: int | None, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(num_shards: int, index: int) -> Any:
        options = tf.data.Options()
        if chosen is not None:
            options.threading.private_threadpool_size = chosen
        return plain(num_shards, index).with_options(options)

    def elements_of(data: Any) -> Any:
        pools.append(data.options().threading.private_threadpool_size)
        return kept(data)

    pools, kept = list[int | None](), iterating.Elements
    monkeypatch.setattr(native, "Elements", elements_of)
    read(make, 4, behind=behind, threads=2)
    assert set(pools) == {pool}
