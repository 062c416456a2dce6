"""Image operators that AutoOrder knows: their functions for both engines, and what decoders can do with them.

    pipe.map(images.Decode(), on="image").map(images.RandomCrop(), on="image").map(images.Resize(224, 224), on="image")

Any function can be mapped; these can moreover be pushed down into the decoder (`pecan_ray.autoorder.rewrites`), which
then decodes only a part of a photograph, or at a half, a quarter or an eighth of its size; and a run of them, flips,
rotations and shears among them, can become one warp. Images are uint8 RGB
[height, width, 3]. They need OpenCV (python engine) or TensorFlow (tensorflow engine).

`Reduce` makes smaller photographs of large ones, which are worth keeping (`autocache`) where those are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pecan_ray import part_decoding
from pecan_ray.downscale import area_average, check_image_array
from pecan_ray.errors import PlanError
from pecan_ray.orientation import (
    FIRST_SWAPPED,
    FLIPPED_COLUMNS,
    FLIPPED_ROWS,
    apply_orientation,
    orientation,
    with_orientation,
)
from pecan_ray.warps import ImageSize, Placed, RandomFlip, RandomRotate, RandomShear, opencv, scaled, shifted

__all__ = [
    "ByName",
    "CenterCrop",
    "Decode",
    "RandomCrop",
    "RandomFlip",
    "RandomRotate",
    "RandomShear",
    "Reduce",
    "Resize",
]

Image: TypeAlias = Any
"""A NumPy array, or a tensor inside of a graph."""
Box: TypeAlias = "tuple[Any, Any, Any, Any]"
"""Top, left, height and width, in pixels."""

# The divisors at which JPEG decoders make a smaller image; the largest first, because it leaves least to do.
REDUCTIONS = (8, 4, 2)
# Draws of a part's area and aspect before the whole image is taken.
ATTEMPTS = 10
LARGEST_JPEG = 65_500
"""Pixels of a side that the usual library writes."""


@dataclass(frozen=True)
class Decode:
    """Encoded photograph to uint8 RGB, as stored unless it is to be `upright`; raises ValueError if it is none.

    Upright images are turned as the EXIF data of a JPEG, PNG or WebP says, or an AVIF itself. What follows such a
    decoder runs behind it: boxes and sizes are those of the turned image.
    """

    upright: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.upright, bool):
            raise PlanError(f"Decode(upright=...) must be True or False, but got {self.upright!r}.")

    def __call__(self, encoded: Image) -> Image:
        """Decode an image."""
        image = decoded(encoded)
        if not self.upright:
            return image
        return (
            _orient_in_graph(image, encoded)
            if _in_graph(encoded)
            else apply_orientation(image, orientation(bytes(encoded)))
        )


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
        top, left, height, width = self.box(image.shape[:2] if _is_array(image) else _tf().shape(image), rng)
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

    def placed(self, size: ImageSize, rng: Any) -> Placed:
        """Return what it does to an image of that size."""
        return _crop_box(self.box(size, rng))

    def _box_in_graph(self, shape: Any, seed: Any) -> Box:
        """Draw all attempts at once and take the first that fits; the whole image if none does."""
        tf = _tf()
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

    def placed(self, size: ImageSize, rng: Any) -> Placed:
        """Return what it does to an image of that size."""
        return _crop_box(self.box(size))

    def __call__(self, image: Image) -> Image:
        """Cut the middle out."""
        top, left, height, width = self.box(image.shape[:2] if _is_array(image) else _tf().shape(image))
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

    def placed(self, size: ImageSize, rng: Any) -> Placed:
        """Return what it does to an image of that size."""
        target = (self.height, self.width)
        return Placed(scaled(size, target), target)


@dataclass(frozen=True)
class Reduce:
    """A photograph whose longer side has no more than `at_most` pixels: of an encoded one a JPEG, of pixels pixels.

    A large JPEG is decoded at 1/2, 1/4 or 1/8 of its size first; of two pixels and more the mean is taken, of fewer
    what lies between them.  JPEGs are written with `quality`.  What is no larger stays as it is, bytes and all.
    Of what else is in a file of a larger one, a JPEG, PNG or WebP, the orientation stays (python engine); lost are its
    profile of colours, an alpha channel, more than 8 bits, and other EXIF data.  Arrays with one axis are encoded
    photographs, as for `Decode`.  Raises ValueError for what is no image.
    """

    at_most: int
    quality: int = 90

    def __post_init__(self) -> None:
        for name, value, most in (("at_most", self.at_most, math.inf), ("quality", self.quality, 100)):
            if type(value) is not int or not 1 <= value <= most:
                kind = "a positive whole number" if most == math.inf else f"a whole number from 1 to {most:.0f}"
                raise PlanError(f"Reduce({name}=...) must be {kind}, but got {value!r}.")

    def __call__(self, image: Image) -> Image:
        """Reduce an image, encoded or not."""
        if _in_graph(image):
            return _reduced_in_graph(image, self.at_most, self.quality)
        if _is_array(image) and (image.ndim != 1 or image.dtype != np.uint8):
            return area_average(check_image_array(image), self.size(image.shape[:2]))
        file = image if isinstance(image, (bytes, bytearray)) else bytes(image)
        copy = reduced_file(file, self.size, self.quality)
        if copy is None:
            raise ValueError(f"OpenCV could not write a photograph as JPEG that is reduced to {self.at_most} pixels")
        return image if copy is file else copy

    def size(self, shape: ImageSize) -> ImageSize:
        """Return height and width of what becomes of an image of that height and width."""
        height, width = shape
        if (longer := max(shape)) <= self.at_most:
            return height, width
        return max(1, round(height * self.at_most / longer)), max(1, round(width * self.at_most / longer))


@dataclass(frozen=True)
class ByName:
    """A transform that is given an image by name and returns it so, as those of Albumentations (python engine).

    ``pipe.map(images.ByName(albumentations.HorizontalFlip()), on="image")`` calls ``transform(image=image)["image"]``.
    """

    transform: Any

    def __call__(self, image: Image) -> Image:
        """Transform an image."""
        return self.transform(image=image)["image"]


def _crop_box(box: Box) -> Placed:
    top, left, height, width = box
    return Placed(shifted(top, left), (height, width), box)


# --- what decoders can do ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DecodeCrop:
    """Decode a part only (JPEG; tensorflow engine, as the three that follow)."""

    crop: CenterCrop

    def __call__(self, encoded: Image) -> Image:
        """Decode the part."""
        return _decoded_part(encoded, self.crop.box(_tf().image.extract_jpeg_shape(encoded)))


@dataclass(frozen=True)
class DecodeRandomCrop:
    """Decode a random part only (JPEG)."""

    crop: RandomCrop

    def __call__(self, encoded: Image, rng: Any) -> Image:
        """Decode the part."""
        return _decoded_part(encoded, self.crop.box(_tf().image.extract_jpeg_shape(encoded), rng))


@dataclass(frozen=True)
class DecodeResize:
    """Decode a JPEG at 1/2, 1/4 or 1/8 of its size where that is still no smaller than the target, then resize."""

    resize: Resize

    def __call__(self, encoded: Image) -> Image:
        """Decode small, and resize."""
        tf, target = _tf(), (self.resize.height, self.resize.width)
        shape = tf.image.extract_jpeg_shape(encoded)
        cases = [(_fills_target(shape, ratio, target), _decoder(encoded, ratio)) for ratio in REDUCTIONS]
        return self.resize(tf.case(cases, default=lambda: decoded(encoded)))


@dataclass(frozen=True)
class DecodeRandomCropResize:
    """Decode a JPEG small enough that the random part is still no smaller than the target; crop, and resize."""

    crop: RandomCrop
    resize: Resize

    def __call__(self, encoded: Image, rng: Any) -> Image:
        """Decode small, crop, and resize."""
        tf, target = _tf(), (self.resize.height, self.resize.width)
        top, left, height, width = self.crop.box(tf.image.extract_jpeg_shape(encoded), rng)

        def cut(ratio: int) -> Any:
            def run() -> Any:
                small = decoded(encoded, ratio)
                y, x, h, w = ((side + ratio // 2) // ratio for side in (top, left, height, width))
                return small[y : y + h, x : x + w]

            return run

        cases = [(_fills_target((height, width), ratio, target), cut(ratio)) for ratio in REDUCTIONS]
        return self.resize(tf.case(cases, default=lambda: _decoded_part(encoded, (top, left, height, width))))


# --- both engines --------------------------------------------------------------------------------------------


def decoded(encoded: Image, ratio: int = 1) -> Image:
    """Return an image as uint8 RGB, JPEG at 1/`ratio` of its size."""
    if _in_graph(encoded):
        return _tf().ensure_shape(
            _tf().image.decode_image(encoded, channels=3, expand_animations=False)
            if ratio == 1
            else _tf().image.decode_jpeg(encoded, channels=3, ratio=ratio),
            [None, None, 3],
        )
    cv2 = opencv()
    # With IMREAD_COLOR these flags are those for reduced images in colour.
    sizes = {1: 0, 2: cv2.IMREAD_REDUCED_GRAYSCALE_2, 4: cv2.IMREAD_REDUCED_GRAYSCALE_4}
    rgb = getattr(cv2, "IMREAD_COLOR_RGB", 0)  # where OpenCV lacks it, RGB is a pass of its own over all pixels
    flag = sizes.get(ratio, cv2.IMREAD_REDUCED_GRAYSCALE_8) | (rgb or cv2.IMREAD_COLOR) | cv2.IMREAD_IGNORE_ORIENTATION
    image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flag) if len(encoded) else None
    if image is None:
        heic = bytes(encoded[4:8]) == b"ftyp"
        suggestion = " (a HEIC or AVIF: convert it, or map a function of pillow-heif)" if heic else ""
        raise ValueError(f"these {len(encoded)} bytes are not an image that OpenCV can decode{suggestion}")
    return image if rgb else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def _orient_in_graph(image: Any, encoded: Any) -> Any:
    """Return an image as its file says that it is to be turned."""
    tf = _tf()
    number = tf.numpy_function(lambda file: np.int32(orientation(file)), [encoded], tf.int32)
    number.set_shape([])
    swapped = tf.cond(number >= FIRST_SWAPPED, lambda: tf.transpose(image, [1, 0, 2]), lambda: image)
    for axis, flipped in enumerate((FLIPPED_ROWS, FLIPPED_COLUMNS)):
        among = tf.reduce_any(tf.equal(number, flipped))
        swapped = tf.cond(among, lambda of=swapped, axis=axis: tf.reverse(of, [axis]), lambda of=swapped: of)
    return tf.ensure_shape(swapped, [None, None, 3])


def cut_out(encoded: Any, box: Box, ratio: int = 1, channels: int = 3) -> Image:
    """Return a part of an image at 1/`ratio` of its size (python engine); of a JPEG only the part is decoded.

    The pixels are those of decoding the whole: where another way would make others, or fail, the whole is decoded.
    Where 4 `channels` are wanted there may be 3 all the same; a fourth one means nothing.
    """
    header = part_decoding.read_header(encoded)
    if isinstance(header, str):
        part_decoding.count_whole(header)
    elif (part := part_decoding.decode_part(encoded, header, box, ratio, channels)) is not None:
        return part
    top, left, height, width = box
    return decoded(encoded, ratio)[top : top + height, left : left + width]


def resize_image(image: Image, height: int, width: int) -> Image:
    """Return an image of that size, bilinear."""
    if _is_array(image):
        return opencv().resize(image, (width, height), interpolation=opencv().INTER_LINEAR)
    tf = _tf()
    small = tf.image.resize(image, [height, width])
    return tf.cast(tf.round(small), image.dtype) if image.dtype.is_integer else tf.cast(small, image.dtype)


def reduced_file(encoded: Any, size: Callable[[ImageSize], ImageSize], quality: int) -> Any:
    """Return a photograph as a JPEG of the size that belongs to its own; itself if that is its own.

    None where no JPEG can be written of it, as with sides of more than 65,500 pixels.
    """
    shape = jpeg_shape(encoded)
    image = decoded(encoded) if shape is None else None
    shape = image.shape[:2] if image is not None else shape
    assert shape is not None
    if (target := size(shape)) == tuple(shape):
        return encoded
    cv2 = opencv()
    small = area_average(decoded(encoded, reduction(shape, target)) if image is None else image, target)
    if max(target) > LARGEST_JPEG:
        return None  # OpenCV would print errors
    try:
        done, file = cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality])
    except cv2.error:
        return None
    return with_orientation(bytes(file), orientation(encoded)) if done else None


def _reduced_in_graph(image: Any, at_most: int, quality: int) -> Any:
    """Return what becomes of a tensor: of a text the file, else the pixels."""
    tf = _tf()
    encoded = image.dtype == tf.string
    whole = decoded(image) if encoded else image
    shape = tf.shape(whole)[:2]
    longer = tf.reduce_max(shape)

    def smaller() -> Any:
        sides = tf.cast(shape, tf.float64) * (at_most / tf.cast(longer, tf.float64))
        small = tf.image.resize(whole, tf.maximum(tf.cast(tf.round(sides), tf.int32), 1), method="area")
        small = tf.cast(tf.round(small), whole.dtype) if whole.dtype.is_integer else tf.cast(small, whole.dtype)
        return tf.io.encode_jpeg(small, quality=quality) if encoded else small

    return tf.cond(longer > at_most, smaller, lambda: image)


def reduction(shape: tuple[int, int] | None, target: tuple[int, int]) -> int:
    """Return by how much an image, or a part of one, may be decoded smaller and still cover the target."""
    if shape is None:
        return 1
    return next((r for r in REDUCTIONS if shape[0] // r >= target[0] and shape[1] // r >= target[1]), 1)


def jpeg_shape(encoded: Any) -> tuple[int, int] | None:
    """Return height and width from the header of a JPEG; None for anything else."""
    if not isinstance(encoded, (bytes, bytearray)) or encoded[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 9 <= len(encoded) and encoded[at] == 0xFF:
        marker = encoded[at + 1]
        # Markers of a frame, but for tables of codes (C4, CC) and one that is reserved (C8).
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(encoded[at + 5 : at + 7], "big"), int.from_bytes(encoded[at + 7 : at + 9], "big")
        # Any number of FF may stand before a marker.
        at += 1 if marker == 0xFF else 2 + int.from_bytes(encoded[at + 2 : at + 4], "big")
    return None


def _fills_target(shape: Any, ratio: int, target: tuple[int, int]) -> Any:
    return _tf().logical_and(shape[0] // ratio >= target[0], shape[1] // ratio >= target[1])


def _decoder(encoded: Any, ratio: int) -> Any:
    return lambda: decoded(encoded, ratio)


def _decoded_part(encoded: Any, box: Box) -> Any:
    return _tf().image.decode_and_crop_jpeg(encoded, _tf().stack(box), channels=3)


def _in_graph(encoded: Any) -> bool:
    return not isinstance(encoded, (bytes, bytearray, memoryview, np.ndarray))


def _is_array(image: Any) -> bool:
    return isinstance(image, np.ndarray)


def _tf() -> Any:
    import tensorflow as tf

    return tf
