"""Normalizations with a number for each channel: which functions are taken for one, and that results are equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.python.channel_arithmetic import PerChannelFunction, is_channel_arithmetic
from pecan_ray.engines.python.rows import RowsColumn
from pecan_ray.plan.operators import Map

MEANS = np.array([123.68, 116.78, 103.94], np.float32)
DEVIATIONS = np.array([58.39, 57.12, 57.38])
ONE_MEAN = np.array([[[120.0]]])
ROW = np.arange(96, dtype=np.float32)[:, None]
SEEN: list[Any] = []


def normalize(image: Any) -> Any:
    return (image.astype(np.float32) - MEANS) / DEVIATIONS


def written_out(image: Any) -> Any:
    return np.clip((image - ONE_MEAN) * np.float32(2) - np.array([0.485, 0.456, 0.406]), -1, 1)


def where(image: Any) -> Any:
    return np.where(image > MEANS, image, 0)


def by_column(image: Any) -> Any:
    return image - MEANS - ROW


def in_place(image: Any) -> Any:
    image = image.astype(np.float32)
    image -= MEANS
    return image


def mean_of_image(image: Any) -> Any:
    return image - MEANS - image.mean()


def swapped(image: Any) -> Any:
    return (image - MEANS)[..., ::-1]


def cast(image: Any) -> Any:
    return image.astype(np.float32)


def remembered(image: Any) -> Any:
    SEEN.append(image)
    return image - MEANS


def told(image: Any) -> Any:
    next(iter(SEEN), None)
    return image - MEANS


@pytest.mark.parametrize("fn", [normalize, written_out, where, by_column, in_place, mean_of_image, swapped])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
def test_an_image_becomes_what_the_function_makes_of_it(fn: Callable[[Any], Any], dtype: Any) -> None:
    image = np.random.default_rng(0).integers(0, 256, (64, 96, 3)).astype(dtype)
    by_rows = PerChannelFunction(fn)
    for given in (image, image[:, ::-1], image[::2, 5:], image[:4, :4], image[..., 0]):
        if given.shape[1:] not in ((96, 3), (91, 3), (4, 3)) or (fn is by_column and given.shape[1] != 96):
            continue
        made, expected = by_rows(given.copy()), fn(given.copy())
        assert made.dtype == expected.dtype and made.tobytes() == expected.tobytes()


def test_functions_are_known_by_what_they_name() -> None:
    def is_known(fn: Callable[..., Any]) -> bool:
        return is_channel_arithmetic(Map(name="fn", fn=fn, on="image"))

    means = MEANS
    known = (normalize, written_out, where, in_place, lambda image: image - means)
    others = (cast, remembered, told, lambda image, rng: image - MEANS, abs)
    assert [is_known(fn) for fn in (*known, *others)] == [True] * len(known) + [False] * len(others)


@pytest.mark.parametrize("fn", [mean_of_image, swapped, in_place, by_column])
def test_what_is_no_arithmetic_is_asked_once(fn: Callable[[Any], Any]) -> None:
    calls: list[bool] = []

    def counted(image: Any) -> Any:
        calls.append(issubclass(type(image), RowsColumn))
        return fn(image)

    by_rows = PerChannelFunction(counted)
    for _ in range(3):
        by_rows(np.zeros((96, 96, 3), np.uint8))
    assert calls == [True, False, False, False]


def test_an_error_is_that_of_the_function() -> None:
    with pytest.raises(ValueError, match=r"operands could not be broadcast .*\(64,96,4\)"):
        PerChannelFunction(normalize)(np.zeros((64, 96, 4), np.float32))
