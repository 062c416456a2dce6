"""The steps of the ResNet50 and SimCLR pipelines over NumPy and OpenCV.

Images are RGB arrays of shape [height, width, channels]; the two views of SimCLR are [2, height, width,
channels]. Every step takes any number of channels, so that it can run before or after `to_grayscale`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import cv2
import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Element: TypeAlias = dict[str, Any]

MEANS = np.array([123.68, 116.78, 103.94], np.float32)
"""Mean of each colour over ImageNet, out of 255."""
MEANS_OF_FOUR = np.append(MEANS, 0.0).astype(np.float64)
"""OpenCV's constants have four channels."""
NOTHING = np.zeros(4)
SIZE = 224
JITTER = 0.8
"""Brightness, contrast and saturation are multiplied by up to 1 +- this (SimCLR's strength 1)."""
HUE = 0.2
BLUR_TAPS = 23


def decode_rgb(encoded: bytes) -> Array:
    """Return the photograph as uint8 RGB, as stored (EXIF orientation is not applied).

    Raises `ValueError` if it cannot be decoded.
    """
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    decoded = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags) if encoded else None
    if decoded is None:
        raise ValueError(f"These {len(encoded)} bytes are not an image that OpenCV can decode.")
    return cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)


def distorted_box(
    shape: Sequence[int],
    rng: np.random.Generator,
    *,
    area: tuple[float, float],
    aspect: tuple[float, float],
    covered: float = 0.1,
    attempts: int = 100,
) -> tuple[int, int, int, int]:
    """Draw a box (top, left, height, width) in pixels, by the rule of TensorFlow's
    sample_distorted_bounding_box.

    The aspect ratio is uniform in `aspect`, then the height uniform among those whose area is in `area`
    (shares of the image); the box must cover at least `covered` of the image.  Failing `attempts` times gives
    the whole image.
    """
    height, width = shape[:2]
    total = height * width
    for _ in range(attempts):
        ratio = rng.uniform(*aspect)
        low, high = (round(float(np.sqrt(share * total / ratio))) for share in area)
        high = min(high, height, int((width + 0.5 - 1e-7) / ratio))
        low = min(low, high)
        box_height = int(rng.integers(low, high + 1))
        box_width = min(round(box_height * ratio), width)
        share = box_height * box_width / total
        if box_height < 1 or box_width < 1 or not max(area[0], covered) <= share <= area[1]:
            continue
        top = int(rng.integers(height - box_height + 1))
        left = int(rng.integers(width - box_width + 1))
        return top, left, box_height, box_width
    return 0, 0, height, width


# --- ResNet50
# ---------------------------------------------------------------------------------------------------


def decode_and_random_crop(encoded: bytes, rng: np.random.Generator) -> Array:
    """Decode a photograph and cut a random piece of it; float32 in [0, 255], of any size."""
    image = decode_rgb(encoded)
    top, left, height, width = distorted_box(image.shape, rng, area=(0.05, 1.0), aspect=(0.75, 1.33))
    return image[top : top + height, left : left + width].astype(np.float32)


def random_flip(image: Array, rng: np.random.Generator) -> Array:
    """Mirror left and right, half of the time."""
    return _with_channels(cv2.flip(image, 1), image.shape[-1]) if rng.random() < 0.5 else image


def random_rotate(image: Array, rng: np.random.Generator) -> Array:
    """Rotate by an angle uniform in 0 to 5 degrees, drawn for each image."""
    return rotate_by(image, float(rng.uniform(0.0, 5.0)))


def rotate_by(image: Array, degrees: float) -> Array:
    """Rotate counter-clockwise about the centre (bilinear); what comes from outside is 0."""
    height, width = image.shape[:2]
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0)
    return _warp(image, matrix)


def random_shear(image: Array, rng: np.random.Generator) -> Array:
    """Shear horizontally by a level uniform in -0.1 to 0.1, drawn for each image."""
    return shear_by(image, float(rng.uniform(-0.1, 0.1)))


def shear_by(image: Array, level: float) -> Array:
    """Give pixel (x, y) the value at (x + level * y, y) (bilinear); what comes from outside is 0."""
    return _warp(image, np.array([[1.0, level, 0.0], [0.0, 1.0, 0.0]]), inverse=True)


def resize(image: Array) -> Array:
    """Resize to 224 x 224 (bilinear); the dtype stays."""
    return _with_channels(cv2.resize(image, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR), image.shape[-1])


def subtract_mean(image: Array) -> Array:
    """Subtract the mean colour of ImageNet; float32."""
    # NumPy's inner loop would be one pixel long.
    return np.asarray(cv2.subtract(image, MEANS_OF_FOUR, dtype=cv2.CV_32F))


def cast_and_one_hot(element: Element, classes: int) -> Element:
    """Cast the image to float16, encode the label one-hot as float32 [classes], and drop the rest."""
    label = np.zeros(classes, np.float32)
    label[int(element["label"])] = 1.0
    return {"image": to_half(element["image"]), "label": label}


def to_half(image: Array) -> Array:
    """Cast to float16, five times as fast as NumPy does."""
    return _with_channels(cv2.add(image, NOTHING, dtype=cv2.CV_16F), image.shape[-1])


# --- SimCLR
# -----------------------------------------------------------------------------------------------------


def decode(element: Element) -> Element:
    """Decode the photograph to uint8 and keep only image and label."""
    return {"image": decode_rgb(element["image"]), "label": np.int64(element["label"])}


def duplicate_and_cast(image: Array) -> Array:
    """Make two views of an image: float32 in [0, 1], [2, height, width, channels]."""
    return np.stack([image, image]).astype(np.float32) / np.float32(255.0)


def crop_and_resize(views: Array, rng: np.random.Generator) -> Array:
    """Cut another random piece out of each view; resize it to 224 x 224 (bicubic, may leave [0, 1])."""
    pieces = []
    for view in views:
        top, left, height, width = distorted_box(view.shape, rng, area=(0.08, 1.0), aspect=(3 / 4, 4 / 3))
        piece = cv2.resize(view[top : top + height, left : left + width], (SIZE, SIZE), interpolation=cv2.INTER_CUBIC)
        pieces.append(_with_channels(piece, view.shape[-1]))
    return np.stack(pieces)


def random_flip_views(views: Array, rng: np.random.Generator) -> Array:
    """Mirror each view left and right, half of the time."""
    return np.stack([random_flip(view, rng) for view in views])


def color_jitter(views: Array, rng: np.random.Generator) -> Array:
    """Change brightness, contrast, saturation and hue of each view, in random order, 8 times out of 10."""
    return np.stack([_jittered(view, rng) if rng.random() < 0.8 else view for view in views])


def gaussian_blur(views: Array, rng: np.random.Generator) -> Array:
    """Blur each view with 23 taps and sigma uniform in 0.1 to 2, half of the time."""
    blurred = []
    for view in views:
        if rng.random() < 0.5:
            sigma = float(rng.uniform(0.1, 2.0))
            out = cv2.GaussianBlur(view, (BLUR_TAPS, BLUR_TAPS), sigma, borderType=cv2.BORDER_CONSTANT)
            blurred.append(_with_channels(out, view.shape[-1]))
        else:
            blurred.append(view)
    return np.stack(blurred)


def clip(views: Array) -> Array:
    """Clip to [0, 1]."""
    return np.clip(views, np.float32(0.0), np.float32(1.0))


def to_grayscale(views: Array, rng: np.random.Generator) -> Array:
    """Reduce both views to one channel, 2 times out of 10.

    SimCLR draws for each view; here one draw is for both, so that the array becomes smaller: this is the
    deflationary step that the paper's AutoOrder moves to the front.
    """
    if views.shape[-1] == 1 or rng.random() >= 0.2:
        return views
    return luminance(views)


def luminance(image: Array) -> Array:
    """Return the weighted sum of red, green and blue as one channel."""
    weights = np.array([0.2989, 0.587, 0.114], image.dtype)
    gray: Array = (image @ weights)[..., np.newaxis]
    return gray


def tile(views: Array) -> Array:
    """Repeat a single channel three times; leave three as they are."""
    return np.repeat(views, 3, axis=-1) if views.shape[-1] == 1 else views


def reshape(views: Array) -> Array:
    """Put the two views side by side on the channels: [224, 224, 6]."""
    return np.concatenate([views[0], views[1]], axis=-1)


def _jittered(view: Array, rng: np.random.Generator) -> Array:
    for kind in rng.permutation(4):
        if kind == 0:
            view = view * np.float32(rng.uniform(1 - JITTER, 1 + JITTER))
        elif kind == 1:
            view = adjust_contrast(view, float(rng.uniform(1 - JITTER, 1 + JITTER)))
        elif kind == 2:
            view = adjust_saturation(view, float(rng.uniform(1 - JITTER, 1 + JITTER)))
        else:
            view = adjust_hue(view, float(rng.uniform(-HUE, HUE)))
        view = clip(view)
    return view


def adjust_contrast(image: Array, factor: float) -> Array:
    """Move every channel away from its mean by `factor`."""
    mean = image.mean(axis=(0, 1), keepdims=True, dtype=np.float32)
    moved: Array = (image - mean) * np.float32(factor) + mean
    return moved


def adjust_saturation(image: Array, factor: float) -> Array:
    """Multiply the saturation by `factor`; a single channel has none."""
    if image.shape[-1] == 1:
        return image
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    hsv[..., 1] = np.clip(hsv[..., 1] * np.float32(factor), 0.0, 1.0)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)


def adjust_hue(image: Array, turns: float) -> Array:
    """Turn the hue by `turns` of the colour circle; a single channel has none."""
    if image.shape[-1] == 1:
        return image
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    hsv[..., 0] = (hsv[..., 0] + np.float32(360.0 * turns)) % np.float32(360.0)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)


def _warp(image: Array, matrix: Array, *, inverse: bool = False) -> Array:
    height, width = image.shape[:2]
    flags = cv2.INTER_LINEAR | (cv2.WARP_INVERSE_MAP if inverse else 0)
    transform_image = cv2.warpAffine(
        image, matrix, (width, height), flags=flags, borderMode=cv2.BORDER_CONSTANT, borderValue=0
    )
    return _with_channels(transform_image, image.shape[-1])


def _with_channels(image: Array, channels: int) -> Array:
    # OpenCV drops the last axis of images with one channel.
    return image.reshape(*image.shape[:2], channels)
