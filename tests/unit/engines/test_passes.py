"""Passes: their numbers, shuffles with a seed, and those of `repeat`, which run their branch anew as in tf.data."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray import pass_numbers
from pecan_ray.engines.in_process import run_in_process
from pecan_ray.errors import OpError, PlanError
from pecan_ray.options import EngineName
from pecan_ray.pass_numbers import PassCounts, warn_if_epochs_restart
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.pass_dependent_choices import why_choices_move
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Lease
from pecan_ray.sources import Arrays, Items
from tests.unit.engines.engine_leases import ListedLeases, delivered, numbers, run_engine, whole_leases

TWELVE, BATCH, PASSES = 12, 4, 3
Draws = list[list[float]]
"""Of each pass, the random number of each row, in the order in which they came."""


def draw(i: Any, rng: np.random.Generator) -> Any:
    return np.float32(rng.random())


def noisy_pipe() -> PecanPipeline:
    return PecanPipeline(Arrays(x=np.arange(TWELVE)), name="noisy_pipe").map(draw, on="x").shuffle(TWELVE).batch(BATCH)


def of_passes(pipe: PecanPipeline, *numbers: int) -> Draws:
    return [floats(run_in_process(pipe.plan, epoch=number)) for number in numbers]


def floats(batches: Any) -> list[float]:
    return [float(x) for batch in batches for x in batch["x"]]


def test_a_pass_that_is_said_is_that_one_and_the_next_one_has_not_been_before() -> None:
    pipe = noisy_pipe()
    said = [None, None, 0, None, 7, None]
    found = [floats(pipe.iter_batches(first_epoch=first, debug=True)) for first in said]
    assert found == of_passes(pipe, 0, 1, 0, 2, 7, 8)
    assert floats(pipe.to_torch(first_epoch=3, debug=True)) == of_passes(pipe, 3)[0]
    with pytest.raises(PlanError, match="first_epoch needs a whole number"):
        pipe.iter_batches(first_epoch=-1)


def test_a_look_at_single_batches_or_at_speed_and_a_refused_call_are_no_pass_but_one_that_fails_is() -> None:
    pipe = noisy_pipe()
    pipe.peek()
    assert next(pipe.iter_batches(headspace=2))["x"].tolist() == of_passes(pipe, 0)[0][:BATCH]
    for refused in ({"share": True, "world_size": 2, "rank": 0}, {"debug": True, "state": {}}):
        with pytest.raises(PlanError):
            pipe.iter_batches(**refused)
    assert floats(pipe.iter_batches(debug=True)) == of_passes(pipe, 0)[0]

    def at_three(i: Any, rng: np.random.Generator) -> Any:
        if i == 3:
            raise ValueError
        return rng.random()

    failing = PecanPipeline(Arrays(x=np.arange(4))).map(at_three, on="x")
    for number in range(2):
        batches = failing.iter_batches(debug=True)
        assert next(batches) == next(run_in_process(failing.plan, epoch=number))
        with pytest.raises((ValueError, OpError)):
            list(batches)


PARTS, PLACE = (("operator map", "0123"),), (0, 1)


def test_ranks_agree_a_state_sets_the_count_and_a_run_that_could_not_begin_leaves_its_number() -> None:
    counts = PassCounts()
    assert counts.begin(PARTS, PLACE).first_epoch == 0, "one looks alone"
    for number in range(2):
        assert [counts.begin(PARTS, (rank, 2)).first_epoch for rank in range(2)] == [number] * 2
    counts = PassCounts()
    counts.begin(PARTS, PLACE, 9)
    assert counts.resume(PARTS, PLACE, 3, first_epoch=2, ended=False).first_epoch == 2
    assert counts.begin(PARTS, PLACE).first_epoch == 4
    assert counts.resume(PARTS, PLACE, 5, first_epoch=4, ended=True).first_epoch == 4
    resumed = counts.resume(PARTS, PLACE, 5, first_epoch=0, ended=False)
    resumed.note_epoch(7)
    with pytest.raises(KeyboardInterrupt), counts.begin(PARTS, PLACE):
        raise KeyboardInterrupt
    assert counts.begin(PARTS, PLACE).first_epoch == 8


def test_a_pipeline_that_is_made_again_for_each_epoch_is_told_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_numbers, "_newest", {})
    monkeypatch.setattr(pass_numbers, "_reminded", set())
    for epoch in range(4):
        warn_if_epochs_restart("rows", PARTS, PassCounts(), begins_anew=epoch != 1)
        assert len(caplog.messages) == (epoch > 1)
    kept = PassCounts()
    warn_if_epochs_restart("two", PARTS, kept, begins_anew=True)
    warn_if_epochs_restart("two", PARTS, PassCounts(), begins_anew=True)
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("rows: this pipeline was made again")


N = 300
Change = Callable[[pecan.PecanPipeline], pecan.PecanPipeline]


def rows(pipe: pecan.PecanPipeline, epoch: int = 0, seed: int = 0, key: str = "i") -> list[int]:
    batches = run_in_process(pipe.plan, engine=pipe.engine, epoch=epoch, seed=seed)
    return [int(i) for batch in batches for i in np.atleast_1d(batch[key])]


CHANGES: dict[str, Change] = {
    "the whole set": lambda p: p.shuffle(N, seed=1),
    "a small buffer": lambda p: p.shuffle(20, seed=1),
    "taken": lambda p: p.shuffle(20, seed=1).take(100),
    "concatenated": lambda p: p.concat(p).shuffle(50, seed=3),
    "maps behind": lambda p: p.shuffle(20, seed=1).map(lambda row: row).map(lambda row: row),
    "two in a row": lambda p: p.shuffle(20, seed=1).map(lambda row: row).shuffle(9, seed=2),
}


@pytest.mark.parametrize("split_rows", [1, N])
@pytest.mark.parametrize("change", CHANGES)
def test_pairs_stay_pairs_in_however_many_splits_each_side_has(change: str, split_rows: int) -> None:
    one, other = numbers(N, 37), numbers(N, split_rows, "j").map(lambda row: row, name="copy")
    pipe = CHANGES[change](one).zip(CHANGES[change](other)).batch(50)
    orders = [rows(pipe, epoch) for epoch in range(2)]
    assert orders == [rows(pipe, epoch, key="j") for epoch in range(2)]
    assert orders[0] != orders[1] and len(orders[0]) >= 100, "another order in each epoch"


def test_a_skip_behind_a_shuffle_chooses_anew_in_each_pass_and_a_take_that_ends_an_endless_stream_does_not() -> None:
    shuffled = numbers(N).shuffle(9)
    skipping = shuffled.concat(numbers(N)).batch(2).map(lambda row: row).skip(3)
    assert why_choices_move(skipping.plan).startswith("skip behind shuffle ")
    assert why_choices_move(shuffled.repeat().batch(2).take(3).plan) == ""


ROWS = 20
ENGINES: list[EngineName] = ["python", "tensorflow"]
Make = Callable[[Any], Any]
"""Writes operators behind a pipeline of ours, or behind a tf.data.Dataset."""


def of_fives(engine: EngineName = "python", rows: int = ROWS, column: str = "i") -> PecanPipeline:
    return numbers(rows, 5, column, engine=engine)


def ours(pipe: PecanPipeline, engine: EngineName, column: str = "i") -> list[Any]:
    """Return what a pipeline yields: numbers, or lists of them for batches."""
    return [np.asarray(one[column]).tolist() for one in run_in_process(pipe.plan, engine=engine)]


PLANS: dict[str, Make] = {
    "take behind an endless repeat": lambda p: p.repeat().take(50),
    "nested": lambda p: p.take(4).repeat(2).skip(1).repeat(3),
    "behind a batch of which the rest is dropped": lambda p: p.batch(7, drop_remainder=True).repeat(2).batch(1),
    "nothing, with an end": lambda p: p.take(0).repeat(2),
    "take before and behind": lambda p: p.take(3).repeat().take(10),
    "batches of batches": lambda p: p.take(7).batch(3).repeat(2).unbatch().batch(4),
    "more than there is": lambda p: p.take(100).repeat(2),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("plan", PLANS)
def test_plans_with_a_repeat_yield_what_those_of_tf_data_do(plan: str, engine: EngineName) -> None:
    pipe = PLANS[plan](of_fives(engine))
    assert plan_shape(pipe.plan).serial
    theirs = PLANS[plan](tf.data.Dataset.range(ROWS)).as_numpy_iterator()
    assert ours(pipe, engine) == [value.tolist() for value in theirs]


def noisy(element: Any, rng: Any) -> Any:
    return {"i": element["i"], "x": rng.random()}


def noisy_tensor(element: Any, rng: Any) -> Any:
    return {"i": element["i"], "x": tf.random.stateless_uniform((), rng)}


NOISY: dict[EngineName, Callable[..., Any]] = {"python": noisy, "tensorflow": noisy_tensor}
Drawing: TypeAlias = Callable[[PecanPipeline, Callable[..., Any]], PecanPipeline]
DRAWING: dict[str, tuple[int, Drawing]] = {
    "take": (10, lambda p, noisy: p.map(noisy).shuffle(ROWS).take(10).repeat(3)),
    "a map behind repeat": (10, lambda p, noisy: p.take(10).repeat(3).map(noisy)),
    "repeated in a concat": (ROWS, lambda p, noisy: p.map(noisy).shuffle(ROWS).repeat(3).concat(p.map(noisy).take(0))),
    "behind a mix": (
        2 * ROWS,
        lambda p, noisy: p.map(noisy).mix(p.map(noisy, name="other"), weights=[1, 1]).shuffle(2 * ROWS).repeat(3),
    ),
    "nested": (10, lambda p, noisy: p.map(noisy).shuffle(ROWS).take(10).repeat(3).repeat(1)),
    "cut before": (10, lambda p, noisy: p.map(noisy).repeat(2).shuffle(2 * ROWS).take(10).repeat(3)),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("plan", DRAWING)
def test_each_pass_shuffles_and_augments_anew(plan: str, engine: EngineName) -> None:
    length, make = DRAWING[plan]
    pipe = make(of_fives(engine), NOISY[engine])
    first, again = (
        [(int(one["i"]), float(one["x"])) for one in run_in_process(pipe.plan, engine=engine)] for _ in range(2)
    )
    assert first == again and len(first) == 3 * length
    assert len({x for _, x in first}) == len(first), "no draw comes twice"
    if "map" not in plan:
        orders = {tuple(i for i, _ in first[start : start + length]) for start in range(0, 3 * length, length)}
        assert len(orders) == 3, "no order comes twice"


def dealt(pipe: PecanPipeline, leases: list[Lease], **options: Any) -> list[int]:
    """Return what a worker yields that is given these leases, each position of which must come once."""
    given = ListedLeases(leases)
    produced = run_engine(pipe, given, **options)
    assert delivered(produced) == given.target()
    return [int(value) for value in np.concatenate([one.columns["i"] for one in produced if one.rows])]


@pytest.mark.parametrize("order", ["strict", "relaxed"])
def test_each_worker_drains_its_shuffle_with_what_it_has_of_a_pass(order: str) -> None:
    pipe = of_fives().shuffle(ROWS).repeat(3).batch(5)
    leases = whole_leases(tuple(pipe.plan.sources()), num_passes=3)
    for mine in (leases[::2], leases[1::2]):  # two of the four splits of each pass
        got = dealt(pipe, mine, threads=2, order=order)
        passes = [got[first : first + 10] for first in range(0, 30, 10)]
        assert all(len(set(one)) == 10 for one in passes)
        assert order == "relaxed" or len({tuple(one) for one in passes}) == 3


def test_what_is_kept_back_is_drained_and_later_passes_may_come_first_and_late_leases_with_the_one_at_hand() -> None:
    tokens = PecanPipeline(Items([{"tokens": [n, n]} for n in range(1, 4)])).pack(8).repeat(2).batch(2)
    (batch,) = run_in_process(tokens.plan)
    assert [sorted(row) for row in batch["tokens"].tolist()] == [[0, 0, 1, 1, 2, 2, 3, 3]] * 2
    pipe = of_fives(rows=10).concat(of_fives(rows=5)).repeat(4).batch(1)
    leases = [one for one in whole_leases(tuple(pipe.plan.sources()), num_passes=4) if one.pass_index in (1, 3)]
    assert dealt(pipe, leases, order="strict") == [*range(10), *range(5)] * 2
    assert dealt(pipe, leases[:-1], order="strict") == [*range(10), *range(5), *range(10)]
    pipe = of_fives().shuffle(ROWS).repeat(2).batch(1)
    *first, late = whole_leases(tuple(pipe.plan.sources()))
    second = [replace(lease, pass_index=1) for lease in (*first, late)]
    got = dealt(pipe, [*first, second[0], late, *second[1:]], order="strict")
    assert sorted(got[:15]) == list(range(15))
    assert sorted(got[15:]) == sorted([*range(ROWS), *range(15, ROWS)])


@pytest.mark.parametrize("engine", ENGINES)
def test_only_what_is_taken_is_read_in_each_pass_and_nothing_kept_of_it(engine: EngineName) -> None:
    read: list[int] = []
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    class Large:
        def __init__(self) -> None:
            alive.add(self)

    class Watched(Arrays):
        def read(self, split: Any, start: int = 0) -> Iterator[Any]:
            read.append(split.index)
            yield from super().read(split, start)

    pipe = PecanPipeline(Watched(i=np.arange(1000), split_rows=5), engine=engine).map(lambda i: i, on="i")
    assert ours(pipe.take(3).repeat(4), engine) == [0, 1, 2] * 4
    assert set(read) <= {0, 1, 2}, "the splits behind are not read"
    if engine == "python":
        large = of_fives().map(lambda e: {"i": e["i"], "large": Large()}).take(ROWS).repeat(3)
        assert max(len(alive) for _ in run_in_process(large.plan)) <= 3


EMPTY: dict[str, Make] = {
    "take": lambda p: none_of(p).take(5).repeat(),
    "in a zip": lambda p: of_fives(p.engine, column="j").zip(none_of(p).repeat()),
    "twice": lambda p: none_of(p).repeat(3).take(5).repeat(),
    "splits dealt out again": lambda p: none_of(p).repeat().batch(10),
    "splits of a join dealt out again": lambda p: none_of(p.concat(of_fives(p.engine))).repeat().batch(10),
    "in a mix": lambda p: p.mix(none_of(p).repeat(), weights=[1, 1]),
    "behind it": lambda p: none_of(p.take(5).repeat()).batch(2),
    "splits dealt out again, a filter behind": lambda p: none_of(p.shuffle(ROWS).repeat()).batch(10),
}


def none_of(pipe: PecanPipeline) -> PecanPipeline:
    return pipe.filter(lambda e: e["i"] < 0, name="none")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("plan", EMPTY)
def test_an_endless_repeat_of_nothing_is_an_error(plan: str, engine: EngineName) -> None:
    pipe = EMPTY[plan](of_fives(engine))
    assert (plan_shape(pipe.plan).num_passes is None) == ("dealt" in plan)
    with pytest.raises(PlanError, match=r"repeat.* has no end, and .*none \(filter\)"):
        ours(pipe, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_repeat_of_an_empty_source_or_of_what_is_held_back_is_none(engine: EngineName) -> None:
    empty = of_fives(engine, 0)
    assert ours(empty.repeat(), engine) == ours(empty.take(3).repeat(), engine) == []
    assert ours(of_fives(engine, column="j").zip(empty.repeat()), engine) == []
    few = of_fives(engine).filter(lambda e: e["i"] % 10 == 3, name="few").repeat().shuffle(100).batch(10)
    first = next(iter(run_in_process(few.plan, engine=engine)))
    assert set(np.asarray(first["i"]).tolist()) <= {3, 13}, "what is held back is no empty pass"


def test_a_repeat_that_yields_nothing_any_more_is_an_error_in_the_end() -> None:
    seen: set[int] = set()

    def new(element: Any) -> bool:
        known = int(element["i"]) in seen
        seen.add(int(element["i"]))
        return not known

    made = run_in_process(of_fives().filter(new).take(ROWS).repeat().plan)
    assert len(list(itertools.islice(made, ROWS))) == ROWS
    with pytest.raises(PlanError, match=r"100 passes .* have yielded no element.*: new \(filter\) lets no"):
        next(made)
