"""Case (b): heavy augmentation of photographs: RandAugment, and SimCLR's two views."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from benchmarks.peers.cases.case import PeerCase, Target
from benchmarks.peers.cases.photographs import (
    decode,
    folder,
    listed,
    normalize,
    random_crop,
    random_flip,
    resize,
    select,
)
from benchmarks.peers.recipe import Element, Recipe
from examples import image_ops

if TYPE_CHECKING:
    from pecan_ray.options import EngineName

BATCH = 64
VIEWS_BATCH = 32
CHOSEN = 2
"""Operations drawn for each photograph, as in RandAugment with N = 2."""
STRENGTH = 0.3


def _warp(image: Any, matrix: Any) -> Any:
    return cv2.warpAffine(image, np.asarray(matrix, np.float32), (image.shape[1], image.shape[0]))


def _table(image: Any, values: Any) -> Any:
    return cv2.LUT(image, np.clip(values, 0, 255).astype(np.uint8))


def _sharpness(image: Any, amount: float) -> Any:
    return cv2.addWeighted(image, 1 + amount, cv2.GaussianBlur(image, (3, 3), 0), -amount, 0)


def _equalize(image: Any, _amount: float) -> Any:
    return cv2.merge([cv2.equalizeHist(plane) for plane in cv2.split(image)])


def _auto_contrast(image: Any, _amount: float) -> Any:
    return cv2.normalize(image, np.empty_like(image), 0, 255, cv2.NORM_MINMAX)


def _rotate(image: Any, amount: float) -> Any:
    height, width = image.shape[:2]
    return _warp(image, cv2.getRotationMatrix2D((width / 2, height / 2), 100 * amount, 1.0))


LEVELS = np.arange(256, dtype=np.float32)
OPERATIONS: tuple[Callable[[Any, float], Any], ...] = (
    _equalize,
    _auto_contrast,
    _sharpness,
    _rotate,
    lambda image, amount: _warp(image, [[1, amount, 0], [0, 1, 0]]),
    lambda image, amount: _warp(image, [[1, 0, 0], [amount, 1, 0]]),
    lambda image, amount: _warp(image, [[1, 0, 200 * amount], [0, 1, 0]]),
    lambda image, amount: _table(image, np.where(256 * (1 - abs(amount)) > LEVELS, LEVELS, 255 - LEVELS)),
    lambda image, amount: _table(image, LEVELS * (1 + amount)),
    lambda image, amount: _table(image, (LEVELS - 128) * (1 + amount) + 128),
)
"""Image and signed amount to image: uint8 [height, width, 3]."""


def rand_augment(image: Any, rng: np.random.Generator) -> Any:
    """Apply two operations out of ten, each with the same strength and a random sign."""
    for number in rng.integers(len(OPERATIONS), size=CHOSEN):
        image = OPERATIONS[number](image, STRENGTH if rng.random() < 0.5 else -STRENGTH)
    return image


def augmented(item: tuple[str, int], rng: np.random.Generator) -> Element:
    """Do everything for one file."""
    image = resize(random_crop(decode(Path(item[0]).read_bytes()), rng))
    return {"image": normalize(random_flip(rand_augment(image, rng), rng)), "label": np.int64(item[1])}


def augmented_pipeline(data: str, engine: EngineName) -> Any:
    """Return our pipeline of the same functions."""
    import pecan_ray as pecan

    pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(folder(data)), name="rand_augment", engine="python").repeat(
        None
    )
    for op in (decode, random_crop, resize, rand_augment, random_flip, normalize):
        pipe = pipe.map(op, on="image")
    return pipe.map(select).batch(BATCH)


def augmented_recipe(data: str) -> Recipe:
    """Return RandAugment's work."""
    return Recipe(listed(data), augmented, BATCH, functools.partial(augmented_pipeline, data))


VIEW_STEPS: tuple[Callable[..., Any], ...] = (
    image_ops.crop_and_resize,
    image_ops.random_flip_views,
    image_ops.color_jitter,
    image_ops.gaussian_blur,
)


def two_views(item: tuple[str, int], rng: np.random.Generator) -> Element:
    """Do everything for one file, in the order of SimCLR's authors."""
    views = image_ops.duplicate_and_cast(image_ops.decode_rgb(Path(item[0]).read_bytes()))
    for step in VIEW_STEPS:
        views = step(views, rng)
    views = image_ops.tile(image_ops.to_grayscale(image_ops.clip(views), rng))
    return {"image": image_ops.reshape(views), "label": np.int64(item[1])}


def views_pipeline(data: str, engine: EngineName) -> Any:
    """Return the example's pipeline, over the photographs again and again."""
    import pecan_ray as pecan

    if engine == "tensorflow":
        from examples import image_ops_tf

        ops: Any = image_ops_tf
    else:
        ops = image_ops
    config = pecan.Config(reorder="safe")
    pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(folder(data)), name="simclr", engine=engine, config=config)
    pipe = pipe.repeat(None)
    pipe = pipe.map(ops.decode)
    for name in ("duplicate_and_cast", "crop_and_resize", "random_flip_views", "color_jitter", "gaussian_blur", "clip",
                 "to_grayscale", "tile", "reshape"):  # fmt: skip
        pipe = pipe.map(getattr(ops, name), on="image")
    return pipe.batch(VIEWS_BATCH)


def views_graph(data: str, _variant: str) -> Any:
    """Return tf.data's pipeline."""
    from benchmarks.peers.cases import graphs

    return graphs.two_views(listed(data))


def views_recipe(data: str) -> Recipe:
    """Return SimCLR's work."""
    return Recipe(
        listed(data),
        two_views,
        VIEWS_BATCH,
        functools.partial(views_pipeline, data),
        graph=functools.partial(views_graph, data),
    )


RAND_AUGMENT = PeerCase(
    key="rand-augment",
    title="JPEG, random crop, RandAugment (2 of 10), flip, normalize, batches of 64",
    unit="images",
    recipe=augmented_recipe,
    sides=(
        "pecan python",
        "tf.data, same functions",
        "torch DataLoader",
        "Ray Data",
        "SPDL",
        "Grain",
        "threads",
        "compute only",
    ),
    targets=(
        Target("pecan python", "threads", 0.9),
        Target("pecan python", "Grain", 1.05),
        Target("pecan python", "SPDL", 1.05),
        Target("pecan python", "torch DataLoader"),
        Target("pecan python", "Ray Data"),
        Target("pecan python", "tf.data, same functions"),
    ),
)
SIMCLR = PeerCase(
    key="simclr",
    title="SimCLR's two views, in its authors' order, batches of 32; AutoOrder on",
    unit="images",
    recipe=views_recipe,
    sides=("pecan python", "pecan tensorflow", "tf.data", "torch DataLoader", "Grain", "threads", "compute only"),
    bounds={},  # they run the authors' order
    targets=(
        Target("pecan python", "threads", 0.9),
        Target("pecan python", "Grain", 1.05),
        Target("pecan python", "torch DataLoader"),
        Target("pecan tensorflow", "tf.data", 0.95),
    ),
)
