"""Exchanges in modes "strict" and "safe": what is measured of them on a sample, and what is never tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.exchange_check import FIRST_ELEMENTS, ExchangeCheck, ExchangeResult, OpOrder
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.sample import Sampled, sample_op_sequence
from pecan_ray.autoorder.trial import Trial
from pecan_ray.plan.op_sequences import op_sequences
from pecan_ray.plan.splits import Element
from tests.unit.autoorder.sampled_orders import half, images, ordering, tone

FEW = 24


def shots() -> pecan.PecanPipeline:
    """Pictures of which none is flat."""
    rng = np.random.default_rng(0)
    items = [{"image": rng.integers(0, 256, (96, 96, 3), np.uint8)} for _ in range(20)]
    return pecan.PecanPipeline(pecan.sources.Items(items))


def sampled(pipe: pecan.PecanPipeline) -> Sampled:
    (stretch,) = op_sequences(pipe.plan)
    return sample_op_sequence(stretch, pipe.engine, 0, SampleLimits(FEW))


def judged(pipe: pecan.PecanPipeline, *, exactly: bool = False) -> str:
    """Why the first two operators may not be exchanged; empty if they may be."""
    found = sampled(pipe)
    check = ExchangeCheck(found, exactly=exactly)
    pair = found.sequence.names[:2]
    return "" if check.may((pair[0], pair[1])) else check.rejects()[(pair[0], pair[1])]


def measured(pipe: pecan.PecanPipeline) -> ExchangeResult:
    found = sampled(pipe)
    check = ExchangeCheck(found, exactly=False)
    first, second = found.sequence.names
    assert check.may((first, second)), check.rejects()
    (exchange,) = check.found((second, first))
    return exchange


def gamma(image: Any) -> Any:
    return np.rint(255 * (image / 255.0) ** 0.8).astype(np.uint8)


def mirror(image: Any, rng: np.random.Generator) -> Any:
    return np.ascontiguousarray(image[:, ::-1]) if rng.random() < 0.5 else image


def test_little_of_what_operators_do_passes_and_is_told_and_shown() -> None:
    found = measured(images().map(gamma, on="image").map(half, on="image"))
    assert found.elements >= 12 and found.changed and 0 < found.share <= found.worst.share < 0.1
    assert (
        found.description().startswith("'half' before 'gamma' changes ")
        and "the most different of" in found.description()
    )
    assert "split" in found.element
    assert measured(images().map(tone, on="image").map(half, on="image")).share < 0.001, "rounding"
    assert "rounds values elsewhere" in ExchangeResult("tone", "half", elements=3, changed=3).description()
    assert "equal" in measured(images().map(mirror, on="image").map(tone, on="image")).description()


def blurred(image: Any) -> Any:
    return cv2.GaussianBlur(image, (9, 9), 2.0)


def noisy(image: Any, rng: np.random.Generator) -> Any:
    return np.clip(image + rng.normal(0, 12, image.shape), 0, 255).astype(np.uint8)


def square(image: Any, rng: np.random.Generator) -> Any:
    """Blacken 24 x 24 pixels somewhere."""
    top, left = (int(rng.integers(0, side - 24)) for side in image.shape[:2])
    image = image.copy()
    image[top : top + 24, left : left + 24] = 0
    return image


@pytest.mark.parametrize("op", [blurred, noisy, square])
def test_what_would_have_another_strength_or_place_does_not(op: Callable[..., Any]) -> None:
    assert "differ" in judged(images().map(op, on="image").map(half, on="image"))


def marked(image: Any) -> Any:
    """Write a known pattern into the lowest bits."""
    pattern = np.random.default_rng(9).integers(0, 2, (400, 400, 3), np.uint8)
    return image & np.uint8(254) | pattern[: image.shape[0], : image.shape[1]]


def test_what_is_written_into_the_lowest_bits_is_no_rounding() -> None:
    pipe = shots().map(marked, on="image").map(lambda image: image[9:73, 9:73], on="image")
    assert "no more than rounding does" in judged(pipe)


def test_strict_asks_for_equality() -> None:
    assert "has to stay equal" in judged(images().map(gamma, on="image").map(half, on="image"), exactly=True)
    assert not judged(images().map(mirror, on="image").map(tone, on="image"), exactly=True)


def with_boxes(element: Element) -> Element:
    return {**element, "boxes": np.array([[10, 20, 60, 80]], np.int32)}


def hide(element: Element) -> Element:
    image = element["image"].copy()
    for left, top, right, bottom in element["boxes"]:
        image[top:bottom, left:right] = 0
    return {**element, "image": image}


def test_boxes_stay_where_they_are() -> None:
    found = sampled(images().map(with_boxes).map(hide).map(half, on="image").map(tone, on="image"))
    check = ExchangeCheck(found, exactly=False)
    assert not check.may(("hide", "half")) and "reads column 'boxes'" in check.rejects()[("hide", "half")]
    assert check.may(("hide", "tone")), "it looks at each value by itself"
    assert not check.may(("with_boxes", "hide"))


def texts() -> pecan.PecanPipeline:
    items = [{"text": "<p>" * (n % 5) + "word " * (30 + n)} for n in range(FEW)]
    return pecan.PecanPipeline(pecan.sources.Items(items))


def without_tags(text: str) -> str:
    return text.replace("<p>", "")


def lower(text: str) -> str:
    return text.upper()


def cut(text: str) -> str:
    return text[:100]


def test_what_is_taken_away_or_decided_or_seldom_changed_is_not_exchanged() -> None:
    assert "by what they are" in judged(texts().map(without_tags, on="text").map(cut, on="text"))
    assert not judged(texts().map(lower, on="text").map(cut, on="text"))

    def dark(image: Any) -> bool:
        return bool(image.mean() < 250)

    pipe = images().map(tone, on="image").filter(dark, on="image")
    assert "'dark' decides by column 'image'" in judged(pipe)
    assert not judged(images().map(tone, on="image").filter(lambda number: number % 2 == 0, on="number", name="even"))

    # One that every look watches, however busy the machine is.
    first = sampled(images().map(half, on="image")).held[0].value["number"]

    def seldom(element: Element) -> Element:
        return {**element, "image": gamma(element["image"]) if element["number"] == first else element["image"]}

    assert "were changed by both: too few" in judged(images().map(seldom).map(half, on="image"))


MANY = 96
LAST = 95
"""An element that the sample has far behind."""


def test_an_order_is_verified_on_every_element_of_the_sample() -> None:
    def marked(element: Element) -> Element:
        image = gamma(element["image"])
        if element["number"] == LAST:
            image[8:14, 8:40] = 0
        return {**element, "image": image}

    noise = np.random.default_rng(0).integers(0, 255, (MANY, 64, 64, 3), np.uint8)
    smooth_ones = [cv2.GaussianBlur(one, (15, 15), 5).astype(np.float32) for one in noise]
    spread = [np.rint(255 * (one - one.min()) / np.ptp(one)).astype(np.uint8) for one in smooth_ones]
    items = [{"image": image, "number": n} for n, image in enumerate(spread)]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items)).map(marked).map(half, on="image")
    (stretch,) = op_sequences(pipe.plan)
    found = sample_op_sequence(stretch, "python", 0, SampleLimits(MANY))
    trial = Trial(found, OrderRequest(pipe.plan))
    assert trial.exchanges.may(("marked", "half")), trial.exchanges.rejects()
    refused, _, ran = trial.verify(("half", "marked"))
    assert refused, f"{ran} elements were looked at"


def test_elements_whose_exchanges_there_was_no_time_to_compare_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = images().map(tone, on="image").map(half, on="image")
    found = sampled(pipe)
    trial = Trial(found, OrderRequest(pipe.plan))
    run = trial._rejected_on

    def late(order: OpOrder, numbers: range) -> tuple[str, int]:
        told = run(order, numbers)
        found.limits = replace(found.limits, deadline=0.0)
        return told

    assert len(found.held) > FIRST_ELEMENTS
    _, _, ran = trial.verify(("half", "tone"))
    assert ran == len(found.held)
    monkeypatch.setattr(trial, "_rejected_on", late)
    _, _, ran = trial.verify(("half", "tone"))
    assert ran == FIRST_ELEMENTS


def test_each_kind_of_changes_can_be_switched_off() -> None:
    pipe = images().map(tone, on="image").map(half, on="image")
    request = OrderRequest(pipe.plan, elements=FEW, seconds=60.0)
    (found,) = order_plan(replace(request, exchanges=False)).sequences
    assert not found.accepted.changed and not any("tone" in one.order for one in found.rejected)
    encoded = [{"image": bytes(cv2.imencode(".jpg", np.full((512, 512, 3), 9 * n, np.uint8))[1])} for n in range(FEW)]
    decoding = pecan.PecanPipeline(pecan.sources.Items(encoded), config=pecan.Config(reorder_rewrites=False))
    decoding = decoding.map(pecan.images.Decode(), on="image").map(pecan.images.Resize(64, 64), on="image")
    asked = decoding._order._request(skip_bad=False)
    assert not asked.rewrites and asked.exchanges
    assert order_plan(replace(asked, elements=FEW, seconds=60.0)).decoders == ()


def test_what_is_told_of_counts_is_right_for_one_and_for_equal_ones() -> None:
    def twice(element: Element) -> list[Element]:
        return [element, {**element, "x": element["x"][::-1]}]

    def first_is_none(element: Element) -> Element:
        return {**element, "x": element["x"] * np.arange(len(element["x"]))}

    items = [{"x": np.arange(3.0) + number} for number in range(20)]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items)).flat_map(twice).map(first_is_none)
    assert "element 0 of split 0 becomes others" in judged(pipe)
    (found,) = ordering(pecan.PecanPipeline(pecan.sources.Items(items[:1])).map(dict).map(first_is_none)).sequences
    assert found.notes == ("1 element is too few to measure times on: the order stays as it is written",)
