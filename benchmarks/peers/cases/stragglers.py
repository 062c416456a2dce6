"""Case (i): one element in a hundred takes fifty times longer than the others."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from benchmarks.peers.cases.case import PeerCase, Target
from benchmarks.peers.recipe import Element, Recipe

if TYPE_CHECKING:
    from pecan_ray.options import EngineName

BATCH = 64
COUNT = 10_000
SLOWER = 50
PICTURE = np.random.default_rng(0).integers(0, 256, (160, 160, 3), np.uint8)


def is_slow(number: int) -> bool:
    """One in a hundred, spread irregularly."""
    return (number * 2654435761 >> 7) % 100 == 0


def blurred(number: int, _rng: np.random.Generator | None = None) -> Element:
    """Blur a picture once, or fifty times."""
    image = PICTURE
    for _ in range(SLOWER if is_slow(number) else 1):
        image = cv2.GaussianBlur(image, (21, 21), 5)
    return {"image": image}


def blurred_of(element: Element) -> Element:
    """Do it for an element of ours."""
    return blurred(element["item"])


def pipeline(_engine: EngineName) -> Any:
    """Return our pipeline."""
    import pecan_ray as pecan

    source = pecan.sources.Items(list(range(COUNT)))
    return pecan.PecanPipeline(source, name="stragglers").repeat(None).map(blurred_of).batch(BATCH)


def recipe(_data: str) -> Recipe:
    """Return the case's work."""
    return Recipe(range(COUNT), blurred, BATCH, functools.partial(pipeline))


STRAGGLERS = PeerCase(
    key="stragglers",
    title="1 % of the elements take 50 times longer, batches of 64 in any order",
    unit="elements",
    recipe=recipe,
    sides=(
        "pecan python",
        "tf.data, same functions",
        "torch DataLoader",
        "torch DataLoader, any order",
        "Ray Data",
        "SPDL",
        "Grain",
        "threads",
        "compute only",
    ),
    bounds={"pecan python": "compute only"},
    targets=(
        Target("pecan python", "compute only", 0.9),
        Target("pecan python", "torch DataLoader, any order"),
        Target("pecan python", "SPDL", 1.05),
        Target("pecan python", "Grain", 1.05),
        Target("pecan python", "Ray Data"),
    ),
)
