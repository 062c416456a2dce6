"""The pipeline of README's program, in a module of its own: workers import it, and nothing else for it."""

from __future__ import annotations

from typing import Any

import numpy as np

import pecan_ray as pecan


def random_flip(image: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Flip half of the images."""
    return image[:, ::-1] if rng.random() < 0.5 else image


def normalize(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bring bytes to -1 to 1."""
    return (image / 127.5 - 1).astype(np.float32)


def first_pipeline(name: str) -> pecan.PecanPipeline:
    """Return the pipeline of README's program."""
    images = np.random.default_rng(0).integers(0, 256, (512, 64, 64, 3), np.uint8)
    arrays = pecan.sources.Arrays(image=images, label=np.arange(512) % 10)
    pipe = pecan.PecanPipeline(arrays, name=name, config=pecan.Config(progress=False)).map(random_flip, on="image")
    return pipe.map(normalize, on="image").shuffle(128).batch(64)
