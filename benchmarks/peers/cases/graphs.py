"""The cases in TensorFlow's own operators, for tf.data, tf.data service and our tensorflow engine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from examples import image_ops_tf

Tensor: TypeAlias = Any
MEANS = (123.68, 116.78, 103.94)
SIZE = 224


def resize(image: Tensor) -> Tensor:
    """Resize to 224 x 224; float32."""
    return tf.image.resize(image, [SIZE, SIZE])


def flip(image: Tensor, rng: Tensor) -> Tensor:
    """Mirror left and right, half of the time."""
    return tf.image.stateless_random_flip_left_right(image, rng)


def normalize(image: Tensor) -> Tensor:
    """Subtract the channel means; float32."""
    return tf.cast(image, tf.float32) - tf.constant(MEANS, tf.float32)


def select(element: Any) -> Any:
    """Keep image and label."""
    return {"image": element["image"], "label": tf.cast(element["label"], tf.int64)}


def _box(shape: Tensor) -> Tensor:
    """Draw a part by the rule of `pecan_ray.images.RandomCrop`, which peers do not import."""
    sides = tf.cast(shape[:2], tf.float32)
    area = tf.reduce_prod(sides) * tf.random.uniform([10], 0.08, 1.0)
    aspect = tf.exp(tf.random.uniform([10], tf.math.log(3 / 4), tf.math.log(4 / 3)))
    parts = tf.round(tf.sqrt(tf.stack([area / aspect, area * aspect], axis=1)))
    fit = tf.reduce_all((parts > 0) & (parts <= sides), axis=1)
    size = tf.where(tf.reduce_any(fit), parts[tf.argmax(tf.cast(fit, tf.int32))], sides)
    begin = tf.minimum(tf.floor(tf.random.uniform([2]) * (sides - size + 1)), sides - size)
    return tf.cast(tf.concat([begin, size], axis=0), tf.int32)


def _plain_crop(encoded: Tensor) -> Tensor:
    image = tf.image.decode_jpeg(encoded, channels=3)
    top, left, height, width = tf.unstack(_box(tf.shape(image)))
    return image[top : top + height, left : left + width]


def _fused_crop(encoded: Tensor) -> Tensor:
    return tf.image.decode_and_crop_jpeg(encoded, _box(tf.image.extract_jpeg_shape(encoded)), channels=3)


def photographs(listed: list[tuple[str, int]], variant: str) -> Any:
    """Decode, crop, resize, flip and normalize; `variant`: "plain", or "fused" for decoding only the crop."""
    paths, labels = zip(*listed, strict=True)
    files = tf.data.Dataset.from_tensor_slices((list(paths), list(labels))).repeat()
    crop = _fused_crop if variant == "fused" else _plain_crop
    return files.map(functools.partial(_photograph, crop), num_parallel_calls=tf.data.AUTOTUNE)


def _photograph(crop: Callable[[Tensor], Tensor], path: Tensor, label: Tensor) -> Any:
    image = tf.image.random_flip_left_right(resize(crop(tf.io.read_file(path))))
    return {"image": normalize(image), "label": tf.cast(label, tf.int64)}


def shard_of_photographs(listed: list[tuple[str, int]], batch: int, num_shards: int, index: int) -> Any:
    """Return one epoch of a shard of the photographs, as a user's own function makes it."""
    paths, labels = zip(*listed, strict=True)
    files = tf.data.Dataset.from_tensor_slices((list(paths), list(labels))).shard(num_shards, index)
    images = files.map(functools.partial(_photograph, _fused_crop), num_parallel_calls=tf.data.AUTOTUNE)
    return _any_order(images.batch(batch))


def shard_of_tokens(paths: list[str], tokenize: Callable[[Tensor], Any], batch: int) -> Any:
    """Return one epoch of the files of a shard, as a user's own function makes it."""
    lines = tf.data.TextLineDataset(paths)
    return _any_order(lines.map(tokenize, num_parallel_calls=tf.data.AUTOTUNE).batch(batch))


def _any_order(data: Any) -> Any:
    options = tf.data.Options()
    options.deterministic = False
    return data.prefetch(tf.data.AUTOTUNE).with_options(options)


def decode_and_crop(encoded: Tensor, rng: Tensor) -> Tensor:
    """Decode a random part of a photograph; float32."""
    from pecan_ray import images  # here, so that peers do not carry it

    box = images.RandomCrop().box(tf.image.extract_jpeg_shape(encoded), rng)
    return tf.cast(tf.image.decode_and_crop_jpeg(encoded, tf.stack(box), channels=3), tf.float32)


def to_float16(element: Any) -> Any:
    """Keep the image, in float16."""
    return {"image": tf.cast(element["image"], tf.float16)}


def figure_3(listed: list[tuple[str, int]], variant: str) -> Any:
    """Crop, flip, rotate, shear, resize: in the user's order; `variant` "best": resize behind crop."""
    paths, _ = zip(*listed, strict=True)
    files = tf.data.Dataset.from_tensor_slices(list(paths)).repeat()

    def work(path: Tensor) -> Any:
        seeds = tf.unstack(tf.random.uniform([3, 2], maxval=1 << 30, dtype=tf.int32))
        image = tf.cast(_fused_crop(tf.io.read_file(path)), tf.float32)
        image = image_ops_tf.resize(image) if variant == "best" else image
        image = image_ops_tf.random_rotate(image_ops_tf.random_flip(image, seeds[0]), seeds[1])
        image = image_ops_tf.random_shear(image, seeds[2])
        return to_float16({"image": image if variant == "best" else image_ops_tf.resize(image)})

    return files.map(work, num_parallel_calls=tf.data.AUTOTUNE)


def two_views(listed: list[tuple[str, int]]) -> Any:
    """SimCLR's two views, in its authors' order."""
    paths, labels = zip(*listed, strict=True)
    files = tf.data.Dataset.from_tensor_slices((list(paths), list(labels))).repeat()
    ops = image_ops_tf

    def work(path: Tensor, label: Tensor) -> Any:
        seeds = tf.unstack(tf.random.uniform([5, 2], maxval=1 << 30, dtype=tf.int32))
        views = ops.duplicate_and_cast(tf.image.decode_jpeg(tf.io.read_file(path), channels=3))
        views = ops.random_flip_views(ops.crop_and_resize(views, seeds[0]), seeds[1])
        views = ops.clip(ops.gaussian_blur(ops.color_jitter(views, seeds[2]), seeds[3]))
        views = ops.reshape(ops.tile(ops.to_grayscale(views, seeds[4])))
        return {"image": views, "label": tf.cast(label, tf.int64)}

    return files.map(work, num_parallel_calls=tf.data.AUTOTUNE)


def tokens_of(line: Tensor, length: int, vocabulary: int) -> Any:
    """Replace words by their hashes, padded with 0 or cut."""
    words = tf.strings.split(tf.strings.lower(line))[:length]
    numbers = tf.cast(tf.strings.to_hash_bucket_fast(words, vocabulary - 1) + 1, tf.int32)
    return {"tokens": tf.ensure_shape(tf.pad(numbers, [[0, length - tf.size(numbers)]]), [length])}


def tokens(path: str, length: int, vocabulary: int) -> Any:
    """Lines of text to numbers of words, with tf.data."""
    lines = tf.data.TextLineDataset(path).repeat()
    return lines.map(lambda line: tokens_of(line, length, vocabulary), num_parallel_calls=tf.data.AUTOTUNE)


def tokenize(length: int, vocabulary: int) -> Any:
    """Return the operator of our engine that does the same."""
    return lambda element: tokens_of(element["text"], length, vocabulary)


def constant(example: Any) -> Any:
    """One large array over and over."""
    return tf.data.Dataset.from_tensors({"image": tf.constant(example)}).repeat()
