"""AutoOrder at work on real functions: which orders are refused, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.plan.splits import Element
from pecan_ray.reorder import Mode
from tests.unit.autoorder.sampled_orders import (
    FEW,
    SIDE,
    half,
    images,
    order,
    rejects,
    tone,
)


def test_orders_that_fail_or_give_another_dtype_or_other_elements_are_refused() -> None:
    def pick(image: Any) -> Any:
        return image[:200, :200]

    def demanding(image: Any) -> Any:
        if image.shape[0] < SIDE:
            raise ValueError("too small")
        return tone(image)

    found = order(images().map(demanding, on="image").map(pick, on="image"), "pecan")
    assert not found.adopted.changed
    assert "it fails: demanding failed on element 0" in rejects(found) and "too small" in rejects(found)

    def wider(image: Any) -> Any:
        return tone(image.astype(np.float32))

    def narrow(image: Any) -> Any:
        return image[:64, :64].astype(np.uint8)

    found = order(images().map(wider, on="image").map(narrow, on="image"), "pecan")
    assert not found.adopted.changed
    assert "the result differs in column 'image': its dtype is float32 instead of uint8" in rejects(found)
    pipe = images().map(lambda number: number + 1, on="number", name="shift")
    found = order(pipe.filter(lambda number: number % 2 == 1, on="number", name="odd"), "pecan")
    assert found.policy_order.order == ("odd", "shift") and not found.adopted.changed
    assert "it lets 0 elements through where the user's order lets 1" in rejects(found)


def test_what_fails_in_one_order_is_left_out_of_the_next() -> None:
    def cast(image: Any) -> Any:
        return image.astype(np.float16)

    def blur(image: Any) -> Any:
        return cv2.GaussianBlur(image, (15, 15), 3.0)

    noise = np.random.default_rng(0).integers(0, 255, (48, 96, 96, 3), np.uint8).astype(np.float32)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(image=noise))
    for op in (blur, half, cast):
        pipe = pipe.map(op, on="image")
    found = order(pipe.map(lambda image: image[:, ::-1], on="image", name="flip").batch(8), "pecan")
    assert found.adopted.order.index("half") < found.adopted.order.index("blur"), "what works is adopted"
    assert found.adopted.order.index("blur") < found.adopted.order.index("cast"), "OpenCV takes no float16"
    assert "it fails" in rejects(found)


@pytest.mark.parametrize("mode", ["safe", "pecan"])
def test_what_changes_the_form_of_the_result_is_left_out_and_the_rest_is_done(mode: Mode) -> None:
    def crop(image: Any) -> Any:
        return image[5:-5, 5:-5]

    noise = np.random.default_rng(0).integers(0, 255, (48, 96, 96, 3), np.uint8)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(image=noise))
    for op in (crop, tone, lambda image: cv2.resize(image, (32, 32))):
        pipe = pipe.map(op, on="image", name="fit" if op not in (crop, tone) else None)
    found = order(pipe.batch(8), mode)
    assert found.adopted.order == ("crop", "fit", "tone"), "a crop behind the resize would be too small"


def test_check_refuses_an_order_whose_values_have_another_range() -> None:
    pipe = images().map(tone, on="image").map(half, on="image")

    def equal(before: Element, after: Element) -> bool:
        return bool((before["image"] == after["image"]).all())

    def asserted(before: Element, after: Element) -> None:
        assert equal(before, after), "rounded elsewhere"

    for check, said in ((equal, "check= returned False"), (asserted, "AssertionError: rounded elsewhere")):
        found = order(pipe, "safe", check=check)
        assert not found.adopted.changed and said in rejects(found)
        assert not order(pipe, "pecan", FEW, check=check).adopted.changed


def test_an_operator_with_state_is_not_moved_and_nothing_crosses_it() -> None:
    def counting() -> Callable[[Any], Any]:
        seen = [0]

        def count(image: Any) -> Any:
            seen[0] += 1
            return image + np.uint8(seen[0] % 256)

        return count

    found = order(images().map(tone, on="image").map(counting(), on="image").map(half, on="image"), "pecan")
    assert found.adopted.order == ("tone", "count", "half")
    assert "hold state" in found.adopted.fixed[0].reason
    vouched = images().map(tone, on="image").map(counting(), on="image", random=True).map(half, on="image")
    assert order(vouched, "pecan").adopted.order == ("half", "tone", "count")


def test_random_operators_and_flat_maps_keep_their_places_to_each_other() -> None:
    def views(image: Any) -> list[Any]:
        return [image, image[::-1].copy()]

    def jitter(image: Any, rng: np.random.Generator) -> Any:
        return tone(image + np.uint8(rng.integers(9)))

    found = order(images().flat_map(views, on="image").map(jitter, on="image").map(half, on="image"), "pecan")
    assert found.adopted.order == ("half", "views", "jitter")
    plain = order(images().flat_map(views, on="image").map(tone, on="image").map(half, on="image"), "pecan")
    assert plain.adopted.order == ("half", "tone", "views")


def test_an_order_that_is_not_faster_is_refused() -> None:
    def reverse(image: Any) -> Any:
        return image[::-1]

    def first_rows(image: Any) -> Any:
        return image[:250]

    found = order(images().map(reverse, on="image").map(first_rows, on="image"))
    assert not found.adopted.changed
