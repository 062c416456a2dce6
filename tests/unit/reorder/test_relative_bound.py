"""How far an exchange moves a result, compared with what the exchanged operators do to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pecan_ray.reorder.relative_bound import Moved, moved, step_of
from tests.unit.autoorder.test_autoorder_decided import half as small

Array = npt.NDArray[Any]


def picture(side: int = 96, seed: int = 0) -> Array:
    """Smooth shapes with edges."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:side, 0:side] / side
    waves = sum(np.sin(2 * np.pi * (a * x + b * y + c)) for a, b, c in rng.uniform(0, 4, (6, 3)))
    found = 128 + 20 * np.stack([waves, np.roll(waves, 9, 0), (x > 0.4) * 4.0 - 2], axis=-1)
    return np.asarray(np.clip(found, 0, 255).astype(np.uint8))


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


def darkened(image: Array) -> Array:
    return (image * 0.3).astype(image.dtype)


def hiding(image: Array) -> Array:
    """Blacken a little of what becomes darker."""
    made = darkened(image)
    made[200:216, 200:216] = 0
    return made


def red_where_bright(image: Array) -> Array:
    made = np.asarray((255 * (image / 255) ** 0.7).astype(np.uint8))
    made[image[..., 0] > 180] = (255, 0, 0)
    return made


def marked(sound: Array) -> Array:
    mark = 0.004 * np.sin(np.arange(len(sound)))
    return np.asarray(sound * np.float32(0.3) + mark.astype(np.float32))


def pairs(sound: Array) -> Array:
    return np.asarray((sound[::2] + sound[1::2]) / np.float32(2))


def with_corner(image: Array, by: int) -> Array:
    """Change a corner by so much."""
    made = image.astype(int)
    made[:8, :8] += by
    return made.astype(image.dtype)


def degrees() -> Array:
    return picture(384)[..., 1].astype(np.float32)


def places_and_times() -> Array:
    """Return a track: two places in degrees, and seconds."""
    places = np.random.default_rng(1).normal(0, 1e-3, (4000, 2)).cumsum(0) + np.array([37, 122])
    return np.column_stack([places, 1.7e9 + np.arange(4000.0)])


def jumping(track: Array) -> Array:
    """Return a track whose places are somewhere else for a while."""
    made = track.copy()
    made[600:900, :2] = 0
    return made


PICTURE = picture()
DARK = picture(64) // np.uint8(2) + np.uint8(100)
DOTS = np.random.default_rng(0).integers(0, 240, (64, 64, 3)).astype(np.float32)
SOUND = np.random.default_rng(0).normal(0, 0.1, 64_000).astype(np.float32)
NAN_AT_3 = np.where(np.arange(200) == 3, np.nan, np.linspace(0, 1, 200))
TIMES = np.datetime64("2024-01-01", "s") + np.arange(5000) * np.timedelta64(3, "s")
TRACK = places_and_times()
LATER = TRACK + np.array([0, 0, 7200])
MANY = np.arange(640).astype(np.uint8)
BOXES = np.array([[10.0, 20.0, 30.0, 40.0]])

PASSES: dict[str, Callable[[], Moved]] = {
    "a cast rounds elsewhere": lambda: exchange(as_floats, PICTURE),
    "an inversion": lambda: exchange(lambda image: 255 - image, PICTURE),
    "a factor": lambda: exchange(darkened, picture(384), mixing=1),
    "a curve": lambda: exchange(lambda image: (255 * (image / 255) ** 0.8).astype(np.uint8), picture(384), mixing=1),
    "a gain of sound": lambda: exchange(lambda sound: sound * np.float32(0.3), SOUND, pairs),
    "a fifth of what is done": lambda: moved(DOTS, DOTS + 2, [DOTS + 10], mixing=1),
    "equal, and nothing to compare with": lambda: moved(PICTURE, PICTURE.copy(), [None]),
    "equal with NaN": lambda: moved(NAN_AT_3, NAN_AT_3.copy(), []),
}
REFUSED: dict[str, Callable[[], Moved]] = {
    "noise behind an inversion": lambda: exchange(lambda image: noisy(255 - image), PICTURE),
    "a blur before an inversion": lambda: exchange(lambda image: 255 - blurred(image), PICTURE),
    "a square beside a factor": lambda: exchange(hiding, picture(384), mixing=1),
    "a square beside a factor, mixed": lambda: exchange(hiding, picture(384)),
    "a square beside a factor of floats": lambda: exchange(hiding, picture(384).astype(np.float32)),
    "a gap beside a gain of sound": lambda: moved(
        np.where(np.arange(64_000) // 400 == 50, np.float32(0), 0.3 * SOUND), 0.3 * SOUND, [SOUND]
    ),
    "a mark beside a gain of sound": lambda: exchange(marked, SOUND, pairs),
    "where nothing is done": lambda: moved(DARK, with_corner(DARK, 10), [DARK.copy()], step=1.0),
    "where little is done": lambda: moved(
        DARK, with_corner(DARK, -20), [with_corner(DARK - np.uint8(90), 88)], mixing=1
    ),
    "bright pixels become red": lambda: exchange(red_where_bright, picture(384), mixing=1),
    "a third of what is done": lambda: moved(DOTS, DOTS + 3, [DOTS + 10], mixing=1),
    "hues go round": lambda: exchange(lambda hues: (hues + 150) % 360, degrees(), mixing=1),
    "inverses": lambda: exchange(
        lambda depth: 1 / (depth + 1), np.where(np.arange(384) % 9 < 2, np.float32(0.5), degrees()), mixing=1
    ),
    "real numbers of complex ones": lambda: moved(
        np.arange(256) % 9.5, np.arange(256)[::-1] % 9.5, [np.exp(1j * np.arange(256))]
    ),
    "nothing to compare with": lambda: moved(PICTURE, PICTURE + np.uint8(5), [None, small(PICTURE)]),
    "another shape": lambda: moved(PICTURE, small(PICTURE), [PICTURE]),
    "another type": lambda: moved(PICTURE, PICTURE.astype(np.float32), [PICTURE]),
    "no NaN any more": lambda: moved(NAN_AT_3, np.nan_to_num(NAN_AT_3), [np.zeros(200)]),
    "dates": lambda: moved(TIMES, TIMES + np.timedelta64(1, "s"), [TIMES - np.timedelta64(9, "s")]),
    "places beside times": lambda: moved(jumping(LATER), LATER, [TRACK]),
    "places alone": lambda: moved(jumping(LATER)[:, :2], LATER[:, :2], [TRACK[:, :2]]),
    "another infinity": lambda: moved(
        np.where(TRACK > 1e9, np.inf, TRACK), np.where(TRACK > 1e9, -np.inf, TRACK), [TRACK]
    ),
    "labels": lambda: moved(np.array([3, 1, 2]), np.array([3, 1, 1]), [np.zeros(3, int)], step=10.0),
    "boxes": lambda: moved(BOXES, BOXES + 0.5, [np.zeros((1, 4))], step=10.0),
    "classes": lambda: moved(MANY % np.uint8(5), MANY % np.uint8(4), [], step=10.0),
    "numbers of words": lambda: moved(np.arange(900), np.arange(900)[::-1], [np.zeros(900, int)], step=10.0),
    "words": lambda: moved(np.array(["a", "b"]), np.array(["a", "c"]), []),
}
WRITTEN = Path(__file__).with_name("moved.txt")
"""By how much each of them moves a result; `python -m tests.unit.reorder.test_relative_bound` writes it anew."""


def told(name: str) -> str:
    found = (PASSES | REFUSED)[name]()
    shares = ", ".join(f"{one:.3g}" for one in (found.share, found.local, found.largest))
    return f"{name}: {shares}; {found.by:.3g} of {found.effect:.3g}; {found.excess:.3g} {found.why}".rstrip()


@pytest.mark.parametrize("name", [*PASSES, *REFUSED])
def test_what_passes_and_what_does_not_and_by_how_much_it_moves_results(name: str) -> None:
    assert (PASSES | REFUSED)[name]().rejected == (name in REFUSED)
    assert told(name) in WRITTEN.read_text().splitlines()


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


def test_types_of_other_libraries_are_equal_but_for_their_last_bit() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    user, last_bit, more = (np.full(200, one).astype(ml_dtypes.bfloat16) for one in (1, 1 + 2.0**-7, 1 + 2.0**-6))
    assert not moved(user, last_bit, []).rejected and moved(user, more, []).rejected


def test_what_marks_the_lowest_bits_is_told_from_rounding() -> None:
    image = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    marks = np.random.default_rng(1).integers(0, 2, (2, 96, 96, 3), np.uint8)
    user, exchanged = (image & np.uint8(254) | mark for mark in marks)
    assert moved(user, exchanged, [image], step=1.0).subtle
    assert not moved(255 - user, 255 - exchanged, [image], step=1.0).subtle
    marked, elsewhere = (SOUND * np.float32(1 + k * 2.0**-23) for k in (1, 2))
    assert moved(marked, elsewhere, [SOUND]).subtle and not moved(marked, elsewhere, [-SOUND]).subtle
    assert not moved(marked, elsewhere, [SOUND.astype(np.float64)]).subtle, "what casts does something"


def test_a_step_is_not_that_of_what_is_missing() -> None:
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


@pytest.mark.parametrize("scale", [1.0, 257.0, 1 / 255])
def test_a_step_is_told_of_a_photograph_before_white(scale: float) -> None:
    white = np.full((200, 200, 3), 255, np.uint8)
    white[:96, :96] = picture()
    assert 0.7 * scale < step_of(white, small(white.astype(np.float32)) * np.float32(scale)) < 1.5 * scale
    by_channel = white * np.float32(scale) + np.array([1, 2, 3], np.float32) * np.float32(scale)
    assert step_of(white, by_channel) == pytest.approx(scale, rel=0.1)
    grey = white[..., :1]
    assert step_of(grey, scale * grey.astype(np.float32)) == pytest.approx(scale, rel=0.1)


if __name__ == "__main__":
    WRITTEN.write_text("\n".join(map(told, [*PASSES, *REFUSED])) + "\n")
