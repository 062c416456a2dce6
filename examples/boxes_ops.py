"""The steps of the RetinaNet pipeline over NumPy and OpenCV.

Images are RGB, [height, width, 3].  Boxes are float32 rows (top, left, bottom, right), as shares of the
height and width of the element's present image, so that flipping and resizing may change places.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import cv2
import numpy as np

from examples.image_ops import decode_rgb

Array: TypeAlias = np.ndarray[Any, Any]
Element: TypeAlias = dict[str, Any]

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
SIZE = 640
LEVELS = (3, 4, 5, 6, 7)
SCALES = 3
RATIOS = (1.0, 2.0, 0.5)
ANCHOR_SIZE = 4.0
MATCH = 0.5
"""Overlap (intersection over union) from which an anchor belongs to a box."""
MAX_BOXES = 100


def read_file(element: Element) -> Element:
    """Read the encoded image that the column `path` names."""
    with open(element["path"], "rb") as file:
        return {**element, "image": file.read()}


def decode(element: Element) -> Element:
    """Decode the photograph to uint8; keep image, boxes and classes."""
    return {
        "image": decode_rgb(element["image"]),
        "boxes": np.asarray(element["boxes"], np.float32).reshape(-1, 4),
        "classes": np.asarray(element["classes"], np.int32),
    }


def normalize(image: Array) -> Array:
    """Cast to float32 and subtract ImageNet's mean and divide by its deviation."""
    return (image.astype(np.float32) / np.float32(255.0) - MEAN) / DEVIATION


def random_flip_with_boxes(element: Element, rng: np.random.Generator) -> Element:
    """Mirror image and boxes left and right, half of the time."""
    if rng.random() >= 0.5:
        return element
    top, left, bottom, right = element["boxes"].T
    flipped = np.stack([top, 1 - right, bottom, 1 - left], axis=1)
    return {**element, "image": np.ascontiguousarray(element["image"][:, ::-1]), "boxes": flipped}


def resize_and_crop(element: Element) -> Element:
    """Scale the image to fit 640 x 640 and pad it with 0 at the bottom and on the right (bilinear).

    The scale is not jittered (1.0 to 1.0, as in the measured program), so nothing is cropped.
    """
    image = element["image"]
    height, width = image.shape[:2]
    scale = SIZE / max(height, width)
    new_height, new_width = min(SIZE, round(height * scale)), min(SIZE, round(width * scale))
    canvas = np.zeros((SIZE, SIZE, image.shape[-1]), image.dtype)
    canvas[:new_height, :new_width] = cv2.resize(image, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
    shares = np.array([new_height, new_width, new_height, new_width], np.float32) / np.float32(SIZE)
    return {**element, "image": canvas, "boxes": element["boxes"] * shares}


def label_extract(element: Element, anchors: Array) -> Element:
    """Turn the boxes into what each anchor is to predict, level by level.

    Adds ``class_targets_<level>`` [side, side, 9] (0: background), ``box_targets_<level>`` [side, side, 36]
    and `num_positives`; pads boxes (now in pixels) and classes to 100 rows, of -1.
    """
    boxes = np.clip(element["boxes"], 0.0, 1.0) * np.float32(SIZE)
    visible = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    boxes, classes = boxes[visible], element["classes"][visible]
    owner = match_anchors(anchors, boxes)
    positive = owner >= 0
    class_targets = np.zeros(len(anchors), np.int32)
    box_targets = np.zeros((len(anchors), 4), np.float32)
    class_targets[positive] = classes[owner[positive]]
    box_targets[positive] = encode_boxes(boxes[owner[positive]], anchors[positive])
    out = {
        **element,
        "boxes": _padded(boxes),
        "classes": _padded(classes),
        "num_positives": np.float32(np.count_nonzero(positive)),
    }
    begin = 0
    per_cell = SCALES * len(RATIOS)
    for level in LEVELS:
        side = SIZE >> level
        end = begin + side * side * per_cell
        out[f"class_targets_{level}"] = class_targets[begin:end].reshape(side, side, per_cell)
        out[f"box_targets_{level}"] = box_targets[begin:end].reshape(side, side, per_cell * 4)
        begin = end
    return out


def make_anchors() -> Array:
    """Return the anchors in pixels, [76725, 4], ordered by level, row, column, scale and ratio."""
    levels = []
    for level in LEVELS:
        stride = 1 << level
        centres = np.arange(stride / 2, SIZE, stride, dtype=np.float32)
        sizes = [
            (
                ANCHOR_SIZE * stride * 2 ** (scale / SCALES) / np.sqrt(ratio),
                ANCHOR_SIZE * stride * 2 ** (scale / SCALES) * np.sqrt(ratio),
            )
            for scale in range(SCALES)
            for ratio in RATIOS
        ]
        half = np.array(sizes, np.float32) / 2
        y, x = (grid[..., np.newaxis] for grid in np.meshgrid(centres, centres, indexing="ij"))
        corners = np.stack([y - half[:, 0], x - half[:, 1], y + half[:, 0], x + half[:, 1]], axis=-1)
        levels.append(corners.reshape(-1, 4))
    return np.concatenate(levels).astype(np.float32)


def match_anchors(anchors: Array, boxes: Array) -> Array:
    """Return for each anchor the box that it overlaps most, or -1 below an overlap of 0.5.

    The best anchor of each box belongs to it even below that.
    """
    best = np.zeros(len(anchors), np.float32)
    owner = np.full(len(anchors), -1, np.int64)
    forced = []
    area = (anchors[:, 2] - anchors[:, 0]) * (anchors[:, 3] - anchors[:, 1])
    # One box at a time: anchors x boxes would take hundreds of megabytes on a crowded image.
    for number, (top, left, bottom, right) in enumerate(boxes):
        height = np.minimum(anchors[:, 2], bottom) - np.maximum(anchors[:, 0], top)
        width = np.minimum(anchors[:, 3], right) - np.maximum(anchors[:, 1], left)
        shared = np.maximum(height, 0) * np.maximum(width, 0)
        overlap = shared / (area + (bottom - top) * (right - left) - shared)
        better = overlap > best
        best[better] = overlap[better]
        owner[better] = number
        forced.append(int(np.argmax(overlap)))
    owner[best < MATCH] = -1
    for number, anchor in enumerate(forced):
        owner[anchor] = number
    return owner


def encode_boxes(boxes: Array, anchors: Array) -> Array:
    """Return the shift, in anchor sizes, and logarithmic growth from anchors to boxes: (y, x, h, w)."""
    sizes, anchor_sizes = boxes[:, 2:] - boxes[:, :2], anchors[:, 2:] - anchors[:, :2]
    shift = ((boxes[:, :2] + boxes[:, 2:]) - (anchors[:, :2] + anchors[:, 2:])) / 2 / anchor_sizes
    encoded: Array = np.concatenate([shift, np.log(sizes / anchor_sizes)], axis=1)
    return encoded


def cast(element: Element, dtype: str) -> Element:
    """Cast the image to `dtype`: "bfloat16" needs ml_dtypes, which TensorFlow and JAX bring along."""
    if dtype == "bfloat16":
        import ml_dtypes

        return {**element, "image": element["image"].astype(ml_dtypes.bfloat16)}
    return {**element, "image": element["image"].astype(dtype)}


def _padded(rows: Array) -> Array:
    out = np.full((MAX_BOXES, *rows.shape[1:]), -1, rows.dtype)
    count = min(len(rows), MAX_BOXES)
    out[:count] = rows[:count]
    return out
