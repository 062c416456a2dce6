"""The steps of the RetinaNet pipeline as TensorFlow graphs, for ``engine="tensorflow"``.

Names, shapes and distributions are those of `examples.boxes_ops`; whether an image is mirrored is drawn from the
stateless seed.  No step needs AutoGraph, which could not find its source on a worker.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from examples.boxes_ops import DEVIATION, LEVELS, MATCH, MAX_BOXES, MEAN, RATIOS, SCALES, SIZE, Array

Tensor: TypeAlias = Any
Element: TypeAlias = dict[str, Any]


def read_file(element: Element) -> Element:
    """Read the encoded image that the column `path` names."""
    return {**element, "image": tf.io.read_file(element["path"])}


def decode(element: Element) -> Element:
    """Decode the photograph to uint8; keep image, boxes and classes."""
    image = tf.io.decode_image(element["image"], channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    return {
        "image": image,
        "boxes": tf.reshape(tf.cast(element["boxes"], tf.float32), [-1, 4]),
        "classes": tf.reshape(tf.cast(element["classes"], tf.int32), [-1]),
    }


def normalize(image: Tensor) -> Tensor:
    """Cast to float32 and subtract ImageNet's mean and divide by its deviation."""
    return (tf.cast(image, tf.float32) / 255.0 - MEAN) / DEVIATION


def random_flip_with_boxes(element: Element, rng: Tensor) -> Element:
    """Mirror image and boxes left and right, half of the time."""
    top, left, bottom, right = tf.unstack(element["boxes"], axis=1)
    mirrored = tf.stack([top, 1.0 - right, bottom, 1.0 - left], axis=1)
    flipped = tf.random.stateless_uniform([], rng) < 0.5
    image, boxes = tf.cond(
        flipped,
        lambda: (tf.reverse(element["image"], [1]), mirrored),
        lambda: (element["image"], element["boxes"]),
    )
    return {**element, "image": image, "boxes": boxes}


def resize_and_crop(element: Element) -> Element:
    """Scale the image to fit 640 x 640 and pad it with 0 at the bottom and on the right (bilinear)."""
    image = element["image"]
    sides = tf.cast(tf.shape(image)[:2], tf.float32)
    new = tf.minimum(SIZE, tf.cast(tf.round(sides * (SIZE / tf.reduce_max(sides))), tf.int32))
    resized = tf.image.resize(image, new)
    if not image.dtype.is_floating:
        resized = tf.round(resized)
    canvas = tf.image.pad_to_bounding_box(tf.cast(resized, image.dtype), 0, 0, SIZE, SIZE)
    shares = tf.cast(tf.tile(new, [2]), tf.float32) / SIZE
    return {**element, "image": canvas, "boxes": element["boxes"] * shares}


def label_extract(element: Element, anchors: Array) -> Element:
    """Turn the boxes into what each anchor is to predict, level by level; see `examples.boxes_ops.label_extract`."""
    boxes = tf.clip_by_value(element["boxes"], 0.0, 1.0) * SIZE
    visible = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    boxes, classes = tf.boolean_mask(boxes, visible), tf.boolean_mask(element["classes"], visible)
    owner = match_anchors(anchors, boxes)
    places = tf.where(owner >= 0)
    owners = tf.gather(owner, places[:, 0])
    encoded = encode_boxes(tf.gather(boxes, owners), tf.gather(tf.constant(anchors), places[:, 0]))
    class_targets = tf.scatter_nd(places, tf.gather(classes, owners), [len(anchors)])
    box_targets = tf.scatter_nd(places, encoded, [len(anchors), 4])
    out = {
        **element,
        "boxes": tf.ensure_shape(_padded(boxes, [[0, 0]]), [MAX_BOXES, 4]),
        "classes": tf.ensure_shape(_padded(classes, []), [MAX_BOXES]),
        "num_positives": tf.cast(tf.shape(places)[0], tf.float32),
    }
    begin = 0
    per_cell = SCALES * len(RATIOS)
    for level in LEVELS:
        side = SIZE >> level
        end = begin + side * side * per_cell
        out[f"class_targets_{level}"] = tf.reshape(class_targets[begin:end], [side, side, per_cell])
        out[f"box_targets_{level}"] = tf.reshape(box_targets[begin:end], [side, side, per_cell * 4])
        begin = end
    return out


def match_anchors(anchors: Array, boxes: Tensor) -> Tensor:
    """Return for each anchor the box that it overlaps most, or -1 below an overlap of 0.5.

    The best anchor of each box belongs to it even below that.
    """
    top, left, bottom, right = (tf.constant(side) for side in anchors.T)
    area = (bottom - top) * (right - left)

    def overlap(box: Tensor) -> Tensor:
        height = tf.maximum(tf.minimum(bottom, box[2]) - tf.maximum(top, box[0]), 0.0)
        width = tf.maximum(tf.minimum(right, box[3]) - tf.maximum(left, box[1]), 0.0)
        shared = height * width
        return shared / (area + (box[2] - box[0]) * (box[3] - box[1]) - shared)

    shares = tf.reshape(tf.map_fn(overlap, boxes), [-1, len(anchors)])  # of no box: no rows
    # A row of what is just not enough stands before those of the boxes: an anchor that belongs to none has that one.
    enough = tf.fill([1, len(anchors)], np.nextafter(np.float32(MATCH), np.float32(0)))
    owner = tf.argmax(tf.concat([enough, shares], 0), axis=0, output_type=tf.int32) - 1
    numbers = tf.range(tf.shape(boxes)[0])
    best = tf.argmax(shares, axis=1, output_type=tf.int32)
    forced = tf.tensor_scatter_nd_max(tf.fill([len(anchors)], -1), best[:, tf.newaxis], numbers)
    return tf.where(forced >= 0, forced, owner)


def encode_boxes(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Return the shift, in anchor sizes, and logarithmic growth from anchors to boxes: (y, x, h, w)."""
    sizes, anchor_sizes = boxes[:, 2:] - boxes[:, :2], anchors[:, 2:] - anchors[:, :2]
    shift = ((boxes[:, :2] + boxes[:, 2:]) - (anchors[:, :2] + anchors[:, 2:])) / 2.0 / anchor_sizes
    return tf.concat([shift, tf.math.log(sizes / anchor_sizes)], axis=1)


def cast(element: Element, dtype: str) -> Element:
    """Cast the image to `dtype`."""
    return {**element, "image": tf.cast(element["image"], dtype)}


def _padded(rows: Tensor, behind: list[list[int]]) -> Tensor:
    """Return 100 rows, of -1 where there are no more."""
    rows = rows[:MAX_BOXES]
    return tf.pad(rows, [[0, MAX_BOXES - tf.shape(rows)[0]], *behind], constant_values=-1)
