"""Passes of `repeat`, as in tf.data: each runs its branch anew, nothing is kept, and what is held back is drained."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pytest
import tensorflow as tf

from pecan_ray import PecanPipeline
from pecan_ray.engines.inprocess import run_inprocess
from pecan_ray.errors import PlanError
from pecan_ray.options import EngineName
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Lease
from pecan_ray.sources import Arrays, Items
from tests.unit.engines.engine_leases import ListedLeases, delivered, numbers, run_engine, whole_leases

ROWS = 20
ENGINES: list[EngineName] = ["python", "tensorflow"]

Make = Callable[[Any], Any]
"""Writes operators behind a pipeline of ours, or behind a tf.data.Dataset."""


def of_fives(engine: EngineName = "python", rows: int = ROWS, column: str = "i") -> PecanPipeline:
    return numbers(rows, 5, column, engine=engine)


def dataset(rows: int = ROWS) -> Any:
    return tf.data.Dataset.range(rows)


def ours(pipe: PecanPipeline, engine: EngineName, column: str = "i") -> list[Any]:
    """Return what a pipeline yields: numbers, or lists of them for batches."""
    return [np.asarray(one[column]).tolist() for one in run_inprocess(pipe.plan, engine=engine)]


def theirs(data: Any) -> list[Any]:
    return [value.tolist() for value in data.as_numpy_iterator()]


PLANS: dict[str, Make] = {
    "take": lambda p: p.take(7).repeat(3),
    "skip": lambda p: p.skip(7).repeat(3),
    "take behind an endless repeat": lambda p: p.repeat().take(50),
    "take before and behind": lambda p: p.take(3).repeat().take(10),
    "nested": lambda p: p.take(4).repeat(2).skip(1).repeat(3),
    "nested without an end": lambda p: p.take(4).repeat(2).skip(1).repeat().take(30),
    "behind a batch": lambda p: p.take(7).batch(3).repeat(2),
    "behind a batch of which the rest is dropped": lambda p: p.batch(7, drop_remainder=True).repeat(2).batch(1),
    "batches of batches": lambda p: p.take(7).batch(3).repeat(2).unbatch().batch(4),
    "more than there is": lambda p: p.take(100).repeat(2),
    "nothing, with an end": lambda p: p.take(0).repeat(2),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("plan", PLANS)
def test_plans_with_a_repeat_yield_what_those_of_tf_data_do(plan: str, engine: EngineName) -> None:
    pipe = PLANS[plan](of_fives(engine))
    assert plan_shape(pipe.plan).serial
    assert ours(pipe, engine) == theirs(PLANS[plan](dataset()))


def noisy(element: Any, rng: Any) -> Any:
    return {"i": element["i"], "x": rng.random()}


def noisy_tensor(element: Any, rng: Any) -> Any:
    return {"i": element["i"], "x": tf.random.stateless_uniform((), rng)}


NOISY: dict[EngineName, Callable[..., Any]] = {"python": noisy, "tensorflow": noisy_tensor}
Drawing: TypeAlias = Callable[[PecanPipeline, Callable[..., Any]], PecanPipeline]
DRAWING: dict[str, tuple[int, Drawing]] = {
    "take": (10, lambda p, noisy: p.map(noisy).shuffle(ROWS).take(10).repeat(3)),
    "a map behind take": (10, lambda p, noisy: p.take(10).map(noisy).repeat(3)),
    "a map behind repeat": (10, lambda p, noisy: p.take(10).repeat(3).map(noisy)),
    "zip": (ROWS, lambda p, noisy: p.map(noisy).shuffle(ROWS).zip(of_fives(p.engine, column="j")).repeat(3)),
    "repeated in a concat": (ROWS, lambda p, noisy: p.map(noisy).shuffle(ROWS).repeat(3).concat(p.map(noisy).take(0))),
    "nested": (10, lambda p, noisy: p.map(noisy).shuffle(ROWS).take(10).repeat(3).repeat(1)),
    "cut before": (10, lambda p, noisy: p.map(noisy).repeat(2).shuffle(2 * ROWS).take(10).repeat(3)),
    "the whole set": (ROWS, lambda p, noisy: p.map(noisy).shuffle(ROWS).repeat(3)),
    "behind a mix": (
        2 * ROWS,
        lambda p, noisy: p.map(noisy).mix(p.map(noisy, name="other"), weights=[1, 1]).shuffle(2 * ROWS).repeat(3),
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("plan", DRAWING)
def test_each_pass_shuffles_and_augments_anew(plan: str, engine: EngineName) -> None:
    length, make = DRAWING[plan]
    made = list(run_inprocess(make(of_fives(engine), NOISY[engine]).plan, engine=engine))
    assert len(made) == 3 * length
    passes = [made[first : first + length] for first in range(0, 3 * length, length)]
    orders = [[int(one["i"]) for one in elements] for elements in passes]
    drawn = [float(one["x"]) for one in made]
    assert len(set(drawn)) == len(drawn), "no draw comes twice"
    if "map" not in plan:
        assert len(set(map(tuple, orders))) == 3, "no order comes twice"
    if length % ROWS == 0:
        assert all(sorted(order) == sorted([*range(ROWS)] * (length // ROWS)) for order in orders)
    again = [float(one["x"]) for one in run_inprocess(make(of_fives(engine), NOISY[engine]).plan, engine=engine)]
    assert again == drawn, "and all of it is the same when it runs again"


def dealt(pipe: PecanPipeline, leases: list[Lease], **options: Any) -> list[int]:
    """Return what a worker yields that is given these leases, each position of which must come once."""
    given = ListedLeases(leases)
    produced = run_engine(pipe, given, **options)
    assert delivered(produced) == given.wanted()
    return [int(value) for value in np.concatenate([one.columns["i"] for one in produced if one.rows])]


@pytest.mark.parametrize("order", ["strict", "relaxed"])
def test_each_worker_drains_its_shuffle_with_what_it_has_of_a_pass(order: str) -> None:
    pipe = of_fives().shuffle(ROWS).repeat(3).batch(5)
    leases = whole_leases(tuple(pipe.plan.sources()), repetitions=3)
    for mine in (leases[::2], leases[1::2]):  # two of the four splits of each pass
        got = dealt(pipe, mine, threads=2, order=order)
        passes = [got[first : first + 10] for first in range(0, 30, 10)]
        assert all(len(set(one)) == 10 for one in passes)
        assert order == "relaxed" or len({tuple(one) for one in passes}) == 3


def test_what_comes_late_of_an_earlier_pass_goes_with_the_pass_at_hand() -> None:
    pipe = of_fives().shuffle(ROWS).repeat(2).batch(1)
    *first, late = (lease for lease in whole_leases(tuple(pipe.plan.sources()), repetitions=2) if not lease.repetition)
    second = [replace(lease, repetition=1) for lease in (*first, late)]
    got = dealt(pipe, [*first, second[0], late, *second[1:]], order="strict")
    assert sorted(got[:15]) == list(range(15))
    assert sorted(got[15:]) == sorted([*range(ROWS), *range(15, ROWS)])


def test_what_keeps_elements_back_in_the_middle_of_a_plan_is_drained_too() -> None:
    pipe = of_fives(rows=7).batch(4).unbatch().repeat(2).batch(1)
    assert dealt(pipe, whole_leases(tuple(pipe.plan.sources()), repetitions=2), order="strict") == [*range(7)] * 2
    tokens = PecanPipeline(Items([{"tokens": [n, n]} for n in range(1, 4)])).pack(8).repeat(2).batch(2)
    (batch,) = run_inprocess(tokens.plan)
    assert [sorted(row) for row in batch["tokens"].tolist()] == [[0, 0, 1, 1, 2, 2, 3, 3]] * 2


def test_a_worker_may_begin_with_a_later_pass_of_a_join() -> None:
    pipe = of_fives(rows=10).concat(of_fives(rows=5)).repeat(4).batch(1)
    leases = [one for one in whole_leases(tuple(pipe.plan.sources()), repetitions=4) if one.repetition in (1, 3)]
    assert dealt(pipe, leases, order="strict") == [*range(10), *range(5)] * 2
    assert dealt(pipe, leases[:-1], order="strict") == [*range(10), *range(5), *range(10)]


def test_nothing_is_kept_of_the_elements_of_a_pass() -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    class Large:
        def __init__(self) -> None:
            alive.add(self)

    pipe = of_fives().map(lambda e: {"i": e["i"], "large": Large()}).take(ROWS).repeat(3)
    assert max(len(alive) for _ in run_inprocess(pipe.plan)) <= 3


@pytest.mark.parametrize("engine", ENGINES)
def test_only_what_is_taken_is_read_in_each_pass(engine: EngineName) -> None:
    read: list[int] = []

    class Watched(Arrays):
        def read(self, split: Any, start: int = 0) -> Iterator[Any]:
            read.append(split.index)
            yield from super().read(split, start)

    pipe = PecanPipeline(Watched(i=np.arange(1000), split_rows=5), engine=engine).map(lambda i: i, on="i")
    assert ours(pipe.take(3).repeat(4), engine) == [0, 1, 2] * 4
    assert set(read) <= {0, 1, 2}, "the splits behind are not read"


EMPTY: dict[str, Make] = {
    "take": lambda p: none_of(p).take(5).repeat(),
    "in a zip": lambda p: of_fives(p.engine, column="j").zip(none_of(p).repeat()),
    "in a mix": lambda p: p.mix(none_of(p).repeat(), weights=[1, 1]),
    "behind it": lambda p: none_of(p.take(5).repeat()).batch(2),
    "twice": lambda p: none_of(p).repeat(3).take(5).repeat(),
    "splits dealt out again": lambda p: none_of(p).repeat().batch(10),
    "splits dealt out again, a filter behind": lambda p: none_of(p.shuffle(ROWS).repeat()).batch(10),
    "splits of a join dealt out again": lambda p: none_of(p.concat(of_fives(p.engine))).repeat().batch(10),
}


def none_of(pipe: PecanPipeline) -> PecanPipeline:
    return pipe.filter(lambda e: e["i"] < 0, name="none")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("plan", EMPTY)
def test_an_endless_repeat_of_nothing_is_an_error(plan: str, engine: EngineName) -> None:
    pipe = EMPTY[plan](of_fives(engine))
    assert (plan_shape(pipe.plan).repetitions is None) == ("dealt" in plan)
    with pytest.raises(PlanError, match=r"repeat.* has no end, and .*none \(filter\)"):
        ours(pipe, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_repeat_of_an_empty_source_or_with_few_elements_is_none(engine: EngineName) -> None:
    empty = of_fives(engine, 0)
    assert ours(empty.repeat(), engine) == ours(empty.take(3).repeat(), engine) == []
    assert ours(of_fives(engine, column="j").zip(empty.repeat()), engine) == []
    rare: Callable[..., Any] = lambda e, rng: rng.random() < 0.02  # noqa: E731
    if engine == "tensorflow":
        rare = lambda e, rng: tf.random.stateless_uniform((), rng) < 0.02  # noqa: E731
    some = of_fives(engine, 100).filter(rare, name="rare").take(30).repeat().take(60)
    assert len(ours(some, engine)) == 60, "passes without an element do not end one that has yielded some"
    few = of_fives(engine).filter(lambda e: e["i"] % 10 == 3, name="few").repeat().shuffle(100).batch(10)
    first = next(iter(run_inprocess(few.plan, engine=engine)))
    assert set(np.asarray(first["i"]).tolist()) <= {3, 13}, "what is held back is no empty pass"


def test_a_repeat_that_yields_nothing_any_more_is_an_error_in_the_end() -> None:
    seen: set[int] = set()

    def new(element: Any) -> bool:
        known = int(element["i"]) in seen
        seen.add(int(element["i"]))
        return not known

    made = run_inprocess(of_fives().filter(new).take(ROWS).repeat().plan)
    assert len(list(itertools.islice(made, ROWS))) == ROWS
    with pytest.raises(PlanError, match=r"100 passes .* have yielded no element.*: new \(filter\) lets no"):
        next(made)
