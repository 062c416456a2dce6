"""A zip whose inputs are read in step: the same pairs as one worker makes, from any leases of the first source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.contract import Produced
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.in_step import read_in_step, shape_of_job, why_not_in_step
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease
from pecan_ray.sources import Arrays, TextLines
from tests.unit.engines.engine_leases import ListedLeases, column, delivered, numbers, run_engine, whole_leases


def with_draw(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    (name,) = element
    return {name: element[name], f"draw_{name}": int(rng.integers(1000))}


def drawn(epoch: int, seed: int) -> Any:
    return np.random.default_rng((seed, epoch)).integers(0, 9, 60)


def pairs() -> PecanPipeline:
    labelled = PecanPipeline(Arrays(j=np.arange(9)), sampler=drawn).map(with_draw).prefetch(2)
    return numbers(45, 10).map(with_draw).zip(labelled, numbers(50, 7, column="k"))


def of_first_source(pipe: PecanPipeline) -> list[Lease]:
    return [lease for lease in whole_leases(tuple(pipe.plan.sources())) if lease.branch == 0]


def rows(produced: Sequence[Produced]) -> list[tuple[Any, ...]]:
    names = ("i", "j", "k", "draw_i", "draw_j")
    return list(zip(*(column(produced, name) for name in names), strict=True))


def test_pairs_and_draws_are_those_of_one_worker_and_positions_those_of_the_first_source() -> None:
    pipe = pairs().batch(4)
    whole = rows(run_engine(pipe))
    plan = read_in_step(pipe.plan)
    leases = ListedLeases(of_first_source(pipe))
    produced = run_engine(plan, leases, order="strict")
    assert rows(produced) == whole and len(whole) == 45
    assert delivered(produced) == leases.target() and {key[0] for key in delivered(produced)} == {0}
    first, second, *others = of_first_source(pipe)
    some = [(0, 3 << OUTPUT_BITS), (5 << OUTPUT_BITS, END)]
    parts = [*others[::-1], Lease(0, second.split, tuple(some)), first]
    kept = [row for row in whole if row[0] not in (13, 14)]
    assert sorted(rows(run_engine(plan, parts))) == kept


NOT: list[tuple[Callable[[PecanPipeline, PecanPipeline], PecanPipeline], str, str]] = [
    (lambda a, b: a.zip(b), "skip", "on_error='skip' leaves elements out"),
    (
        lambda a, b: b.zip(a),
        "raise",
        "first input of zip has 9 elements, and another one 8: let the shortest be",
    ),
    (
        lambda a, b: a.zip(b.shuffle(5)),
        "raise",
        "behind shuffle elements are not known by their rows, in input 2",
    ),
    (lambda a, b: a.batch(2).zip(b), "raise", "behind batch elements are not known by their rows, in input 1"),
    (lambda a, b: a.zip(b.concat(b)), "raise", "concat joins several sources, in input 2"),
    (lambda a, b: a.zip(PecanPipeline(TextLines(__file__))), "raise", "TextLines has no rows that are known"),
    (lambda a, b: a.zip(b).take(3), "raise", "what follows zip needs all of its elements"),
    (lambda a, b: a.zip(b).repeat(2), "raise", "repeat follows zip"),
]


@pytest.mark.parametrize(("join", "on_error", "said"), NOT)
def test_what_one_worker_zips_says_why(join: Any, on_error: str, said: str) -> None:
    pipe = join(numbers(8), numbers(9, column="j"))
    assert said in why_not_in_step(pipe.plan, "python", on_error)
    shape = shape_of_job(pipe.plan, "python", on_error)
    assert shape.is_one_sequence and shape.whole_reason == why_not_in_step(pipe.plan, "python", on_error)


def test_in_step_a_plan_is_spread_like_one_of_a_single_source() -> None:
    for pipe in (pairs(), pairs().filter(bool).batch(2), pairs().shuffle(4).batch(2)):
        assert not shape_of_job(pipe.plan, "python", "raise").is_one_sequence
    assert shape_of_job(pairs().batch(2).plan, "python", "raise").unordered_reason == ""
    assert "tensorflow engine" in why_not_in_step(pairs().plan, "tensorflow", "raise")
    assert why_not_in_step(numbers(3).plan, "python", "raise") == ""
