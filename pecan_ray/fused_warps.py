"""A run of geometric operators of `pecan_ray.images` as one: what AutoOrder puts in their place (python engine)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pecan_ray.images import REDUCTIONS, cut_out
from pecan_ray.warps import (
    Draw,
    ImageSize,
    Matrix,
    Placed,
    after,
    composed,
    opencv,
    shifted,
    source_bounds,
    transform_image,
)

MARGIN = 2
"""Pixels (of the reduced image) that are decoded around those that are needed."""
WarpSteps = tuple[tuple[str, Any], ...]
"""Names of operators, by which they draw, and their functions."""


def warp(steps: WarpSteps, image: Any, rng: Draw) -> Any:
    """Return an image under one warp for several operators, or a few where one enlarges what another made coarse."""
    warps, (top, left, height, width) = composed(steps, image.shape[:2], rng)
    return functools.reduce(transform_image, warps, image[top : top + height, left : left + width])


def decode_and_warp(steps: WarpSteps, encoded: Any, shape: ImageSize, rng: Draw) -> Any:
    """Decode what is needed of a JPEG, at a reduced size where that has as many pixels as the result; then warp it."""
    (to, *others), part = composed(steps, shape, rng)
    ratio = reduction_under(to.matrix)
    matrix = reduced(after(shifted(part[0], part[1]), to.matrix), ratio)
    box = needed(matrix, to.size, part, ratio)
    if min(box[2:]) < 1:
        return np.zeros((*(others or [to])[-1].size, 3), np.uint8)
    first = Placed(after(shifted(-box[0], -box[1]), matrix), to.size)
    # OpenCV warps pixels of four bytes in two thirds of the time of those of three, to the same values.
    made = functools.reduce(transform_image, (first, *others), cut_out(encoded, box, ratio, channels=4))
    return made if made.shape[2] == 3 else opencv().cvtColor(made, opencv().COLOR_RGBA2RGB)


def reduction_under(matrix: Matrix) -> int:
    """Return by how much an image may be decoded smaller and still have a pixel for each of the result, either way."""
    apart = min(math.hypot(*matrix[:, 0]), math.hypot(*matrix[:, 1]))
    return next((ratio for ratio in REDUCTIONS if ratio <= apart), 1)


def reduced(matrix: Matrix, ratio: int) -> Matrix:
    """Return the places in an image at 1/`ratio` of its size."""
    # Places are those of the middles of pixels: the first small pixel is in the middle of the first `ratio`
    # large ones.
    return np.asarray(matrix / ratio + np.array([[0.0, 0.0, 0.5 / ratio - 0.5]] * 2))


def needed(matrix: Matrix, size: tuple[int, int], part: Sequence[int], ratio: int) -> tuple[int, int, int, int]:
    """Return what is to be decoded of a part of an image, at 1/`ratio` of its size: top, left, height, width."""
    first_row, last_row, first_column, last_column = source_bounds(matrix, size)
    bounds = [round(side / ratio) for side in (part[0], part[1], part[0] + part[2], part[1] + part[3])]
    top = max(bounds[0], math.floor(first_row) - MARGIN)
    left = max(bounds[1], math.floor(first_column) - MARGIN)
    bottom = min(bounds[2], math.ceil(last_row) + MARGIN + 1)
    right = min(bounds[3], math.ceil(last_column) + MARGIN + 1)
    return top, left, bottom - top, right - left
