"""Random functions on images, sane and not: a table never gives anything else than they do."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest

from pecan_ray.engines.python.lookup_table import LookupTable
from pecan_ray.engines.python.rows import NotInRowsError

PROGRAMS = 60
"""For each shape of image."""
MOST_LINES = 5
SHAPES = [
    (64, 70, 3),
    (70, 64),
    (64, 70, 1),
    (40, 40, 4),
    (3, 2000, 3),
    (1, 5000, 3),
    (5000, 1, 3),
    (2, 2100, 2),
    (1, 4096),
]
DTYPES = ("float32", "float64", "uint8", "int16", "int32", "int8")
Line = Callable[[Any], Any]
Random = np.random.Generator


def number(rng: Random) -> Any:
    """A constant as functions have them."""
    kinds = (1, 2, -3, 255, 0, 0.5, 1 / 255, -1.7, 1e9, np.float32(0.3), np.uint8(7), np.int64(-2), True)
    return kinds[rng.integers(len(kinds))]


def constant(rng: Random, image: Any) -> Any:
    """An array that may fit, for channels, for rows, for all pixels, or not at all."""
    shape = tuple(size if rng.random() < 0.3 else 1 for size in image.shape)
    shape = shape[rng.integers(len(shape) + 1) :]
    dtype = np.dtype(DTYPES[rng.integers(len(DTYPES))])
    return (rng.random(shape) * 100).astype(dtype)


def arithmetic(rng: Random) -> Line:
    """A line that computes with a number."""
    value, functions = number(rng), (np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum, np.greater)
    function = functions[rng.integers(len(functions))]
    return lambda image: function(image, value) if rng_free(value) else function(value, image)


def rng_free(value: Any) -> bool:
    """From which side to compute: it depends on the number alone."""
    return hash(float(value)) % 2 == 0


def with_array(rng: Random) -> Line:
    """A line that computes with an array, made for the first image that it sees."""
    seed = int(rng.integers(1 << 30))
    return lambda image: image * constant(np.random.default_rng(seed), image)


def cast(rng: Random) -> Line:
    """A line that casts."""
    dtype, copies = DTYPES[rng.integers(len(DTYPES))], bool(rng.random() < 0.7)
    return lambda image: image.astype(dtype, copy=copies)


def in_place(rng: Random) -> Line:
    """A line that writes into its image, or into a view of it."""
    value, backwards = number(rng), bool(rng.random() < 0.4)

    def run(image: Any) -> Any:
        part = image[..., ::-1] if backwards else image
        part += value
        return image

    return run


def moves(rng: Random) -> Line:
    """A line that moves channels or axes, or takes some."""
    lines: tuple[Line, ...] = (
        lambda image: image[..., ::-1],
        lambda image: image[:, :, [2, 0, 1]],
        lambda image: image[..., [1, 1]],
        lambda image: image[..., :2],
        lambda image: image[..., 1:],
        lambda image: image[..., -1:],
        lambda image: image[::-1],
        lambda image: image[:, ::-1],
        lambda image: image[..., 0],
        lambda image: image[:2],
        lambda image: image[...],
        lambda image: image.transpose(2, 0, 1),
        lambda image: image.transpose((1, 0, 2)),
        lambda image: image.T,
        lambda image: np.moveaxis(image, -1, 0),
        lambda image: np.moveaxis(image, 0, -1),
        lambda image: image.swapaxes(0, -1),
        lambda image: np.flip(image, axis=-1),
        lambda image: np.flip(image, axis=0),
        lambda image: np.flip(image),
        functools.partial(cv2.cvtColor, code=cv2.COLOR_BGR2RGB),
        functools.partial(cv2.cvtColor, code=cv2.COLOR_RGB2GRAY),
    )
    return lines[rng.integers(len(lines))]


def looks(rng: Random) -> Line:
    """A line that looks at the image before it does something."""
    lines: tuple[Line, ...] = (
        lambda image: image / 255 if image.dtype == np.uint8 else image,
        lambda image: image * image.shape[0] + image.shape[-1] - image.ndim,
        lambda image: image + len(image),
        lambda image: image / image.size,
        lambda image: image - image.mean(),
        lambda image: image if image.max() > 3 else -image,
        lambda image: image + image[..., ::-1],
        lambda image: np.where(image > 100, image, image[..., :1]),
        lambda image: np.where(image > 100, image, 255 - image),
        lambda image: np.clip(image, 10, 90),
        lambda image: image + np.roll(image, 1, axis=0),
        lambda image: np.arange(256, dtype=np.float32)[image],
        lambda image: np.take(np.arange(256) ** 2, image),
        lambda image: np.sqrt(np.abs(image)),
        lambda image: image * 0.5 + image.T,
        lambda image: np.multiply(image, 2, out=image),
        lambda image: image.copy(),
        lambda image: image.reshape(-1),
        lambda image: image.flags.c_contiguous * image,
        lambda image: np.asarray(image, np.float32),
        lambda image: cv2.blur(image, (3, 3)),
        lambda image: image ^ 255,
        lambda image: image >> 1,
        lambda image: sum(image.shape) * image,
        lambda image: [image, image][0],
        lambda image: image if isinstance(image, np.ndarray) else None,
    )
    return lines[rng.integers(len(lines))]


LINES = (arithmetic, arithmetic, with_array, cast, cast, in_place, moves, moves, looks)


def run(lines: list[Line], image: Any) -> Any:
    """What lines make of an image; the type of what they raise."""
    try:
        for line in lines:
            image = line(image)
    except Exception as error:  # any that NumPy or OpenCV have
        return type(error)
    return image


def equal_bits(some: Any, other: Any) -> bool:
    """Tell whether two results are equal: which bits say "no number" is the processor's."""
    if isinstance(some, type) or not isinstance(some, np.ndarray):
        return some is other
    if not isinstance(other, np.ndarray) or (some.dtype, some.shape) != (other.dtype, other.shape):
        return False
    return bool(np.array_equal(some, other, equal_nan=some.dtype.kind == "f"))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_table_gives_what_functions_give(shape: tuple[int, ...]) -> None:
    tables = 0
    for seed in range(PROGRAMS):
        rng = np.random.default_rng((seed, *shape))
        image = rng.integers(0, 256, shape, dtype=np.uint8)
        seen = (image, image[::-1], image[:, ::-1], np.asfortranarray(image))[rng.integers(4)]
        lines = [LINES[rng.integers(len(LINES))](rng) for _ in range(rng.integers(1, MOST_LINES + 1))]
        found = LookupTable(tuple((str(place), line) for place, line in enumerate(lines)), exactly=bool(seed % 2))
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected, made = run(lines, seen.copy()), run([lambda given, t=found: t(given, None)], seen.copy())  # type: ignore[misc]  # the default binds the table
            try:
                found.table(shape, lambda name: None)
            except NotInRowsError:
                pass
            else:
                tables += 1
        assert equal_bits(made, expected), (seed, [line.__qualname__ for line in lines])
    assert tables > PROGRAMS // 10, "most of them are none, and not all"
