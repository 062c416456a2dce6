"""What is told from a plan without running it, held against what running it yields."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.element_identity import identity_lost_at
from pecan_ray.plan.shape import PlanShape, num_batches, plan_shape
from pecan_ray.sources import Arrays, TextLines
from tests.long_form import examples


def numbers(rows: int = 10, name: str = "x") -> PecanPipeline:
    return PecanPipeline(Arrays({name: np.arange(rows)}, split_rows=4))


def shape(pipe: PecanPipeline) -> PlanShape:
    return plan_shape(pipe.plan)


@pytest.mark.parametrize(
    ("pipe", "shuffled"),
    [
        (numbers().take(3).shuffle(2), (False,)),
        (numbers().map(np.negative, on="x").shuffle(2).take(3), (True,)),
        (numbers().zip(numbers(4, "y")).shuffle(2).batch(2), (False, False)),
        (numbers().shuffle(2).zip(numbers(4, "y")).shuffle(2), (True, False)),
        (numbers().concat(numbers().take(2)).shuffle(2), (True, False)),
        (numbers().concat(numbers().shuffle(2)).take(3), (False, True)),
        (numbers().mix(numbers(), weights=[1, 1]).shuffle(2), (True, True)),
        (numbers().mix(numbers(), weights=[1, 1], stop="first").shuffle(2), (False, False)),
        (numbers().concat(numbers().zip(numbers(4, "y"))).shuffle(2), (True, False, False)),
        (numbers().shuffle(2, seed=1).zip(numbers(4, "y").shuffle(2)), (False, True)),
    ],
)
def test_splits_are_shuffled_where_no_order_depends_on_them(pipe: PecanPipeline, shuffled: tuple[bool, ...]) -> None:
    assert tuple(op is not None for op in shape(pipe).shuffled) == shuffled


@pytest.mark.parametrize(
    ("pipe", "serial"),
    [
        (numbers().take(3), True),
        (numbers().zip(numbers(4, "y")), True),
        (numbers().concat(numbers().take(2)), True),
        (numbers().mix(numbers(), weights=[1, 1], stop="first"), True),
        (numbers().batch(4, drop_remainder=True).unbatch().batch(2), True),
        (numbers().batch(4, drop_remainder=True).concat(numbers().batch(4)), True),
        (numbers().filter(bool).flat_map(list).shuffle(2).batch(4, drop_remainder=True).prefetch(2), False),
        (numbers().mix(numbers().batch(2), weights=[1, 1]), False),
        (numbers().repeat(3), False),
    ],
)
def test_operators_that_need_the_whole_sequence_make_a_plan_serial(pipe: PecanPipeline, serial: bool) -> None:
    assert shape(pipe).serial is serial
    assert not serial or shape(pipe).num_passes == 1


def same(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("pipe", "where"),
    [
        (numbers().batch(4).map(same).unbatch(), "unbatch"),
        (numbers().batch(4).flat_map(list, name="several"), "several"),
        (numbers().batch(4).flat_map(list, name="several").unbatch(same_rows=True), "several"),
        (numbers().concat(numbers().batch(4).map(same).unbatch()), "unbatch"),
        (numbers().batch(2).map(same).batch(2).unbatch().unbatch(same_rows=True).repeat(), "unbatch"),
        (numbers().pack(4, on="x").unbatch(), "unbatch"),
        (numbers().batch(2).unbatch(), ""),
        (numbers().batch(2).filter(bool).unbatch(), ""),
        (numbers().batch(2).map(same).unbatch(same_rows=True), ""),
        (numbers().map(same).unbatch().flat_map(list), ""),
    ],
)
def test_one_worker_runs_a_plan_whose_rows_are_not_known_by_their_elements(pipe: PecanPipeline, where: str) -> None:
    assert (identity_lost_at(pipe.plan), shape(pipe).does_rebatch) == (where, bool(where))
    assert not shape(pipe).serial, "its splits are read and repeated as those of others"


counter = itertools.count()


def with_new_names(element: dict[str, Any], new: str) -> dict[str, Any]:
    return {f"{new}{name}": value for name, value in element.items()}


@dataclass(frozen=True)
class Draft:
    """A pipeline under construction; elements of unequal sizes cannot be batched."""

    pipe: PecanPipeline
    even: bool = True


def zip_inputs(one: Draft, other: Draft) -> Draft:
    fresh = f"side{next(counter)}_"
    right = other.pipe.map(lambda element: with_new_names(element, fresh))
    return Draft(one.pipe.zip(right).map(lambda element: {"x": element["x"]}), one.even and other.even)


def batched(draft: Draft, size: int, drop: bool) -> Draft:
    return Draft(draft.pipe.batch(size, drop_remainder=drop), even=False) if draft.even else draft


def padded(draft: Draft, size: int, drop: bool) -> Draft:
    return Draft(draft.pipe.padded_batch(size, drop_remainder=drop), even=False) if draft.even else draft


def step(drafts: st.SearchStrategy[Draft]) -> st.SearchStrategy[Draft]:
    small = st.integers(1, 5)

    def extended(method: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Draft]:
        return st.builds(lambda d, *a: Draft(getattr(d.pipe, method)(*a), d.even), drafts, *arguments)

    return st.one_of(
        extended("map", st.just(dict)),
        extended("shuffle", small),
        extended("prefetch", small),
        extended("repeat", st.integers(1, 3)),
        extended("take", st.integers(0, 12)),
        extended("skip", st.integers(0, 12)),
        st.builds(lambda d, n: Draft(d.pipe.repeat().take(n), d.even), drafts, st.integers(0, 20)),
        st.builds(batched, drafts, small, st.booleans()),
        st.builds(padded, drafts, small, st.booleans()),
        st.builds(zip_inputs, drafts, drafts),
        st.builds(lambda a, b: Draft(a.pipe.concat(b.pipe), a.even and b.even), drafts, drafts),
        st.builds(lambda a, b: Draft(a.pipe.mix(b.pipe, weights=[1, 2]), a.even and b.even), drafts, drafts),
    )


drafts = st.recursive(st.builds(Draft, st.builds(numbers, st.integers(0, 9))), step, max_leaves=3)
longer = drafts.flatmap(lambda draft: step(st.just(draft)))


@examples(150)
@given(longer)
def test_the_length_that_is_told_is_the_length_that_comes(draft: Draft) -> None:
    told = num_batches(draft.pipe.plan)
    with draft.pipe.iter_batches(debug=True) as batches:
        try:
            came = sum(1 for _ in batches)
        except PlanError:  # what is repeated without end is nothing
            came = 0
    assert told == came
    assert len(draft.pipe) == told


@pytest.mark.parametrize(
    "pipe",
    [
        numbers().filter(bool),
        numbers().flat_map(list),
        numbers().batch(2).unbatch(),
        numbers().bucket_by_length([3], sizes=2, length="x"),
        numbers().group_by("i", 2),
        numbers().repeat(),
        numbers().concat(numbers().filter(bool)),
        numbers().filter(bool).take(3),
        numbers().mix(numbers(), weights=[1, 1], stop="first"),
        PecanPipeline(TextLines(__file__)),
    ],
)
def test_a_length_that_does_not_follow_from_the_plan_is_not_told(pipe: PecanPipeline) -> None:
    assert num_batches(pipe.plan) is None
    with pytest.raises(TypeError, match="the length of pipeline pipeline is not known without reading its data"):
        len(pipe)
