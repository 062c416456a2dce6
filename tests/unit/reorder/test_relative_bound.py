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


def exchange(op: Any, image: Array, other: Any = small, mixing: int = 2) -> Any:
    """What an exchange of an operator and one behind it moves."""
    user, exchanged, without = other(op(image)), op(other(image)), other(image)
    return moved(user, exchanged, [without], step_of(image, user), mixing)


def test_an_inversion_hides_no_noise_and_no_blur_and_rounding_elsewhere_is_equal() -> None:
    found = exchange(as_floats, picture())
    assert found.share == 0.0 and not found.rejected
    assert exchange(lambda image: noisy(255 - image), picture()).excess > 1.5
    assert exchange(lambda image: 255 - blurred(image), picture()).rejected
    assert not exchange(lambda image: 255 - image, picture()).rejected


def test_something_small_that_is_hidden_stays_hidden_beside_an_effect_on_the_whole() -> None:
    def darkened(image: Array) -> Array:
        return (image * 0.3).astype(np.uint8)

    def hiding(image: Array) -> Array:
        made = darkened(image)
        made[200:216, 200:216] = 0
        return made

    assert not exchange(darkened, picture(384), mixing=1).rejected
    found = exchange(hiding, picture(384), mixing=1)
    assert found.share < BOUND / 10 and found.rejected
    assert exchange(hiding, picture(384)).rejected
    assert exchange(hiding, picture(384).astype(np.float32)).rejected
    sound = np.random.default_rng(0).normal(0, 0.1, 64_000).astype(np.float32)
    muted = sound * np.float32(0.3)
    muted[20_000:20_400] = 0
    heard = np.where(muted == 0, sound * np.float32(0.3), muted)
    assert moved(muted, heard, [sound]).rejected


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
    found = moved(user, exchanged, [without], step=0.0, mixing=1)
    assert found.share < BOUND / 10 and found.local > 0.5 and found.rejected


def test_values_that_become_others_never_pass_however_few_they_are() -> None:
    def red(image: Array) -> Array:
        made = np.asarray((255 * (image / 255) ** 0.7).astype(np.uint8))
        made[image[..., 0] > 180] = (255, 0, 0)
        return made

    def hue(degrees: Array) -> Array:
        return np.asarray((degrees + 150) % 360)

    def inverse(depth: Array) -> Array:
        return np.asarray(1 / (depth + 1))

    degrees = picture(384)[..., 1].astype(np.float32)
    depth = np.where(np.arange(384) % 9 < 2, 0.5, degrees).astype(np.float32)
    for op, given in ((red, picture(384)), (hue, degrees), (inverse, depth)):
        found = exchange(op, given, mixing=1)
        assert found.largest > 0.25 and found.rejected and "a single value" in found.description()
    curve = exchange(lambda image: (255 * (image / 255) ** 0.8).astype(np.uint8), picture(384), mixing=1)
    assert 0 < curve.largest < 0.1 and not curve.rejected


def test_a_mark_is_seen_beside_a_gain_in_the_same_function() -> None:
    sound = np.random.default_rng(0).normal(0, 0.1, 64_000).astype(np.float32)

    def marked(given: Array) -> Array:
        mark = 0.004 * np.sin(np.arange(len(given)))
        return np.asarray(given * np.float32(0.3) + mark.astype(np.float32))

    def pairs(given: Array) -> Array:
        return np.asarray((given[::2] + given[1::2]) / np.float32(2))

    assert exchange(marked, sound, pairs, mixing=1).share < BOUND
    assert exchange(marked, sound, pairs).share > BOUND
    assert not exchange(lambda given: given * np.float32(0.3), sound, pairs).rejected


def test_complex_numbers_are_not_compared_with_real_ones() -> None:
    waves = np.exp(1j * np.arange(256)).astype(np.complex64)
    angles = np.angle(waves).astype(np.float32)
    assert moved(angles, angles[::-1].copy(), [waves]).rejected


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


@pytest.mark.parametrize("missing", [-3.4e38, 1e20, 1e9, -9999.0])
@pytest.mark.parametrize("kind", ["f4", "f8", "c8"])
def test_a_large_value_that_stands_for_what_is_missing_hides_no_difference(missing: float, kind: str) -> None:
    field = np.random.default_rng(0).normal(280, 20, (64, 96)).astype(kind)
    field[:20, 70:] = missing
    hidden, elsewhere = field.copy(), field.copy()
    hidden[30:42, 10:30], elsewhere[30:42, 40:60] = 0, 0
    assert moved(hidden, elsewhere, [field]).rejected and moved(hidden, elsewhere, [field], mixing=0).rejected
    row = np.array([missing, 0.25, 0.5, 3.0]).astype(kind)
    assert moved(row, row + np.array([0, 1e-3, 0, 0], kind), [np.zeros_like(row)]).rejected
    last_bit = row * np.asarray(1 + np.finfo(kind).eps, kind)
    assert not moved(row, last_bit, [np.zeros_like(row)]).rejected


def test_a_step_is_not_that_of_what_is_missing_and_channels_of_other_units_are_judged_apart() -> None:
    image = picture(128)[..., 0]
    made = np.sqrt(image / np.float32(255))
    made[:30, 90:] = -9999
    hidden, elsewhere = made.copy(), made.copy()
    hidden[60:84, 10:34], elsewhere[60:84, 50:74] = 0, 0
    assert step_of(image, made) < 0.01
    for without in (image / np.float32(255), image):
        assert moved(hidden, elsewhere, [without], step_of(image, made)).rejected
    ink = (np.random.default_rng(0).random((200, 300)) < 0.12).astype(np.uint8)
    assert step_of(ink, ink.astype(np.float32)) == 0.0, "it is all that there is"
    rng = np.random.default_rng(1)
    track = np.stack([37 + rng.normal(0, 1e-3, 4000).cumsum(), 122 + rng.normal(0, 1e-3, 4000).cumsum()], axis=-1)
    track = np.concatenate([track, 1.7e9 + np.arange(4000.0)[:, None]], axis=-1)
    user, exchanged = (track + np.array([0, 0, 7200]) for _ in range(2))
    user[600:900, :2] = 0
    assert (
        moved(user, exchanged, [track]).rejected and moved(user[..., :2], exchanged[..., :2], [track[..., :2]]).rejected
    )
    endless = np.where(track > 1e9, np.inf, track)
    assert "infinite" in moved(endless, np.where(track > 1e9, -np.inf, track), [track]).why


def test_dates_are_no_amounts_and_what_marks_the_lowest_bits_is_told_from_rounding() -> None:
    times = np.datetime64("2024-01-01", "s") + np.arange(5000) * np.timedelta64(3, "s")
    assert moved(times, times + np.timedelta64(1, "s"), [times - np.timedelta64(9, "s")]).rejected
    image = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    marks = np.random.default_rng(1).integers(0, 2, (2, 96, 96, 3), np.uint8)
    user, exchanged = (image & np.uint8(254) | mark for mark in marks)
    assert moved(user, exchanged, [image], step=1.0).subtle
    assert not moved(255 - user, 255 - exchanged, [image], step=1.0).subtle
    sound = np.random.default_rng(2).normal(0, 1, 8000).astype(np.float32)
    marked, elsewhere = (sound * np.float32(1 + k * 2.0**-23) for k in (1, 2))
    assert moved(marked, elsewhere, [sound]).subtle and not moved(marked, elsewhere, [-sound]).subtle
    assert not moved(marked, elsewhere, [sound.astype(np.float64)]).subtle, "what casts does something"


@pytest.mark.parametrize("scale", [1.0, 257.0, 1 / 255])
def test_a_step_is_told_of_a_photograph_before_white(scale: float) -> None:
    white = np.full((200, 200, 3), 255, np.uint8)
    white[:96, :96] = picture()
    assert 0.7 * scale < step_of(white, small(white.astype(np.float32)) * np.float32(scale)) < 1.5 * scale
    by_channel = white * np.float32(scale) + np.array([1, 2, 3], np.float32) * np.float32(scale)
    assert step_of(white, by_channel) == pytest.approx(scale, rel=0.1)


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
