"""The length that is told from a plan, held against what running it yields; `test_plan_decided` shows the rest."""

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
from pecan_ray.plan.shape import num_batches
from pecan_ray.sources import Arrays, TextLines
from tests.long_form import examples


def numbers(rows: int = 10, name: str = "x") -> PecanPipeline:
    return PecanPipeline(Arrays({name: np.arange(rows)}, split_rows=4))


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


def batched(draft: Draft, method: str, size: int, drop: bool) -> Draft:
    return Draft(getattr(draft.pipe, method)(size, drop_remainder=drop), even=False) if draft.even else draft


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
        st.builds(batched, drafts, st.sampled_from(["batch", "padded_batch"]), small, st.booleans()),
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
        numbers().batch(2).unbatch(),
        numbers().bucket_by_length([3], sizes=2, length="x"),
        numbers().repeat(),
        numbers().mix(numbers(), weights=[1, 1], stop="first"),
        PecanPipeline(TextLines(__file__)),
    ],
)
def test_a_length_that_does_not_follow_from_the_plan_is_not_told(pipe: PecanPipeline) -> None:
    assert num_batches(pipe.plan) is None
    with pytest.raises(TypeError, match="the length of pipeline pipeline is not known without reading its data"):
        len(pipe)
