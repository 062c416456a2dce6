"""Operators as users write them, on elements with a photograph, a mask, boxes, a label, a sound and a sentence.

Each takes an element and a random generator, and returns an element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import cv2
import numpy as np

from pecan_ray.plan.splits import Element

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
SIDE = 96
GuardedKind: TypeAlias = Literal["map", "filter", "flat_map"]


@dataclass(frozen=True)
class GuardStep:
    """A function of a column's value, or of an element, that may draw random numbers."""

    name: str
    fn: Callable[..., Any]
    column: str | None = None
    random: bool = False
    kind: GuardedKind = "map"

    def __call__(self, element: Element, rng: np.random.Generator) -> Element:
        """Return what becomes of an element."""
        value = element if self.column is None else element[self.column]
        made = self.fn(value, rng) if self.random else self.fn(value)
        return made if self.column is None else {**element, self.column: made}


def image(fn: Callable[[Any], Any]) -> GuardStep:
    """Return a step on the column image."""
    return GuardStep(fn.__name__, fn, "image")


def random_image(fn: Callable[..., Any]) -> GuardStep:
    """Return a step on the column image that draws random numbers."""
    return GuardStep(fn.__name__, fn, "image", random=True)


def whole(fn: Callable[[Element], Element]) -> GuardStep:
    """Return a step on the element."""
    return GuardStep(fn.__name__, fn)


def random_whole(fn: Callable[..., Element]) -> GuardStep:
    """Return a step on the element that draws random numbers."""
    return GuardStep(fn.__name__, fn, random=True)


def like(dtype: Any, values: Any) -> Any:
    """Return values rounded and clipped into a dtype of integers, or as that float."""
    if np.dtype(dtype).kind in "ui":
        bounds = np.iinfo(dtype)
        return np.clip(np.rint(values), bounds.min, bounds.max).astype(dtype)
    return values.astype(dtype)


# --- geometry


def resize_to(side: int, interpolation: int = cv2.INTER_LINEAR) -> GuardStep:
    """Return the step that makes squares."""

    def resize(x: Any) -> Any:
        source = x.astype(np.float32) if x.dtype == np.float16 else x
        return cv2.resize(source, (side, side), None, 0, 0, interpolation).astype(x.dtype)

    return image(resize)


def transform_image(x: Any, matrix: Any, border: int = cv2.BORDER_CONSTANT) -> Any:
    """Return an image moved by an affine map."""
    height, width = x.shape[:2]
    source = x.astype(np.float32) if x.dtype == np.float16 else x
    return cv2.warpAffine(source, matrix, (width, height), borderMode=border).astype(x.dtype)


@image
def flip(x: Any) -> Any:
    """Mirror left and right."""
    return x[:, ::-1].copy()


@random_image
def random_flip(x: Any, rng: Any) -> Any:
    """Mirror half of the time."""
    return x[:, ::-1].copy() if rng.random() < 0.5 else x


@random_image
def random_flip_vertical(x: Any, rng: Any) -> Any:
    """Mirror top and bottom half of the time."""
    return x[::-1].copy() if rng.random() < 0.5 else x


@random_image
def random_rotate(x: Any, rng: Any) -> Any:
    """Rotate by up to 15 degrees."""
    height, width = x.shape[:2]
    return transform_image(x, cv2.getRotationMatrix2D((width / 2, height / 2), rng.uniform(-15, 15), 1.0))


@random_image
def random_rotate_reflecting(x: Any, rng: Any) -> Any:
    """Rotate by up to 10 degrees; what comes from outside is mirrored."""
    height, width = x.shape[:2]
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), rng.uniform(-10, 10), 1.0)
    return transform_image(x, matrix, cv2.BORDER_REFLECT)


@random_image
def random_shear(x: Any, rng: Any) -> Any:
    """Shear by up to a tenth."""
    return transform_image(x, np.array([[1.0, rng.uniform(-0.1, 0.1), 0.0], [0.0, 1.0, 0.0]]))


@random_image
def random_shift(x: Any, rng: Any) -> Any:
    """Move by up to a twentieth of a side."""
    height, width = x.shape[:2]
    dx, dy = rng.uniform(-0.05, 0.05, 2) * (width, height)
    return transform_image(x, np.array([[1.0, 0.0, dx], [0.0, 1.0, dy]]), cv2.BORDER_REFLECT)


@random_image
def random_perspective(x: Any, rng: Any) -> Any:
    """Look at it from another place."""
    height, width = x.shape[:2]
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    moved = (corners + rng.uniform(-0.08, 0.08, (4, 2)) * (width, height)).astype(np.float32)
    return cv2.warpPerspective(x, cv2.getPerspectiveTransform(corners, moved), (width, height))


@image
def crop_centre(x: Any) -> Any:
    """Keep the middle seven eighths."""
    height, width = x.shape[:2]
    return x[height // 16 : height - height // 16, width // 16 : width - width // 16].copy()


@random_image
def random_crop(x: Any, rng: Any) -> Any:
    """Cut out a piece of 30 to 100 % of the area."""
    height, width = x.shape[:2]
    share = np.sqrt(rng.uniform(0.3, 1.0))
    tall, wide = int(height * share), int(width * share)
    top, left = int(rng.uniform(0, height - tall + 1)), int(rng.uniform(0, width - wide + 1))
    return x[top : top + tall, left : left + wide].copy()


@image
def pad_to_square(x: Any) -> Any:
    """Put black bars at the short sides."""
    height, width = x.shape[:2]
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    return cv2.copyMakeBorder(x, top, side - height - top, left, side - width - left, cv2.BORDER_CONSTANT)


@image
def to_channels_first(x: Any) -> Any:
    """From [height, width, channels] to [channels, height, width]."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 0))


# --- colour and sharpness


@image
def blur(x: Any) -> Any:
    """Blur."""
    return cv2.GaussianBlur(x, (5, 5), 1.0)


@image
def blur_much(x: Any) -> Any:
    """Blur by several pixels."""
    return cv2.GaussianBlur(x, (15, 15), 3.0)


@image
def median(x: Any) -> Any:
    """Take the median of neighbours."""
    return cv2.medianBlur(x, 3)


@image
def sharpen(x: Any) -> Any:
    """Make edges stronger."""
    return cv2.addWeighted(x, 1.5, cv2.GaussianBlur(x, (5, 5), 1.0), -0.5, 0)


@random_image
def brightness(x: Any, rng: Any) -> Any:
    """Multiply by 0.6 to 1.4."""
    return like(x.dtype, x.astype(np.float32) * rng.uniform(0.6, 1.4))


@random_image
def contrast(x: Any, rng: Any) -> Any:
    """Stretch about the mean by 0.6 to 1.4."""
    mean = x.mean()
    return like(x.dtype, (x.astype(np.float32) - mean) * rng.uniform(0.6, 1.4) + mean)


@random_image
def saturation(x: Any, rng: Any) -> Any:
    """Stretch about the gray picture by 0.5 to 1.5."""
    gray = cv2.cvtColor(x, cv2.COLOR_RGB2GRAY)[..., np.newaxis].astype(np.float32)
    return like(x.dtype, (x.astype(np.float32) - gray) * rng.uniform(0.5, 1.5) + gray)


@random_image
def hue(x: Any, rng: Any) -> Any:
    """Turn colours by up to 15 degrees."""
    hsv = cv2.cvtColor(x, cv2.COLOR_RGB2HSV)
    hsv[..., 0] = (hsv[..., 0].astype(np.int32) + int(rng.integers(-8, 9))) % 180
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)


@random_image
def sometimes_gray(x: Any, rng: Any) -> Any:
    """One image in five without its colours."""
    return cv2.cvtColor(cv2.cvtColor(x, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB) if rng.random() < 0.2 else x


@random_image
def gamma(x: Any, rng: Any) -> Any:
    """Bend the brightness."""
    return like(x.dtype, 255.0 * (x.astype(np.float32) / 255.0) ** rng.uniform(0.7, 1.4))


@random_image
def noise(x: Any, rng: Any) -> Any:
    """Add some noise."""
    return like(x.dtype, x.astype(np.float32) + rng.normal(0, 5, x.shape))


@image
def solarize(x: Any) -> Any:
    """Turn the brightest values round."""
    return np.where(x < 192, x, 255 - x)


@image
def posterize(x: Any) -> Any:
    """Keep four bits."""
    return x & np.uint8(0xF0)


@image
def autocontrast(x: Any) -> Any:
    """Stretch each channel to its full range."""
    low, high = x.min((0, 1)).astype(np.float32), x.max((0, 1)).astype(np.float32)
    return like(np.uint8, (x - low) * (255.0 / np.maximum(high - low, 1)))


@random_image
def erase(x: Any, rng: Any) -> Any:
    """Put a gray box on a fiftieth of the area."""
    height, width = x.shape[:2]
    tall, wide = height // 7, width // 7
    top, left = int(rng.uniform(0, height - tall)), int(rng.uniform(0, width - wide))
    out = x.copy()
    out[top : top + tall, left : left + wide] = 128
    return out


@image
def jpeg_again(x: Any) -> Any:
    """Encode and decode."""
    return cv2.imdecode(cv2.imencode(".jpg", x, [cv2.IMWRITE_JPEG_QUALITY, 80])[1], cv2.IMREAD_COLOR)


@image
def to_bgr(x: Any) -> Any:
    """Turn the order of channels round."""
    return x[..., ::-1].copy()


# --- types and scales


@image
def to_float(x: Any) -> Any:
    """Cast to float32."""
    return x.astype(np.float32)


@image
def to_half(x: Any) -> Any:
    """Cast to float16."""
    return x.astype(np.float16)


@image
def to_bytes(x: Any) -> Any:
    """Cast to uint8."""
    return x.astype(np.uint8)


@image
def unit(x: Any) -> Any:
    """Divide by 255."""
    return x.astype(np.float32) / np.float32(255)


@image
def unit_if_bytes(x: Any) -> Any:
    """Divide by 255 where it is still uint8."""
    return (x / np.float32(255)).astype(np.float16) if x.dtype == np.uint8 else x


@image
def unit_if_large(x: Any) -> Any:
    """Divide by 255 where it seems not to be done yet."""
    return x.astype(np.float32) / np.float32(255) if x.max() > 1 else x.astype(np.float32)


@image
def normalise(x: Any) -> Any:
    """Subtract the mean colour and divide by its deviation, out of 255."""
    return ((x.astype(np.float32) / np.float32(255)) - MEAN) / DEVIATION


@image
def normalise_unit(x: Any) -> Any:
    """Subtract the mean colour and divide by its deviation, out of 1."""
    return (x.astype(np.float32) - MEAN) / DEVIATION


@image
def standardise(x: Any) -> Any:
    """Give it the mean 0 and the deviation 1."""
    floats = x.astype(np.float32)
    return (floats - floats.mean()) / max(float(floats.std()), 1e-6)


@image
def brighter(x: Any) -> Any:
    """Add 60, as the type of the values does it."""
    return x + x.dtype.type(60)


@random_image
def jitter_unit(x: Any, rng: Any) -> Any:
    """Stretch values of about 0 to 1 by up to 1.8."""
    return (x.astype(np.float32) * rng.uniform(0.4, 1.8)).astype(x.dtype)


@image
def clip_unit(x: Any) -> Any:
    """Clip to [0, 1]."""
    return np.clip(x, 0, 1)


@image
def gamma_unit(x: Any) -> Any:
    """Bend values of 0 to 1."""
    return np.power(np.maximum(x.astype(np.float32), 0), 0.6)


@image
def threshold(x: Any) -> Any:
    """Everything above 0.5 becomes 1."""
    return (x > 0.5).astype(np.float32)


@image
def log(x: Any) -> Any:
    """Take the logarithm."""
    return np.log1p(x.astype(np.float32))


@image
def flip_if_bytes(x: Any) -> Any:
    """Mirror images; anything else is passed on."""
    return x[:, ::-1].copy() if x.dtype == np.uint8 else x
