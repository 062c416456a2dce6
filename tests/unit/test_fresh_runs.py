"""Orders are judged where the user's order has not run before them, and by every element of the sample."""

from __future__ import annotations

import os
import time
from typing import Any

import cv2
import numpy as np
import pytest

from pecan_ray.autoorder.fresh_runs import FreshRuns, RunLimits
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.sample import Sampled, sample_stretch
from pecan_ray.plan.splits import Element
from pecan_ray.plan.stretches import stretches
from pecan_ray.reorder.value_summary import Field
from tests.unit.sampled_orders import TRIES, blur, half, images, order, refusals

LIMITS = RunLimits(20.0, 20.0)


def masked(element: Element) -> Element:
    return {**element, "mask": (element["image"][..., 0] > 128).astype(np.uint8)}


def test_what_is_kept_for_each_element_is_not_found_there_by_the_order_that_is_tried() -> None:
    flips: dict[int, bool] = {}

    def draw(element: Element, rng: np.random.Generator) -> Element:
        flips[element["number"]] = flip = bool(rng.random() < 0.5)
        image = blur(element["image"])
        return {**element, "image": np.ascontiguousarray(image[:, ::-1]) if flip else image}

    def follow(element: Element) -> Element:
        mask = element["mask"][:, ::-1] if flips.get(element["number"], False) else element["mask"]
        return {**element, "image": half(element["image"]), "mask": half(np.ascontiguousarray(mask))}

    for mode in ("cost", "strict"):
        found = order(images().map(masked, keep_position=True).map(draw).map(follow), mode)
        assert not found.adopted.changed
    found = order(images().map(masked, keep_position=True).map(draw).map(follow))
    assert "where your order has not run before it: column 'mask'" in refusals(found)


def test_what_is_kept_at_the_first_sight_of_an_element_is_that_of_the_users_order() -> None:
    widths: dict[int, int] = {}

    def record(element: Element) -> Element:
        width = widths.setdefault(element["number"], element["image"].shape[1])
        return {**element, "image": blur(element["image"]), "width": width}

    found = order(images().map(record).map(half, on="image"))
    assert not found.adopted.changed and "'width'" in refusals(found)


def test_a_few_elements_that_become_others_are_enough_to_refuse_an_order() -> None:
    def portrait(element: Element) -> Element:
        return {**element, "image": element["image"][:, 64:-64]} if element["number"] == 41 else element

    def upright(image: Any) -> Any:
        return blur(np.ascontiguousarray(np.rot90(image)) if image.shape[0] > image.shape[1] else image)

    def square(image: Any) -> Any:
        return cv2.resize(image, (128, 128))

    pipe = images().map(portrait, keep_position=True).map(upright, on="image").map(square, on="image")
    for _ in range(TRIES):
        found = order(pipe)
        assert not found.adopted.changed
        if "quite other" in refusals(found):
            break  # other load did not hide the gain, behind which all elements are compared
    assert "column 'image': 1 of 48 elements are quite other ones" in refusals(found)


@pytest.fixture
def sampled() -> Any:
    state = {"runs": 0}

    def count(element: Element) -> Element:
        state["runs"] += 1
        return {**element, "runs": state["runs"]}

    def last(number: int) -> int:
        return number + 1

    pipe = images().map(count, name="count").map(last, on="number", name="last")
    (stretch,) = stretches(pipe.plan)
    found = sample_stretch(stretch, "python", 0, SampleLimits(12), afresh=True)
    yield found
    found.close()


def test_a_run_begins_where_nothing_has_run(sampled: Sampled) -> None:
    assert sampled.fresh is not None
    for _ in range(2):
        first, second = sampled.fresh.run([("count", "last"), ("last", "count")], range(12), LIMITS)
        for one in (first, second):
            assert one.failed == "" and len(one.made) == 12
            runs = [element["runs", ""] for (element,) in one.made]
            assert [one.low for one in runs if isinstance(one, Field)] == list(range(1, 13))


def test_a_run_that_ends_its_process_or_never_ends_says_so() -> None:
    def deadly(number: int) -> int:
        if number == 5:
            os._exit(3)
        return number

    def endless(number: int) -> int:
        while number == 5:
            time.sleep(3600)
        return number

    pipe = images().map(deadly, on="number", name="deadly").map(endless, on="number", name="endless")
    (stretch,) = stretches(pipe.plan)
    sampled = sample_stretch(stretch, "python", 0, SampleLimits(4), afresh=True)
    held = [sampled.runner.replaced(token, {"number": 5 * (place == 3)}) for place, token in enumerate(sampled.held)]
    runs = FreshRuns(sampled.runner, held)
    try:
        ends, hangs = runs.run([("deadly", "endless"), ("endless", "deadly")], range(4), RunLimits(0.1, 1.0))
    finally:
        runs.close()
        sampled.close()
    for one in (ends, hangs):
        assert len(one.made) <= 3 and one.failed == "its process ended"
