"""The default order changes no values, and no error of a trial leaves AutoOrder."""

from __future__ import annotations

import sys
from typing import Any

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.adopted import Ordering
from pecan_ray.autoorder.order import order_for_job
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.plan.splits import Element
from pecan_ray.reorder import Mode
from tests.unit.autoorder.sampled_orders import SIDE, half, images

DEFAULT: Mode = "safe"


def look(pipe: pecan.PecanPipeline, mode: Mode = DEFAULT, seconds: float = 20.0, **options: Any) -> Ordering:
    """What a job finds in a short look."""
    return order_for_job(OrderRequest(pipe.plan, mode=mode, elements=16, seconds=seconds, **options))


def small(seed: int = 0) -> pecan.PecanPipeline:
    """Images that little time goes into."""
    noise = np.random.default_rng(seed).integers(0, 256, (16, 96, 96, 3), np.uint8)
    return pecan.PecanPipeline(pecan.sources.Arrays(image=noise))


def with_boxes(element: Element) -> Element:
    """Say where something is that must not be seen."""
    left = element["number"] % (SIDE - 32)
    return {**element, "boxes": np.array([[left, 40, left + 32, 72]], np.int32)}


def hide(element: Element) -> Element:
    """Blur what is within boxes, which are given in pixels, if any are."""
    image = slow(slow(element["image"]))  # takes its time, and changes nothing
    for left, top, right, bottom in element.get("boxes", ()):
        image[top:bottom, left:right] = cv2.GaussianBlur(image, (31, 31), 10)[top:bottom, left:right]
    return {**element, "image": image}


def slow(image: Any) -> Any:
    """Arithmetic on bytes that a crop can go before."""
    for _ in range(21):
        image = 255 - (255 - (255 - image))
    return image


def crop(image: Any) -> Any:
    return image[:64, :64].copy()


def test_the_default_puts_no_resize_before_a_blur_of_regions_in_pixels() -> None:
    assert pecan.Config().reorder == DEFAULT
    (found,) = look(images().map(with_boxes).map(hide).map(half, on="image")).stretches
    assert not found.adopted.changed
    assert found.refused


@pytest.mark.parametrize("mode", ["safe", "strict"])
def test_an_operator_that_changed_nothing_of_the_sample_is_not_crossed(mode: Mode) -> None:
    """Its results are equal in every order there, and are not where it has something to do."""
    (found,) = look(small().map(hide).map(crop, on="image"), mode).stretches
    assert found.adopted.order == ("hide", "crop")


def brighter(image: Any, rng: np.random.Generator) -> Any:
    return np.clip(image * rng.uniform(0.8, 1.2), 0, 255).astype(np.uint8)


def with_mask(element: Element) -> Element:
    return {**element, "mask": (element["image"][..., 0] > 128).astype(np.uint8)}


def mirror(element: Element, rng: np.random.Generator) -> Element:
    step = -1 if rng.random() < 0.5 else 1
    return {**element, **{name: np.ascontiguousarray(element[name][:, ::step]) for name in ("image", "mask")}}


@pytest.mark.parametrize("mode", ["safe", "strict"])
def test_a_column_that_is_made_between_two_operators_ends_no_trial(mode: Mode) -> None:
    pipe = small().map(brighter, on="image").map(with_mask).map(mirror)
    pipe = pipe.map(half, on="mask", name="half_mask").map(half, on="image")
    found = look(pipe, mode, seconds=4.0)
    assert not found.failed and found.stretches[0].sample.complete
    order_of = found.stretches[0].adopted.order
    assert order_of.index("with_mask") < order_of.index("half_mask")


@pytest.mark.parametrize("mode", ["safe", "strict"])
def test_an_error_of_a_trial_leaves_the_order_and_is_told(mode: Mode) -> None:
    def check(before: Element, after: Element) -> bool:
        sys.exit("no such order")

    found = look(small().map(slow, on="image").map(crop, on="image"), mode, check=check)
    assert not found.changed and not found.failed
    assert any("ended with SystemExit: no such order: the order stays as it is written" in one for one in found.notes)


def test_ctrl_c_in_a_trial_passes() -> None:
    def check(before: Element, after: Element) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        look(small().map(slow, on="image").map(crop, on="image"), check=check)
