"""Flips, rotations and shears of images, and any run of them with crops and resizes as one warp.

Each of these operators gives a pixel the value at some place of its image, and that place is an affine function of the
pixel's own.  So a run of them is one such function: AutoOrder composes it (`pecan_ray.autoorder.rewrites`), and every
pixel is computed once, from the photograph, instead of once for each operator.  They draw what they draw by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pecan_ray.errors import MissingExtraError

Matrix: TypeAlias = "npt.NDArray[np.float64]"
"""[2, 3]: from a pixel (x, y, 1) of the result to its place in the image."""
Draw: TypeAlias = Callable[[str], Any]
"""From the name of an operator to its random numbers."""
ImageSize: TypeAlias = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True)
class Placed:
    """What a geometric operator does to an image of some size."""

    matrix: Matrix
    size: ImageSize
    """Of the result."""
    box: tuple[int, int, int, int] | None = None
    """For a crop: what is left of the image (top, left, height, width)."""


@dataclass(frozen=True)
class RandomFlip:
    """Mirror left and right, with a probability."""

    probability: float = 0.5

    def __call__(self, image: Any, rng: Any) -> Any:
        """Mirror an image, or not."""
        if isinstance(image, np.ndarray):
            return _with_channels(opencv().flip(image, 1), image) if rng.random() < self.probability else image
        tf = tensorflow()
        flipped = tf.random.stateless_uniform([], rng) < self.probability
        return tf.cond(flipped, lambda: tf.reverse(image, [1]), lambda: image)

    def placed(self, size: ImageSize, rng: Any) -> Placed:
        """Return what it does to an image of that size."""
        return mirrored(1, size) if rng.random() < self.probability else Placed(np.eye(2, 3), size)


@dataclass(frozen=True)
class RandomRotate:
    """Rotate counter-clockwise about the middle by an angle uniform in `degrees`, bilinear; outside is 0."""

    degrees: tuple[float, float] = (0.0, 5.0)

    def __call__(self, image: Any, rng: Any) -> Any:
        """Rotate an image."""
        if isinstance(image, np.ndarray):
            return transform_image(image, self.placed(image.shape[:2], rng))
        tf = tensorflow()
        angle = tf.random.stateless_uniform([], rng, *self.degrees) * (math.pi / 180.0)
        return _transform_in_graph(image, tf.cos(angle), -tf.sin(angle), tf.sin(angle), tf.cos(angle))

    def placed(self, size: ImageSize, rng: Any) -> Placed:
        """Return what it does to an image of that size."""
        angle = math.radians(float(rng.uniform(*self.degrees)))
        cos, sin = math.cos(angle), math.sin(angle)
        x, y = (size[1] - 1) / 2, (size[0] - 1) / 2
        return Placed(np.array([[cos, -sin, x - cos * x + sin * y], [sin, cos, y - sin * x - cos * y]]), size)


@dataclass(frozen=True)
class RandomShear:
    """Shear horizontally: pixel (x, y) has the value at (x + level y, y), level uniform in `levels`; outside is 0."""

    levels: tuple[float, float] = (-0.1, 0.1)

    def __call__(self, image: Any, rng: Any) -> Any:
        """Shear an image."""
        if isinstance(image, np.ndarray):
            return transform_image(image, self.placed(image.shape[:2], rng))
        level = tensorflow().random.stateless_uniform([], rng, *self.levels)
        return _transform_in_graph(image, 1.0, level, 0.0, 1.0, about_middle=False)

    def placed(self, size: ImageSize, rng: Any) -> Placed:
        """Return what it does to an image of that size."""
        return Placed(np.array([[1.0, float(rng.uniform(*self.levels)), 0.0], [0.0, 1.0, 0.0]]), size)


# --- composing them ------------------------------------------------------------------------------------------


def shifted(top: float, left: float) -> Matrix:
    """Return what a crop does."""
    return np.array([[1.0, 0.0, left], [0.0, 1.0, top]])


def mirrored(axis: int, size: ImageSize) -> Placed:
    """Return what mirroring rows (0) or columns (1) does."""
    matrix = np.eye(2, 3)
    # Axes of arrays are (row, column), those of matrices (x, y).  Pixel i comes from size - 1 - i.
    matrix[1 - axis, 1 - axis], matrix[1 - axis, 2] = -1.0, size[axis] - 1.0
    return Placed(matrix, size)


def scaled(size: ImageSize, target: ImageSize) -> Matrix:
    """Return what a resize does: the middles of the corner pixels' outer edges fall on one another."""
    y, x = size[0] / target[0], size[1] / target[1]
    return np.array([[x, 0.0, x / 2 - 0.5], [0.0, y, y / 2 - 0.5]])


def after(first: Matrix, then: Matrix) -> Matrix:
    """Return what two do one after the other: a pixel of the last result is looked up through both."""
    (a, b, x), (c, d, y) = first.tolist()  # of so few numbers, NumPy's calls take five times as long as Python's sums
    (e, f, u), (g, h, v) = then.tolist()
    return np.array(
        [[a * e + b * g, a * f + b * h, a * u + b * v + x], [c * e + d * g, c * f + d * h, c * u + d * v + y]]
    )


def transform_image(image: Any, to: Placed) -> Any:
    """Return an image under a matrix, bilinear; outside is 0."""
    cv2 = opencv()
    # Matrices lead from the result to the image; without the flag OpenCV would invert them.
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    made = cv2.warpAffine(image, to.matrix, to.size[::-1], flags=flags, borderMode=cv2.BORDER_CONSTANT, borderValue=0)
    return _with_channels(made, image)


def source_bounds(matrix: Matrix, size: ImageSize) -> tuple[float, float, float, float]:
    """Return the part of an image from which pixels are taken: first and last row, first and last column."""
    (a, b, x), (c, d, y) = matrix.tolist()
    corners = [(u, v) for u in (0.0, size[1] - 1.0) for v in (0.0, size[0] - 1.0)]
    rows, columns = [c * u + d * v + y for u, v in corners], [a * u + b * v + x for u, v in corners]
    return min(rows), max(rows), min(columns), max(columns)


def composed(steps: Sequence[Any], size: ImageSize, draw: Draw) -> tuple[Placed, tuple[int, int, int, int]]:
    """Return the warp that operators in a row are on an image of some size, and the part that all is taken from.

    The part is the first crop, if nothing comes before it: what lies outside is 0, as behind a crop by itself.
    """
    height, width = size
    matrix, part = np.eye(2, 3), (0, 0, height, width)
    for number, step in enumerate(steps):
        # By its own name and for the size that it would have had: it draws what it drew alone
        # (docs/decisions/rewrites.md#66-one-warp).
        one = step.placed((height, width), draw)
        if one.box is not None and not number:
            part = one.box
            matrix = after(shifted(-part[0], -part[1]), one.matrix)
        else:
            matrix = after(matrix, one.matrix)
        height, width = one.size
    return Placed(matrix, (height, width)), part


def _transform_in_graph(image: Any, a: Any, b: Any, c: Any, d: Any, *, about_middle: bool = True) -> Any:
    """Return a tensor under the matrix [[a, b], [c, d]], about its middle or its first pixel."""
    tf = tensorflow()
    shape = tf.shape(image)
    a, b, c, d = (tf.cast(one, tf.float32) for one in (a, b, c, d))
    x, y = ((tf.cast(shape[axis], tf.float32) - 1.0) / 2.0 if about_middle else 0.0 for axis in (1, 0))
    row = tf.stack([a, b, x - a * x - b * y, c, d, y - c * x - d * y, 0.0, 0.0])
    made = tf.raw_ops.ImageProjectiveTransformV3(
        images=tf.cast(image, tf.float32)[None],
        transforms=row[None],
        output_shape=shape[:2],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )[0]
    # A cast alone would cut fractions off.
    made = tf.cast(tf.round(made), image.dtype) if image.dtype.is_integer else tf.cast(made, image.dtype)
    return tf.ensure_shape(made, image.shape)


def _with_channels(made: Any, image: Any) -> Any:
    return made.reshape(*made.shape[:2], *image.shape[2:])  # OpenCV drops the last axis of images with one channel


def tensorflow() -> Any:
    """Return TensorFlow, which whoever holds a tensor of a graph has."""
    import tensorflow as tf

    return tf


def opencv() -> Any:
    """Return OpenCV; raises MissingExtraError where it is not installed."""
    try:
        import cv2
    except ImportError as error:
        raise MissingExtraError(
            "pecan_ray.images needs OpenCV in the python engine: pip install opencv-python-headless."
        ) from error
    return cv2
