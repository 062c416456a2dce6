"""Which orders leave the values that the user meant: exchanges on photographs, sounds, sentences; single facts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from benchmarks.guard.elements import elements
from benchmarks.guard.exchange import Exchange
from benchmarks.guard.exchanges import harmful
from benchmarks.value_guard import look
from pecan_ray.autoorder.values import summaries
from pecan_ray.plan.splits import Element
from pecan_ray.reorder.value_guard import ValueGuard
from pecan_ray.reorder.value_summary import Field, Text, summarise

COUNT = 16
NAMED = (
    "small: unit_if_bytes / to_half",
    "boxes: size / resize",
    "resized: pad_to_square / resize",
    "image and mask: draws_flip / follows (resize_all)",
)


@pytest.fixture(scope="module")
def photographs() -> list[Element]:
    return elements(COUNT)


def named(exchange: Exchange) -> str:
    return exchange.name


@pytest.mark.parametrize("exchange", [one for one in harmful() if one.name in NAMED], ids=named)
def test_what_was_seen_to_do_harm_is_refused(photographs: list[Element], exchange: Exchange) -> None:
    assert look(exchange, photographs)[0]


# --- single facts ------------------------------------------------------------------------------------------


def guard(before: list[Any], after: list[Any]) -> ValueGuard:
    found = ValueGuard()
    for one, other in zip(before, after, strict=True):
        found.add(summaries({"x": one}), summaries({"x": other}))
    return found


def refused(before: list[Any], after: list[Any]) -> str:
    return guard(before, after).refused()


def ramps(count: int = COUNT) -> list[Any]:
    """Different pictures of one size."""
    rng = np.random.default_rng(0)
    grid = np.mgrid[0:48, 0:48] / 48
    return [
        np.sin(grid[0] * rng.uniform(1, 6) + rng.uniform(0, 6)) + grid[1] * rng.uniform(-2, 2) for _ in range(count)
    ]


def test_equal_values_are_let_through_whatever_they_are() -> None:
    for value in (1, True, "text", b"bytes", None, [1, 2], {"a": [np.zeros(3)]}, np.zeros((0, 4)), 1 << 80, {1, 2}):
        assert refused([value] * 4, [value] * 4) == ""
    assert "equal on 4 elements" in next(guard([1] * 4, [1] * 4).differences()).told()


def test_small_numbers_are_equal_but_for_rounding() -> None:
    boxes = [np.array([[0.1, 0.2, 0.5, n / 20]], np.float32) for n in range(COUNT)]
    assert refused(boxes, [box + np.float32(1e-4) for box in boxes]) == ""
    assert "others" in refused(boxes, [box[:, ::-1] for box in boxes])
    assert "others" in refused(list(range(COUNT)), [0, *range(COUNT - 1)])
    assert refused([0.5 * n for n in range(COUNT)], [0.5 * n + 1e-4 for n in range(COUNT)]) == ""
    pixels = [np.array([10 * n, 300]) for n in range(COUNT)]
    assert refused(pixels, [one + 1 for one in pixels]) == "", "a size is rounded elsewhere"
    assert "others" in refused(pixels, [one + 20 for one in pixels])


def test_texts_and_other_objects_are_equal() -> None:
    assert "1 of 4 values are others" in refused(["a", "b", "c", "d"], ["a", "b", "c", "D"])
    assert refused([["a", "b"]] * 4, [["a", "b"]] * 4) == ""
    assert "others" in refused([["a", "b"]] * 4, [["b", "a"]] * 4)
    assert "others" in refused([None] * 4, [0] * 4)
    assert refused([object()] * 4, [object() for _ in range(4)]) == "", "what compares by identity counts by its type"


def test_values_within_dicts_lists_and_dataclasses_are_compared() -> None:
    @dataclasses.dataclass
    class Size:
        height: int
        tags: list[str]

    before = [{"deep": [Size(n, ["a"])]} for n in range(4)]
    assert refused(before, [{"deep": [Size(n, ["a"])]} for n in range(4)]) == ""
    assert refused(before, [{"deep": [Size(224, ["a"])]} for n in range(4)]).startswith("column 'x.deep[0].height'")
    assert "x.deep" in refused(before, [{} for n in range(4)])


def test_long_rows_of_integers_are_numbers_of_things() -> None:
    words = [np.arange(200) + 7 * n for n in range(COUNT)]
    assert refused(words, [one.copy() for one in words]) == ""
    assert "others" in refused(words, [one + 1 for one in words])


def test_the_scale_and_the_range_stay() -> None:
    pictures = ramps()
    assert refused(pictures, [one + 1e-4 for one in pictures]) == ""
    assert "mean moves by" in refused(pictures, [one + 0.5 for one in pictures])
    assert "spread becomes" in refused(pictures, [(one - one.mean()) * 2 + one.mean() for one in pictures])
    outside = [one.copy() for one in pictures]
    outside[3][0, 0] = 40.0
    assert "leave their range" in refused(pictures, outside)
    nan = [np.where(one > 0, one, np.nan) for one in pictures]
    assert "infinite or NaN" in refused(pictures, nan)


def test_channels_are_looked_at_one_by_one() -> None:
    pictures = [np.stack([one + 2, one, one - 2], -1) for one in ramps()]
    assert "mean moves by" in refused(pictures, [one[..., ::-1] for one in pictures])
    first = [np.moveaxis(one, -1, 0) for one in pictures]
    assert "mean moves by" in refused(first, [one[::-1] for one in first])


def test_what_all_elements_have_in_common_stays() -> None:
    pictures = [(one - one.mean()) / one.std() for one in ramps()]
    rng = np.random.default_rng(1)
    assert "all elements had a" in refused(pictures, [one * rng.uniform(0.7, 1.3) for one in pictures])


def test_a_border_that_is_gone_is_seen() -> None:
    def framed(one: Any) -> Any:
        out = one.copy()
        out[:6] = out[-6:] = one.min()
        return out

    pictures = ramps()
    assert refused([framed(one) for one in pictures], pictures)


def test_an_element_is_to_be_recognised() -> None:
    pictures = ramps()
    flipped = [one[::-1] if n % 2 else one for n, one in enumerate(pictures)]
    assert "hardly to be recognised" in refused(pictures, flipped)
    found = guard(pictures, flipped)
    assert found.refused(free={"x"}) == "", "another cut of it may be drawn"
    assert refused(pictures, pictures[1:] + pictures[:1])


def test_a_few_elements_are_not_quite_others_where_the_rest_are_as_they_were() -> None:
    pictures = [255 * one for one in ramps(64)]
    usual = [one + 0.01 * np.roll(one, 1, axis=0) for one in pictures]
    assert refused(pictures, usual) == ""
    turned = [np.rot90(one) if n == 40 else one for n, one in enumerate(usual)]
    assert "1 of 64 elements are quite other ones" in refused(pictures, turned)
    assert guard(pictures, turned).refused(free={"x"}) == "", "another cut of it may be drawn"
    brighter = [0.8 * one + 40 if n == 40 else one for n, one in enumerate(pictures)]
    assert refused(pictures, brighter) == "", "its contrast was measured on another part of it"


def test_a_few_masks_do_not_lose_what_they_follow() -> None:
    masks = [(one > 0.5).astype(np.uint8) for one in ramps(64)]
    assert "quite other" in refused(masks, [one[::-1] if n == 40 else one for n, one in enumerate(masks)])
    grown = [np.maximum(one, np.roll(one, 1, axis=1)) for one in masks]
    assert refused(masks, grown) == "", "an edge is drawn elsewhere"


def test_no_element_has_another_shape() -> None:
    pictures = [one[: 40 + n % 8] for n, one in enumerate(ramps(64))]
    assert refused(pictures, [one[:-1] for one in pictures]) == "", "a size is rounded elsewhere"
    turned = [one[:24].T if n == 40 else one for n, one in enumerate(pictures)]
    pictures[40] = pictures[40][:24]
    assert "1 of 64 elements have another shape" in refused(pictures, turned)


def test_noise_has_nothing_to_be_recognised_by() -> None:
    rng = np.random.default_rng(0)
    noise = [rng.random((64, 64)) for _ in range(COUNT)]
    found = ValueGuard(noise=frozenset({"x"}))
    for one, other in zip(noise, noise[1:] + noise[:1], strict=True):
        found.add(summaries({"x": one}), summaries({"x": other}))
    assert found.refused() == ""
    kept = summarise(noise[0])
    assert isinstance(kept, Field) and kept.structure == pytest.approx(kept.structure_of_noise, rel=0.5)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((0, 3)),
        np.zeros(()),
        np.arange(5000),
        np.ones((2, 300, 400, 3), np.float16),
        np.full((70, 2), np.nan),
        np.array(["2020-01-01", "NaT"], "datetime64[D]"),
        np.array([1 + 2j] * 80),
        np.zeros((100, 100), bool),
        3.5,
    ],
    ids=str,
)
def test_any_array_of_numbers_has_a_small_summary(value: Any) -> None:
    found = summarise(value)
    assert isinstance(found, Field) and found.points.size <= 4096 and found.blocks.size <= 4096
    assert np.isfinite(found.means).all()


@pytest.mark.parametrize(
    "value", ["text", b"bytes", bytearray(b"b"), None, np.array(["a", "b"]), {1}, ("a", 2)], ids=str
)
def test_anything_else_is_equal_or_not(value: Any) -> None:
    assert isinstance(summarise(value), Text) and summarise(value) == summarise(value)
