"""How far an exchange moves a result, compared with what the exchanged operators do to it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pecan_ray.reorder.relative_bound import BOUND, moved, step_of

Array = npt.NDArray[Any]


def picture(side: int = 96, seed: int = 0) -> Array:
    """Smooth shapes with edges."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:side, 0:side] / side
    waves = sum(np.sin(2 * np.pi * (a * x + b * y + c)) for a, b, c in rng.uniform(0, 4, (6, 3)))
    found = 128 + 20 * np.stack([waves, np.roll(waves, 9, 0), (x > 0.4) * 4.0 - 2], axis=-1)
    return np.asarray(np.clip(found, 0, 255).astype(np.uint8))


def small(image: Array) -> Array:
    """Halve the sides by means of four."""
    parts = [image[top::2, left::2].astype(np.float64) for top in (0, 1) for left in (0, 1)]
    mean = np.asarray(sum(parts)) / 4
    return np.asarray(np.rint(mean).astype(image.dtype) if image.dtype.kind == "u" else mean.astype(image.dtype))


def blurred(image: Array) -> Array:
    given = image.astype(np.float64)
    shifted = [np.roll(given, (a, b), (0, 1)) for a in range(-2, 3) for b in range(-2, 3)]
    made = np.mean(shifted, axis=0)
    return np.asarray(np.rint(made).astype(image.dtype) if image.dtype.kind == "u" else made.astype(image.dtype))


def noisy(image: Array) -> Array:
    noise = np.random.default_rng(3).normal(0, 12, image.shape)
    return np.asarray(np.clip(image + noise, 0, 255).astype(np.uint8))


def as_floats(image: Array) -> Array:
    return image.astype(np.float32) / np.float32(255)


def exchange(op: Any, image: Array, other: Any = small) -> Any:
    """What an exchange of an operator and one behind it moves."""
    user, exchanged, without = other(op(image)), op(other(image)), other(image)
    return moved(user, exchanged, [without], step_of([image], [user]))


def test_an_inversion_hides_no_noise_and_no_blur_and_rounding_elsewhere_is_equal() -> None:
    found = exchange(as_floats, picture())
    assert found.share == 0.0 and not found.rejected
    assert exchange(lambda image: noisy(255 - image), picture()).excess > 1.5
    assert exchange(lambda image: 255 - blurred(image), picture()).rejected
    assert not exchange(lambda image: 255 - image, picture()).rejected


def test_a_difference_where_the_operators_do_nothing_or_little_never_passes() -> None:
    user = picture(64) // np.uint8(2)
    elsewhere = user.copy()
    elsewhere[40:60, 40:60] += np.uint8(10)
    found = moved(user, elsewhere, [user.copy()], step=1.0)
    assert math.isinf(found.local) and found.rejected and "does nothing" in found.description()
    user = picture(64) // np.uint8(2) + np.uint8(100)
    without = user - np.uint8(90)
    without[:8, :8] += np.uint8(88)  # what the operator does there is little
    exchanged = user.copy()
    exchanged[:8, :8] -= np.uint8(20)
    found = moved(user, exchanged, [without], step=0.0)
    assert found.share < BOUND / 10 and found.rejected


def test_what_cannot_be_compared_is_equal_or_refused() -> None:
    image = picture()
    assert not moved(image, image.copy(), [None]).rejected
    assert moved(image, image + np.uint8(5), [None, small(image)]).rejected
    image = picture()
    assert "uint8[48, 48, 3]" in moved(image, small(image), [image]).description()
    assert moved(image, image.astype(np.float32), [image]).rejected
    user = np.linspace(0, 1, 200)
    user[3] = np.nan
    assert not moved(user, user.copy(), []).rejected
    assert moved(user, np.nan_to_num(user), [np.zeros_like(user)]).rejected


@pytest.mark.parametrize(
    ("user", "other"),
    [
        (np.array([3, 1, 2]), np.array([3, 1, 1])),
        (np.array([[10.0, 20.0, 30.0, 40.0]]), np.array([[10.0, 20.5, 30.0, 40.0]])),
        (np.arange(640, dtype=np.uint8) % 5, np.arange(640, dtype=np.uint8) % 4),
        (np.arange(900), np.arange(900)[::-1].copy()),
        (np.array(["a", "b"]), np.array(["a", "c"])),
    ],
)
def test_labels_boxes_classes_and_words_are_equal_or_refused(user: Array, other: Array) -> None:
    assert not moved(user, user.copy(), []).rejected
    assert moved(user, other, [np.zeros_like(user)], step=10.0).rejected
