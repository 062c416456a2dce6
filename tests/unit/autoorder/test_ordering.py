"""AutoOrder at work on real functions: what is adopted, and what of bad input."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.errors import OpError, PlanError
from pecan_ray.plan.splits import Element
from pecan_ray.reorder import Mode
from tests.unit.autoorder.sampled_orders import (
    ELEMENTS,
    half,
    images,
    order,
    ordering,
    tone,
)


def test_a_faster_order_is_measured_and_adopted() -> None:
    found = ordering(images().map(tone, on="image").map(half, on="image").batch(4))
    assert [op.name for op in found.plan.all_ops()] == ["half", "tone", "batch"]
    assert [op.name for op in found.before.all_ops()] == ["tone", "half", "batch"]
    (stretch,) = found.stretches
    assert stretch.measured is not None and stretch.measured.faster
    assert stretch.adopted.expected_speedup is not None and stretch.adopted.expected_speedup > 1
    said = found.summary()
    assert said.startswith("AutoOrder moved half before tone (") and "(the pipeline " in said
    assert "x, measured on" in said and "by estimate" not in said and f"sampled {ELEMENTS} elements" in said


def test_random_numbers_stay_those_of_the_operator_and_the_element() -> None:
    def shift(image: Any, rng: np.random.Generator) -> Any:
        return image + np.uint8(rng.integers(100))

    def crop(image: Any) -> Any:
        return image[:8, :8].copy()

    pipe = images().map(shift, on="image").map(crop, on="image").batch(4)
    changed = ordering(pipe, "pecan")
    assert changed.changed
    for mode in ("pecan", "off"):
        config = pecan.Config(reorder=mode, sample_elements=ELEMENTS)
        again = images(config=config).map(shift, on="image").map(crop, on="image").batch(4)
        batches = list(again.iter_batches(debug=True))
        assert len(batches) == ELEMENTS // 4
        if mode == "pecan":
            expected = batches
    for one, other in zip(batches, expected, strict=True):
        assert np.array_equal(one["image"], other["image"])


@pytest.mark.parametrize("mode", ["off", "safe", "pecan", "strict"])
def test_what_cannot_be_improved_stays_as_it_is_written(mode: Mode) -> None:
    found = ordering(images().map(half, on="image").map(tone, on="image").batch(4), mode)
    assert not found.changed and [op.name for op in found.plan.all_ops()] == ["half", "tone", "batch"]


def test_fewer_than_two_operators_that_may_move_are_not_sampled() -> None:
    def explode(image: Any) -> Any:
        raise AssertionError("the sample has called a function that it had no reason to call")

    one = ordering(images().map(explode, on="image").batch(2).map(explode, name="on_batches"))
    pinned = ordering(images().map(explode, on="image").map(explode, on="image", name="b", keep_position=True))
    off = ordering(images().map(explode, on="image").map(explode, on="image", name="b"), "off")
    for found in (one, pinned, off):
        assert found.stretches == () and found.summary() == "" and found.plan is found.before


def test_stretches_on_both_sides_of_a_join_are_ordered_by_themselves() -> None:
    left = images().map(tone, on="image").map(half, on="image")
    right = images().map(tone, on="image", name="tone_right").map(half, on="image", name="half_right")
    pipe = left.concat(right).shuffle(8).map(tone, on="image", name="tone_all").map(half, on="image", name="half_all")
    found = ordering(pipe.batch(4), "pecan")
    assert [op.name for op in found.plan.all_ops()] == [
        *("half", "tone", "half_right", "tone_right"),
        *("shuffle", "half_all", "tone_all", "batch"),
    ]


def test_a_filter_is_run_first_where_that_leaves_the_same_elements() -> None:
    def even(element: Element) -> bool:
        return bool(element["number"] % 4 == 0)

    found = order(images().map(tone, on="image").filter(even).batch(4))
    assert found.adopted.order == ("even", "tone")
    assert found.measured is not None and found.measured.faster


# --- strict ------------------------------------------------------------------------------------------------


def invert(image: Any) -> Any:
    """Arithmetic on bytes, many times over."""
    for _ in range(21):
        image = 255 - (255 - (255 - image))
    return image


def test_strict_exchanges_what_leaves_results_equal() -> None:
    def crop(image: Any) -> Any:
        return image[:64, :64].copy()

    found = order(images().map(invert, on="image").map(crop, on="image"), "strict")
    assert found.adopted.order == ("crop", "invert")
    assert found.measured is not None and found.measured.faster


# --- bad input ---------------------------------------------------------------------------------------------


def test_too_few_elements_and_a_filter_that_lets_nothing_through_keep_the_order_with_a_note() -> None:
    few = pecan.PecanPipeline(pecan.sources.Items([{"image": np.zeros((64, 64, 3), np.uint8)}] * 3))
    pipe = few.map(tone, on="image").map(half, on="image")
    found = ordering(pipe)
    assert not found.changed and any("3 elements are too few" in note for note in found.notes)
    assert ordering(pipe, "pecan").changed
    found = ordering(
        images().map(tone, on="image").filter(lambda n: n < 0, on="number", name="none").map(half, on="image")
    )
    assert not found.changed
    assert any(f"'none' let none of {ELEMENTS} elements through" in note for note in found.notes)


def test_an_error_in_the_sample_names_operator_and_element() -> None:
    def fragile(element: Element) -> Element:
        if element["number"] == 5:
            raise ValueError("broken")
        return element

    pipe = images().map(fragile).map(half, on="image")
    with pytest.raises(OpError, match=r"fragile failed on .*broken"):
        ordering(pipe)
    found = ordering(pipe, skip_bad=True)
    assert found.stretches[0].sample.elements == ELEMENTS - 1
    assert any("1 bad elements were left out" in note for note in found.notes)


def test_wrong_arguments_are_refused() -> None:
    pipe = images().map(tone, on="image").map(half, on="image")
    with pytest.raises(PlanError, match="mode must be one of"):
        OrderRequest(pipe.plan, mode=cast(Mode, "fast"))
    with pytest.raises(PlanError, match="a sample needs"):
        OrderRequest(pipe.plan, elements=0)
