"""Shards of tf.data pipelines: their ends, what means another thing for them than for the whole, and their functions.

Those are traced once for all shards and passes, as long as they are the same.
"""

from __future__ import annotations

import functools
import logging
import pickle
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pecan_ray import errors
from pecan_ray.engines.tensorflow.own_seed import without_global_seed
from pecan_ray.plan.splits import Lease
from pecan_ray.sources.tf_data import TfDataSource
from pecan_ray.sources.tf_seeds import DatasetPass

SHARDS = 4


def part(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.range(40).shard(num_shards, index)


def sliding(data: Any) -> Any:
    return data.window(3, shift=1, drop_remainder=True).flat_map(lambda window: window.batch(3, drop_remainder=True))


def only_even(data: Any) -> Any:
    return data.filter(lambda n: n % 2 == 0).map(lambda n: n + 1)


NO_END = "a shard of .*make.* has no end.*epochs="
DROPS = "drops a remainder of each of its 4 shards"
SHARDED: dict[str, tuple[Callable[[Any], Any], str | None]] = {
    "endless": (lambda data: data.repeat(), NO_END),
    "endless behind a filter": (lambda data: only_even(data.repeat()).batch(2).prefetch(1), NO_END),
    "endless and chosen first": (
        lambda data: tf.data.Dataset.sample_from_datasets([only_even(data.repeat()), data], seed=1),
        NO_END,
    ),
    "dropping": (lambda data: data.batch(64, drop_remainder=True), DROPS),
    "dropping behind a filter": (
        lambda data: data.filter(lambda n: n > 2).padded_batch(2, drop_remainder=True).map(lambda n: n + 1),
        DROPS,
    ),
    "repeated twice": (lambda data: data.repeat(2), None),
    "repeated and cut": (lambda data: only_even(data.repeat()).take(3), None),
    "beside a counter": (lambda data: tf.data.Dataset.zip((data, tf.data.Dataset.counter())), None),
    "dropping nothing": (lambda data: data.batch(5, drop_remainder=True), None),
    "sliding": (sliding, None),
}


def opened(make: Callable[..., Any], num_shards: int = SHARDS) -> Any:
    source = TfDataSource(make, num_shards=num_shards)
    return source.dataset(next(source.splits()))


@pytest.mark.parametrize("kind", SHARDED)
def test_shards_without_end_or_that_drop_a_remainder_are_refused_and_others_read(kind: str) -> None:
    change, said = SHARDED[kind]

    def make(num_shards: int, index: int) -> Any:
        return change(part(num_shards, index))

    opened(make, num_shards=1)
    if said is None:
        assert len(list(opened(make))) == len(list(make(SHARDS, 0)))
    else:
        with pytest.raises(errors.PlanError, match=said) as caught:
            opened(make)
        assert ("Leave .repeat() out" in caught.value.message) is (said == NO_END)


MADE: dict[str, Callable[[int, int], Any]] = {
    "counting": lambda n, i: part(n, i).skip(2).map(lambda n: n).take(3),
    "uneven": lambda n, i: (
        tf.data.Dataset.range(22).shard(n, i).batch(5, num_parallel_calls=2).map(lambda n: n).prefetch(1)
    ),
    "unknown": lambda n, i: tf.data.Dataset.range(20).filter(lambda n: n >= 0).padded_batch(5),
    "even": lambda n, i: tf.data.Dataset.range(20).shard(n, i).batch(5),
    "unbatched": lambda n, i: tf.data.Dataset.range(22).batch(5).unbatch(),
    "counting_first": lambda n, i: tf.data.Dataset.range(40).skip(2).shard(n, i),
}
"""Datasets in which a number may mean another thing for a shard than for the whole; it does so in the first three."""


def test_what_means_another_thing_for_a_shard_than_for_the_whole_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def named(name: str) -> Callable[..., Any]:
        def make(num_shards: int, index: int) -> Any:
            return MADE[name](num_shards, index)

        make.__name__ = make.__qualname__ = name
        return make

    functions = [named(name) for name in MADE]
    with caplog.at_level(logging.WARNING, "pecan_ray"):
        for make in functions * 2:
            opened(make)
        for make in functions[:2]:
            opened(make, num_shards=1)
    of_counting, of_uneven, of_unknown = [record.getMessage() for record in caplog.records]
    assert "counting calls take and skip on its shards: the number counts in each of the 4 shards" in of_counting
    assert "uneven makes batches of 5 in each of its 4 shards" in of_uneven
    assert "from_tf_data(uneven).batch(5)" in of_uneven and "unknown makes batches of 5" in of_unknown


# --- random numbers ------------------------------------------------------------------------------------------


Rows = list[tuple[Any, ...]]


def read(source: TfDataSource, epochs: int = 2, opened: Callable[[], TfDataSource] | None = None) -> list[Rows]:
    """Return the elements of each shard in each epoch, each read by a source of its own if there is what makes one."""
    return [
        [tuple(map(float, row.values())) for row in (opened() if opened else source).of_lease(lease).read(lease.split)]
        for lease in (Lease(epoch, split) for epoch in range(epochs) for split in source.splits())
    ]


def passes(make: Callable[..., Any], *, seed: int = 0, epochs: int = 2) -> list[list[Rows]]:
    """Return what each of two shards yields in each epoch."""
    found = read(TfDataSource(make, num_shards=2, place=DatasetPass(seed)), epochs)
    return [found[at : at + 2] for at in range(0, len(found), 2)]


def with_global_seed(data: Any) -> Any:
    tf.random.set_seed(5)
    return data.map(lambda n: (n, tf.random.uniform([])))


def with_generator(data: Any) -> Any:
    generator = tf.random.Generator.from_seed(1)
    return data.map(lambda n: (n, generator.uniform([])))


def with_layer(data: Any) -> Any:
    layer = tf.keras.layers.RandomBrightness(0.5, value_range=(0, 1), seed=3)
    return data.map(lambda n: (n, layer(tf.ones([1, 1, 3]) * 0.5, training=True)[0, 0, 0]))


def twice_without_seed(data: Any) -> Any:
    return data.map(lambda n: (n, tf.random.uniform([]))).map(lambda n, x: (n, x, tf.random.uniform([])))


DRAWING: dict[str, Callable[[Any], Any]] = {
    "with a seed": lambda data: data.map(lambda n: (n, tf.random.uniform([], seed=1))),
    "with a global seed": with_global_seed,
    "twice without a seed": twice_without_seed,
    "with a generator": with_generator,
    "with a layer": with_layer,
    "beside random": lambda data: tf.data.Dataset.zip(data, tf.data.Dataset.random(seed=1)),
}


@pytest.mark.parametrize("kind", DRAWING)
def test_each_shard_and_each_epoch_draws_numbers_of_its_own_and_the_same_again(kind: str) -> None:
    def make(num_shards: int, index: int) -> Any:
        return DRAWING[kind](part(num_shards, index))

    def drawn(seed: int) -> list[float]:
        return [x for epoch in passes(make, seed=seed) for shard in epoch for _, *draws in shard for x in draws]

    first = drawn(0)
    assert len(set(first)) == len(first) >= 80
    assert drawn(0) == first and not set(drawn(1)) & set(first)
    with without_global_seed():
        alone = [x for element in make(2, 0) for x in map(float, element[1:])]
    assert (first[: len(alone)] == alone) is ("without" not in kind), "as in tf.data, if there is a seed"


def shuffled_and_sharded(num_shards: int, index: int) -> Any:
    data = tf.data.Dataset.range(40).shuffle(40).map(lambda n: n).shard(num_shards, index)
    return data.map(lambda n: (n, tf.random.uniform([])))


def sharded_by_hand(num_shards: int, index: int) -> Any:
    order = list(range(40))
    random.shuffle(order)
    return tf.data.Dataset.from_tensor_slices(tf.random.shuffle(order)[index::num_shards])


def sharded_by_a_filter(num_shards: int, index: int) -> Any:
    numbered = tf.data.Dataset.range(40).shuffle(40, seed=1).enumerate()
    return numbered.filter(lambda place, n: place % num_shards == index).map(lambda place, n: n)


def of_shuffled_tens(num_shards: int, index: int) -> Any:
    tens = tf.data.Dataset.range(4).interleave(lambda n: tf.data.Dataset.range(10 * n, 10 * n + 10).shuffle(10))
    drawn = tf.data.Dataset.sample_from_datasets([tens.take(20), tens.skip(20)], seed=4)
    return drawn.shard(num_shards, index)


@pytest.mark.parametrize("make", [shuffled_and_sharded, sharded_by_hand, sharded_by_a_filter, of_shuffled_tens])
def test_what_decides_which_elements_a_shard_has_is_alike_in_all_shards(make: Callable[..., Any]) -> None:
    first, second = passes(make)
    assert sorted(row[0] for shard in first for row in shard) == list(range(40))
    assert [row[0] for shard in first for row in shard] != [row[0] for shard in second for row in shard]
    draws = [row[1] for shard in first for row in shard if len(row) > 1]
    assert len(set(draws)) == len(draws), "what is behind .shard() differs"


def test_a_function_may_take_epoch_and_seed() -> None:
    got: list[tuple[int, ...]] = []

    def make(epoch: int, num_shards: int, index: int, *, seed: int) -> Any:
        got.append((epoch, num_shards, index, seed))
        return part(num_shards, index)

    def own(seed: int = 3, epoch: int = 7) -> Any:
        got.append((seed, epoch))
        return part(1, 0)

    passes(make, seed=9)
    assert got == [(epoch, 2, index, 9) for epoch in range(2) for index in range(2)]
    got.clear()
    passes(own, seed=9)
    passes(functools.partial(own, epoch=4), seed=9, epochs=1)
    assert got == [(3, 0), (3, 1), (3, 4)], "a value that the user has given stays"
    with pytest.raises(errors.PlanError, match="beside them it may take epoch and seed"):
        passes(lambda epoch, shard: None)


def test_what_seeds_do_not_reach_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    flip = tf.keras.layers.RandomFlip(seed=3)
    rng, lottery = np.random.default_rng(1), random.Random(1)
    numbers = tf.data.Dataset.range(4)

    def draw(number: Any) -> Any:
        return np.float32(rng.random())

    def draws() -> Any:
        yield lottery.random()

    def outside() -> Any:
        return numbers.map(lambda n: flip(tf.zeros([4, 4, 3]), training=True))

    def called() -> Any:
        return numbers.map(lambda n: tf.numpy_function(draw, [n], tf.float32))

    def eager() -> Any:
        return numbers.map(lambda n: tf.py_function(functools.partial(draw), [n], tf.float32))

    def generated() -> Any:
        return tf.data.Dataset.from_generator(draws, output_signature=tf.TensorSpec([], tf.float64))

    def quiet() -> Any:
        counter, read = tf.Variable(0), numbers.map(lambda n: tf.numpy_function(np.float32, [n], tf.float32))
        return read.map(lambda n: counter.assign_add(1))

    for make in (outside, called, eager, generated, quiet) * 2:
        opened(make)
    outside_said, *generators_said = [record.getMessage() for record in caplog.records if record.name == "pecan_ray"]
    assert "moves on a state that was made outside of it (AssignVariableOp)" in outside_said
    found = [re.findall(r"(\w+) draws random numbers by ([^.]+)\.", said)[0] for said in generators_said]
    of_numpy, of_python = "PyFunc (a Generator of numpy)", "PyFunc (a Random of random)"
    assert found == [("called", of_numpy), ("eager", f"Eager{of_numpy}"), ("generated", of_python)]


# --- functions that are traced once ---------------------------------------------------------------------------------

settings = {"add": 0}


class Notes:
    """Which functions were traced; a function that holds it does not change with it."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __reduce__(self) -> tuple[type[Notes], tuple[()]]:
        return Notes, ()


notes = Notes()


def numbers(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.range(12).shard(num_shards, index)


def anew(make: Callable[..., Any], seed: int) -> list[Rows]:
    """Return the same, each read by a source that has traced nothing yet but knows which seeds are alike."""
    source = TfDataSource(make, num_shards=3, place=DatasetPass(seed))
    read(source, 1)

    def untraced() -> TfDataSource:
        return TfDataSource(source.make_dataset, num_shards=3, place=source.place, scope_types=source.scope_types)

    return read(source, opened=untraced)


def plain(n: Any) -> Any:
    notes.names.append("plain")
    return n * 2 + settings["add"]


def drawing(n: Any) -> Any:
    notes.names.append("drawing")
    return n, tf.cond(n > 3, lambda: tf.random.uniform([], seed=1), lambda: tf.random.uniform([]))


def within(n: Any) -> Any:
    notes.names.append("within")
    return tf.data.Dataset.range(n, n + 9).shuffle(9).take(2)


@pytest.fixture(autouse=True)
def nothing_traced() -> None:
    notes.names.clear()
    settings["add"] = 0


KINDS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda data: data.map(plain).filter(lambda n: n > 0),
    "drawing": lambda data: data.map(drawing, num_parallel_calls=1).map(lambda n, x: (n, x, x + tf.random.normal([]))),
    "shuffling within": lambda data: data.flat_map(within),
    "alike": lambda data: tf.data.Dataset.zip(data.map(drawing), data.map(drawing)),
}


@pytest.mark.parametrize("kind", [*KINDS, "a dataset of all"])
def test_what_functions_give_that_were_traced_for_another_shard_or_pass_is_what_new_ones_give(kind: str) -> None:
    def flat(num_shards: int, index: int) -> Any:
        of_all = tf.data.Dataset.range(12).shuffle(12).map(drawing).shard(num_shards, index)
        made = KINDS[kind](numbers(num_shards, index)) if kind in KINDS else of_all
        return made.map(lambda *parts: tuple(tf.nest.flatten(parts)))

    source = TfDataSource(flat, num_shards=3, place=DatasetPass(seed=5))
    first = read(source)
    assert first == anew(flat, seed=5) and read(source) == first
    draws = [x for shard in first for row in shard for x in row if 0 < x < 1]
    assert len(set(draws)) >= len(draws) // 2, "those of an image and its mask are alike, and no others"


def test_a_function_is_traced_once_for_all_shards_and_passes() -> None:
    def made(num_shards: int, index: int) -> Any:
        return numbers(num_shards, index).map(lambda n: plain(n)).map(drawing)

    source = TfDataSource(made, num_shards=3)
    read(source, 3)
    once = ["plain", "drawing", "drawing"]  # the first shard has the user's own seeds, which stay where they are
    assert notes.names == once
    read(pickle.loads(pickle.dumps(TfDataSource(numbers, num_shards=3))), 1)
    read(TfDataSource(made, num_shards=3), 1)
    assert notes.names == 2 * once, "nothing is kept for another pipeline"


def test_a_function_that_has_changed_is_traced_again() -> None:
    table = [tf.constant(3), np.arange(3)]

    def made(num_shards: int, index: int, epoch: int) -> Any:
        settings["add"] = 100 * epoch
        table[1][0] = 7 * epoch
        data = numbers(num_shards, index).map(plain).map(lambda n: n + index * 1000)
        return data.map(lambda n: n + tf.cast(table[0], tf.int64) + table[1][0])

    got = [row[0] for shard in read(TfDataSource(made, num_shards=3)) for row in shard]
    wanted = [2 * n + 107 * e + 1000 * i + 3 for e in range(2) for i in range(3) for n in range(i, 12, 3)]
    assert got == wanted and notes.names == ["plain", "plain"]


def test_a_function_is_traced_again_for_another_value_that_it_carries() -> None:
    def made(num_shards: int, index: int) -> Any:
        def scaled(n: Any) -> Any:
            return n * vars(scaled)["scale"] + vars(scaled)["shift"]

        vars(scaled).update(scale=10 * index, shift=index)
        return numbers(num_shards, index).map(scaled)

    got = [row[0] for shard in read(TfDataSource(made, num_shards=3), 1) for row in shard]
    assert got == [10 * i * n + i for i in range(3) for n in range(i, 12, 3)]


def test_a_shard_that_cannot_be_made_is_named() -> None:
    def made(num_shards: int, index: int) -> Any:
        return tf.data.TextLineDataset(tf.data.Dataset.from_tensor_slices(["a.txt", "b.txt"][index::num_shards]))

    source = TfDataSource(made, num_shards=3)
    first, *_, last = source.splits()
    source.build_dataset(first)
    with pytest.raises(errors.OpError, match=r"made could not make shard 2 of 3: TypeError: .*float32(.|\n)*TextLine"):
        source.build_dataset(last)


@pytest.mark.parametrize("call", ["distribute", "from_dataset_id"])
def test_tf_data_service_is_refused_before_it_is_asked(call: str) -> None:
    service, nobody = tf.data.experimental.service, "grpc://localhost:1"
    everything = service.ShardingPolicy.OFF

    def made(num_shards: int, index: int) -> Any:
        if call == "distribute":
            return numbers(num_shards, index).apply(service.distribute(everything, nobody))
        return service.from_dataset_id(everything, nobody, 1, element_spec=tf.TensorSpec([], tf.int64))

    source = TfDataSource(made)
    with pytest.raises(errors.PlanError, match=r"made uses tf\.data service"):
        source.build_dataset(next(source.splits()))


def test_a_function_with_a_state_belongs_to_its_dataset() -> None:
    def made(num_shards: int, index: int) -> Any:
        counter, calls = tf.Variable(0, dtype=tf.int64), [0]

        def count(_: Any) -> Any:
            calls[0] += 1
            return np.int64(calls[0])

        def called(n: Any) -> Any:
            return counter.assign_add(1), tf.numpy_function(count, [n], tf.int64)

        by_hash = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0], [index]), 99)
        return numbers(num_shards, index).map(lambda n: (*called(n), by_hash.lookup(tf.cast(n * 0, tf.int32))))

    assert read(TfDataSource(made, num_shards=3)) == 2 * [
        [(float(n), float(n), float(index)) for n in range(1, 5)] for index in range(3)
    ]


def test_numbers_that_are_drawn_while_a_function_is_traced_are_those_of_each_pass() -> None:
    def made(num_shards: int, index: int) -> Any:
        return numbers(num_shards, index).map(lambda n: tf.constant(np.random.random()) + 0 * tf.cast(n, tf.float32))

    first, *_, last = read(TfDataSource(made, num_shards=3))
    assert first[0] != last[0]
