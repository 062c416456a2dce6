"""The steps of the ResNet50 and SimCLR pipelines as TensorFlow graphs, for ``engine="tensorflow"``.

Names, shapes and distributions are those of `examples.image_ops`; random numbers come from the stateless seed
that each step is given, so they are other numbers than the python engine's.  Photographs must be JPEG.  No
step needs AutoGraph, which could not find its source on a worker.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import tensorflow as tf

Tensor: TypeAlias = Any
Element: TypeAlias = dict[str, Any]

MEANS = (123.68, 116.78, 103.94)
SIZE = 224
JITTER = 0.8
HUE = 0.2
BLUR_TAPS = 23


def _uniform(seed: Tensor, low: float, high: float) -> Tensor:
    return tf.random.stateless_uniform([], seed, low, high)


def _seeds(seed: Tensor, count: int) -> list[Tensor]:
    return list(tf.unstack(tf.random.experimental.stateless_split(seed, count), count))


def _distorted_box(shape: Tensor, seed: Tensor, area: tuple[float, float], aspect: tuple[float, float]) -> Tensor:
    """Draw top, left, height and width in pixels."""
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed,
        min_object_covered=0.1,
        aspect_ratio_range=aspect,
        area_range=area,
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.stack([begin[0], begin[1], size[0], size[1]])


# --- ResNet50
# ---------------------------------------------------------------------------------------------------


def decode_and_random_crop(encoded: Tensor, rng: Tensor) -> Tensor:
    """Decode only a random piece of a JPEG; float32 in [0, 255], of any size."""
    window = _distorted_box(tf.image.extract_jpeg_shape(encoded), rng, area=(0.05, 1.0), aspect=(0.75, 1.33))
    return tf.cast(tf.image.decode_and_crop_jpeg(encoded, window, channels=3), tf.float32)


def random_flip(image: Tensor, rng: Tensor) -> Tensor:
    """Mirror left and right, half of the time."""
    return tf.image.stateless_random_flip_left_right(image, rng)


def random_rotate(image: Tensor, rng: Tensor) -> Tensor:
    """Rotate by an angle uniform in 0 to 5 degrees, drawn for each image."""
    return rotate_by(image, _uniform(rng, 0.0, 5.0))


def rotate_by(image: Tensor, degrees: Tensor) -> Tensor:
    """Rotate counter-clockwise about the centre (bilinear); what comes from outside is 0."""
    angle = tf.cast(degrees, tf.float32) * (math.pi / 180.0)
    cos, sin = tf.cos(angle), tf.sin(angle)
    shape = tf.cast(tf.shape(image), tf.float32)
    y, x = (shape[0] - 1.0) / 2.0, (shape[1] - 1.0) / 2.0
    return _transform(image, [cos, -sin, x - (cos * x - sin * y), sin, cos, y - (sin * x + cos * y), 0.0, 0.0])


def random_shear(image: Tensor, rng: Tensor) -> Tensor:
    """Shear horizontally by a level uniform in -0.1 to 0.1, drawn for each image."""
    return shear_by(image, _uniform(rng, -0.1, 0.1))


def shear_by(image: Tensor, level: Tensor) -> Tensor:
    """Give pixel (x, y) the value at (x + level * y, y) (bilinear); what comes from outside is 0."""
    return _transform(image, [1.0, tf.cast(level, tf.float32), 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])


def resize(image: Tensor) -> Tensor:
    """Resize to 224 x 224 (bilinear); the dtype stays."""
    return tf.cast(tf.image.resize(image, [SIZE, SIZE]), image.dtype)


def subtract_mean(image: Tensor) -> Tensor:
    """Subtract the mean colour of ImageNet."""
    return image - tf.constant(MEANS, tf.float32)


def cast_and_one_hot(element: Element, classes: int) -> Element:
    """Cast the image to float16, encode the label one-hot as float32 [classes], and drop the rest."""
    return {"image": tf.cast(element["image"], tf.float16), "label": tf.one_hot(element["label"], classes)}


# --- SimCLR
# -----------------------------------------------------------------------------------------------------


def decode(element: Element) -> Element:
    """Decode the JPEG to uint8 and keep only image and label."""
    return {
        "image": tf.image.decode_jpeg(element["image"], channels=3),
        "label": tf.cast(element["label"], tf.int64),
    }


def duplicate_and_cast(image: Tensor) -> Tensor:
    """Make two views of an image: float32 in [0, 1], [2, height, width, channels]."""
    return tf.cast(tf.stack([image, image]), tf.float32) / 255.0


def crop_and_resize(views: Tensor, rng: Tensor) -> Tensor:
    """Cut another random piece out of each view; resize it to 224 x 224 (bicubic, may leave [0, 1])."""
    pieces = []
    for number, seed in enumerate(_seeds(rng, 2)):
        view = views[number]
        # The box depends on height and width only; the op that draws it wants channels known to be positive.
        top, left, height, width = tf.unstack(
            _distorted_box(tf.shape(view), seed, area=(0.08, 1.0), aspect=(3 / 4, 4 / 3))
        )
        piece = view[top : top + height, left : left + width]
        pieces.append(tf.image.resize(piece, [SIZE, SIZE], method="bicubic"))
    return tf.stack(pieces)


def random_flip_views(views: Tensor, rng: Tensor) -> Tensor:
    """Mirror each view left and right, half of the time."""
    return tf.stack([random_flip(views[number], seed) for number, seed in enumerate(_seeds(rng, 2))])


def color_jitter(views: Tensor, rng: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue of each view, in random order, 8 times out of 10."""
    changed = []
    for number, seed in enumerate(_seeds(rng, 2)):
        whether, how = _seeds(seed, 2)
        view = views[number]
        changed.append(
            tf.cond(_uniform(whether, 0.0, 1.0) < 0.8, lambda v=view, s=how: _jittered(v, s), lambda v=view: v)
        )
    return tf.stack(changed)


def gaussian_blur(views: Tensor, rng: Tensor) -> Tensor:
    """Blur each view with 23 taps and sigma uniform in 0.1 to 2, half of the time."""
    blurred = []
    for number, seed in enumerate(_seeds(rng, 2)):
        whether, how = _seeds(seed, 2)
        view = views[number]
        blurred.append(
            tf.cond(
                _uniform(whether, 0.0, 1.0) < 0.5,
                lambda v=view, s=how: blur_by(v, _uniform(s, 0.1, 2.0)),
                lambda v=view: v,
            )
        )
    return tf.stack(blurred)


def clip(views: Tensor) -> Tensor:
    """Clip to [0, 1]."""
    return tf.clip_by_value(views, 0.0, 1.0)


def to_grayscale(views: Tensor, rng: Tensor) -> Tensor:
    """Reduce both views to one channel, 2 times out of 10; see `examples.image_ops.to_grayscale`."""
    return tf.cond(_uniform(rng, 0.0, 1.0) < 0.2, lambda: luminance(views), lambda: views)


def luminance(image: Tensor) -> Tensor:
    """Return the weighted sum of red, green and blue as one channel; a single channel stays as it is."""
    rgb = _as_rgb(image)
    return tf.reduce_sum(rgb * tf.constant([0.2989, 0.587, 0.114], rgb.dtype), axis=-1, keepdims=True)


def tile(views: Tensor) -> Tensor:
    """Repeat a single channel three times; leave three as they are."""
    return _as_rgb(views)


def reshape(views: Tensor) -> Tensor:
    """Put the two views side by side on the channels: [224, 224, 6]."""
    return tf.reshape(tf.concat([views[0], views[1]], axis=-1), [SIZE, SIZE, 6])


def blur_by(image: Tensor, sigma: Tensor) -> Tensor:
    """Blur an image of any number of channels by a Gaussian of 23 taps; outside of the image is 0."""
    offsets = tf.range(-(BLUR_TAPS // 2), BLUR_TAPS // 2 + 1, dtype=tf.float32)
    taps = tf.exp(-(offsets**2) / (2.0 * sigma**2))
    taps /= tf.reduce_sum(taps)
    planes = tf.transpose(image, [2, 0, 1])[..., tf.newaxis]
    planes = tf.nn.conv2d(planes, tf.reshape(taps, [BLUR_TAPS, 1, 1, 1]), 1, "SAME")
    planes = tf.nn.conv2d(planes, tf.reshape(taps, [1, BLUR_TAPS, 1, 1]), 1, "SAME")
    return tf.transpose(planes[..., 0], [1, 2, 0])


def _jittered(view: Tensor, seed: Tensor) -> Tensor:
    order, *draws = _seeds(seed, 5)
    kinds = tf.argsort(tf.random.stateless_uniform([4], order))
    factors = [_uniform(draw, 1 - JITTER, 1 + JITTER) for draw in draws[:3]]
    turns = _uniform(draws[3], -HUE, HUE)
    image = _as_rgb(view)
    for place in range(4):
        image = clip(
            tf.switch_case(
                kinds[place],
                [
                    lambda i=image: i * factors[0],
                    lambda i=image: tf.image.adjust_contrast(i, factors[1]),
                    lambda i=image: tf.image.adjust_saturation(i, factors[2]),
                    lambda i=image: tf.image.adjust_hue(i, turns),
                ],
            )
        )
    return image[..., : tf.shape(view)[-1]]


def _as_rgb(image: Tensor) -> Tensor:
    return tf.broadcast_to(image, tf.concat([tf.shape(image)[:-1], [3]], axis=0))


def _transform(image: Tensor, output_to_input: list[Any]) -> Tensor:
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=image[tf.newaxis],
        transforms=tf.stack(output_to_input)[tf.newaxis],
        output_shape=tf.shape(image)[:2],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )[0]
    moved.set_shape(image.shape)
    return moved
