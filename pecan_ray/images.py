"""Image operators that AutoOrder knows, for both engines.

    pipe.map(images.Decode(), on="image").map(images.RandomCrop(), on="image").map(images.Resize(224, 224), on="image")

Any function can be mapped; these can moreover be pushed down into the decoder (`pecan_ray.autoorder.rewrites`, python
engine), which then decodes only a part of a photograph, or at a half, a quarter or an eighth of its size; and a run of
them, flips, rotations and shears among them, can become one warp. Images are uint8 RGB
[height, width, 3]. They need OpenCV (python engine) or TensorFlow (tensorflow engine).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pecan_ray.errors import PlanError
from pecan_ray.part_decoding import JpegHeader, decode_part
from pecan_ray.warps import RandomFlip, RandomRotate, RandomShear, opencv, tensorflow

__all__ = ["CenterCrop", "Decode", "RandomCrop", "RandomFlip", "RandomRotate", "RandomShear", "Resize"]

Image: TypeAlias = Any
"""A NumPy array, or a tensor inside of a graph."""
Box: TypeAlias = "tuple[Any, Any, Any, Any]"
"""Top, left, height and width, in pixels."""

# The divisors at which JPEG decoders make a smaller image; the largest first, because it leaves least to do.
REDUCTIONS = (8, 4, 2)
# Draws of a part's area and aspect before the whole image is taken: as many as torchvision makes.
ATTEMPTS = 10


@dataclass(frozen=True)
class Decode:
    """Encoded photograph to uint8 RGB, as stored unless it is to be `upright`; raises ValueError if it is none.

    Upright images are turned as their EXIF data say, by OpenCV (in both engines; its version decides of which formats
    besides JPEG).  What follows such a decoder runs behind it: boxes and sizes are those of the turned image.
    """

    upright: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.upright, bool):
            raise PlanError(f"Decode(upright=...) must be True or False, but got {self.upright!r}.")

    def __call__(self, encoded: Image) -> Image:
        """Decode an image."""
        if not (self.upright and _in_graph(encoded)):
            return decoded(encoded, upright=self.upright)
        turned = tensorflow().numpy_function(lambda file: decoded(file, upright=True), [encoded], tensorflow().uint8)
        return tensorflow().ensure_shape(turned, [None, None, 3])


@dataclass(frozen=True)
class RandomCrop:
    """A random part: its share of the area uniform in `area`, its width over its height log-uniform in `aspect`."""

    # Both defaults, and ATTEMPTS, are those of torchvision's `RandomResizedCrop`.
    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        for name, (low, high) in (("area", self.area), ("aspect", self.aspect)):
            if not 0 < low <= high:
                raise PlanError(f"RandomCrop({name}=...) must be a rising pair of positive numbers, got {low}, {high}.")

    def __call__(self, image: Image, rng: Any) -> Image:
        """Cut a random part out."""
        top, left, height, width = self.box(image.shape[:2] if _is_array(image) else tensorflow().shape(image), rng)
        return image[top : top + height, left : left + width]

    def box(self, shape: Any, rng: Any) -> Box:
        """Draw the part of an image of that height and width."""
        if not isinstance(rng, np.random.Generator):
            return self._box_in_graph(shape, rng)
        height, width = int(shape[0]), int(shape[1])
        for _ in range(ATTEMPTS):
            size = height * width * rng.uniform(*self.area)
            aspect = math.exp(rng.uniform(math.log(self.aspect[0]), math.log(self.aspect[1])))
            h, w = round(math.sqrt(size / aspect)), round(math.sqrt(size * aspect))
            if 0 < h <= height and 0 < w <= width:
                return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
        return 0, 0, height, width

    def _box_in_graph(self, shape: Any, seed: Any) -> Box:
        """Draw all attempts at once and take the first that fits; the whole image if none does."""
        tf = tensorflow()
        height, width = tf.cast(shape[0], tf.float32), tf.cast(shape[1], tf.float32)
        draws = tf.random.stateless_uniform([4, ATTEMPTS], seed)
        area, aspect = self.area, tuple(math.log(ratio) for ratio in self.aspect)
        sizes = height * width * (area[0] + draws[0] * (area[1] - area[0]))
        aspects = tf.exp(aspect[0] + draws[1] * (aspect[1] - aspect[0]))
        heights, widths = tf.round(tf.sqrt(sizes / aspects)), tf.round(tf.sqrt(sizes * aspects))
        fit = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)
        first, found = tf.argmax(tf.cast(fit, tf.int32)), tf.reduce_any(fit)
        h, w = tf.where(found, heights[first], height), tf.where(found, widths[first], width)
        top, left = tf.floor(draws[2][first] * (height - h + 1)), tf.floor(draws[3][first] * (width - w + 1))
        return tuple(
            tf.cast(side, tf.int32) for side in (tf.minimum(top, height - h), tf.minimum(left, width - w), h, w)
        )


@dataclass(frozen=True)
class CenterCrop:
    """The middle `height` x `width` pixels; raises ValueError for a smaller image."""

    height: int
    width: int

    def __call__(self, image: Image) -> Image:
        """Cut the middle out."""
        top, left, height, width = self.box(image.shape[:2] if _is_array(image) else tensorflow().shape(image))
        return image[top : top + height, left : left + width]

    def box(self, shape: Any) -> Box:
        """Return the middle part of an image of that height and width."""
        top, left = (shape[0] - self.height) // 2, (shape[1] - self.width) // 2
        if isinstance(top, int) and min(top, left) < 0:
            raise ValueError(
                f"an image of {shape[0]} x {shape[1]} is smaller than CenterCrop({self.height}, {self.width})"
            )
        return top, left, self.height, self.width


@dataclass(frozen=True)
class Resize:
    """Resize to `height` x `width`, bilinear; the dtype stays."""

    height: int
    width: int

    def __call__(self, image: Image) -> Image:
        """Resize an image."""
        return resize_image(image, self.height, self.width)


def decoded(encoded: Image, ratio: int = 1, *, upright: bool = False) -> Image:
    """Return an image as uint8 RGB, JPEG at 1/`ratio` of its size; `upright`: as its EXIF data say (python engine)."""
    if _in_graph(encoded):
        return tensorflow().ensure_shape(
            tensorflow().image.decode_image(encoded, channels=3, expand_animations=False)
            if ratio == 1
            else tensorflow().image.decode_jpeg(encoded, channels=3, ratio=ratio),
            [None, None, 3],
        )
    cv2 = opencv()
    # With IMREAD_COLOR these flags are those for reduced images in colour.
    sizes = {1: 0, 2: cv2.IMREAD_REDUCED_GRAYSCALE_2, 4: cv2.IMREAD_REDUCED_GRAYSCALE_4}
    rgb = getattr(cv2, "IMREAD_COLOR_RGB", 0)  # where OpenCV lacks it, RGB is a pass of its own over all pixels
    flag = sizes.get(ratio, cv2.IMREAD_REDUCED_GRAYSCALE_8) | (rgb or cv2.IMREAD_COLOR)
    flag |= 0 if upright else cv2.IMREAD_IGNORE_ORIENTATION
    image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flag) if len(encoded) else None
    if image is None:
        heic = bytes(encoded[4:8]) == b"ftyp"
        suggestion = " (a HEIC or AVIF: convert it, or map a function of pillow-heif)" if heic else ""
        raise ValueError(f"these {len(encoded)} bytes are not an image that OpenCV can decode{suggestion}")
    return image if rgb else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def cut_out(encoded: Any, header: JpegHeader, box: Box, ratio: int = 1, channels: int = 3) -> Image:
    """Return a part of a JPEG at 1/`ratio` of its size (python engine); only the part is decoded.

    The pixels are those of decoding the whole: where another way would make others, or fail, the whole is decoded.
    Where 4 `channels` are wanted there may be 3 all the same; a fourth one means nothing.
    """
    part = decode_part(encoded, header, box, ratio, channels)
    if part is not None:
        return part
    top, left, height, width = box
    return decoded(encoded, ratio)[top : top + height, left : left + width]


def resize_image(image: Image, height: int, width: int) -> Image:
    """Return an image of that size, bilinear."""
    if _is_array(image):
        return opencv().resize(image, (width, height), interpolation=opencv().INTER_LINEAR)
    tf = tensorflow()
    small = tf.image.resize(image, [height, width])
    return tf.cast(tf.round(small), image.dtype) if image.dtype.is_integer else tf.cast(small, image.dtype)


def reduction(shape: tuple[int, int], target: tuple[int, int]) -> int:
    """Return by how much an image, or a part of one, may be decoded smaller and still cover the target."""
    return next((r for r in REDUCTIONS if shape[0] // r >= target[0] and shape[1] // r >= target[1]), 1)


def _in_graph(encoded: Any) -> bool:
    return not isinstance(encoded, (bytes, bytearray, memoryview, np.ndarray))


def _is_array(image: Any) -> bool:
    return isinstance(image, np.ndarray)
