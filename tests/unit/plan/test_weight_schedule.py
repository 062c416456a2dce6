"""Weights of `mix` that change in a run: which hold where, what is refused, and what both engines draw by them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError
from pecan_ray.plan.shape import plan_shape
from tests.unit.engines.engine_leases import numbers, run_engine, whole_leases

ANY: Any = pecan.WeightSchedule
"""Of which a type checker says nothing."""
BY_EPOCH = pecan.WeightSchedule([(0, [9, 1]), (2, [1, 9])])
BY_ELEMENTS = pecan.WeightSchedule([(0, [9, 1]), (100, [1, 9])], by="elements")


def two(weights: Any, stop: Any = "all") -> pecan.PecanPipeline:
    return numbers(300).mix(numbers(300).map(lambda i: i + 1000, on="i"), weights=weights, stop=stop)


def drawn(pipe: pecan.PecanPipeline, epoch: int = 0) -> list[int]:
    produced = run_engine(pipe, whole_leases(tuple(pipe.plan.sources()), epoch=epoch), order="strict")
    return [int(batch.columns["i"]) for batch in produced if batch.rows]


def share_of_first(elements: list[int]) -> float:
    return sum(i < 1000 for i in elements) / len(elements)


def test_weights_change_behind_so_many_elements_and_the_draws_before_are_the_same() -> None:
    epochs = [drawn(two(BY_EPOCH), epoch) for epoch in range(3)]
    assert epochs[0] == drawn(two([9, 1])) and epochs[2] == drawn(two([1, 9]), 2) != epochs[1]
    elements, as_before = drawn(two(BY_ELEMENTS)), drawn(two([9, 1]))
    assert elements[:100] == as_before[:100] != elements[100:200]
    assert share_of_first(elements[:100]) > 0.75 and share_of_first(elements[100:300]) < 0.25
    assert Counter(elements) == Counter(as_before)
    assert plan_shape(two(BY_ELEMENTS).plan).serial and not plan_shape(two(BY_EPOCH).plan).serial, "one worker runs it"


def test_nothing_is_drawn_from_what_has_no_weight() -> None:
    later = pecan.WeightSchedule([(0, [1, 0]), (1, [1, 1])])
    for weights in ([1, 0], later):
        assert sorted(drawn(two(weights))) == [*range(300)]
        assert plan_shape(two(weights).plan).serial
        with pytest.raises(TypeError):
            len(two(weights))
    assert Counter(drawn(two(later), 1)) == Counter([*range(300), *range(1000, 1300)])


def test_tensorflow_draws_by_the_same_steps() -> None:
    pytest.importorskip("tensorflow")
    from tests.unit.engines.tensorflow_rig import numbers as tensors
    from tests.unit.engines.tensorflow_rig import run

    def share(weights: Any, **options: Any) -> list[int]:
        pipe = tensors().mix(tensors().map(lambda i: i + 1000, on="i"), weights=weights)
        return [int(batch.columns["i"]) for batch in run(pipe, order="strict", **options) if batch.rows]

    schedule = pecan.WeightSchedule([(0, [9, 1]), (30, [1, 9])], by="elements")
    elements = share(schedule)
    assert Counter(elements) == Counter(share([9, 1]))
    assert share_of_first(elements[:30]) > 0.75 and share_of_first(elements[30:60]) < 0.3
    assert set(share([0, 1])) == {i for i in elements if i >= 1000}
    with pytest.raises(PlanError, match="draws from what has run out count"):
        share(pecan.WeightSchedule([(0, [1, 0]), (30, [1, 9])], by="elements"))


def test_a_schedule_is_part_of_what_a_plan_is_and_nonsense_is_refused_when_it_is_written() -> None:
    prints = [two(weights).fingerprint() for weights in ([9, 1], BY_EPOCH, BY_ELEMENTS)]
    assert len(set(prints)) == 3
    assert prints[1] == two(pecan.WeightSchedule(((0, (9.0, 1.0)), (2, (1, 9))))).fingerprint()
    refused: list[tuple[Any, str]] = [
        ([], r"must be a list of pairs \(from where on, weights\), but got \[\]"),
        (5, r"must be a list of pairs \(from where on, weights\), but got 5"),
        ([(1, [1, 2])], r"steps must begin from 0 on and rise, but got \[1\]"),
        ([(0, [1, 2]), (5, [1])], r"each step needs as many weights, but got \[2, 1\]"),
        ([(0, [1, -1])], r"from 0 on: needs one number >= 0 per pipeline, .* but got \[1, -1\]"),
        ([(0, [1, 2, 3])], r"mix\(weights=...\) .* \(2\), of which .*, but got \[1.*, 3"),
    ]
    for steps, message in refused:
        with pytest.raises(PlanError, match=message):
            two(ANY(steps))
    with pytest.raises(PlanError, match="must be one of 'epoch', 'elements', but got 'step'"):
        ANY([(0, [1])], by="step")
