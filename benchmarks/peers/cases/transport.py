"""Cases (e): no work at all: large batches, and tiny ones, from the workers to the trainer."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.cases.case import PeerCase, Target
from benchmarks.peers.recipe import Element, Recipe

if TYPE_CHECKING:
    from pecan_ray.options import EngineName

SHAPE = (64, 224, 224, 3)
ROWS = 1 << 16
LARGE = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
SMALL = np.random.default_rng(0).integers(0, 256, 1 << 10, np.uint8)


def large(_item: Any, _rng: np.random.Generator | None = None) -> Element:
    """Return 9.6 MB that exist already."""
    return {"image": LARGE}


def small(_item: Any, _rng: np.random.Generator | None = None) -> Element:
    """Return 1 KB that exists already."""
    return {"image": SMALL}


def large_of(_element: Element) -> Element:
    """Do it for an element of ours."""
    return {"image": LARGE}


def small_of(_element: Element) -> Element:
    """Do it for an element of ours."""
    return {"image": SMALL}


def pipeline(size: str, _engine: EngineName) -> Any:
    """Return our pipeline."""
    import pecan_ray as pecan

    source = pecan.sources.Arrays(number=np.arange(ROWS))
    return pecan.PecanPipeline(source, name=size).repeat(None).map(large_of if size == "large" else small_of).batch(1)


def graph(size: str, _variant: str) -> Any:
    """Return tf.data's pipeline."""
    from benchmarks.peers.cases import graphs

    return graphs.constant(LARGE if size == "large" else SMALL)


def recipe(size: str, _data: str) -> Recipe:
    """Return batches of one element, which is large or small."""
    return Recipe(
        range(ROWS),
        large if size == "large" else small,
        1,
        functools.partial(pipeline, size),
        graph=functools.partial(graph, size),
    )


SIDES = ("pecan python", "tf.data service, plain", "torch DataLoader", "Ray Data", "Grain, processes")
TRANSPORT = PeerCase(
    key="transport",
    title="batches of 9.6 MB without any work",
    unit="batches",
    recipe=functools.partial(recipe, "large"),
    sides=(*SIDES, "memcpy"),
    bounds={"pecan python": "memcpy"},
    targets=(
        Target("pecan python", "tf.data service, plain", 3.0),
        Target("pecan python", "torch DataLoader"),
        Target("pecan python", "Ray Data", 3.0),
        Target("pecan python", "Grain, processes"),
        Target("pecan python", "memcpy"),
    ),
)
TINY = PeerCase(
    key="tiny",
    title="batches of 1 KB without any work",
    unit="batches",
    recipe=functools.partial(recipe, "small"),
    sides=(*SIDES, "threads"),
    targets=(
        Target("pecan python", "tf.data service, plain"),
        Target("pecan python", "torch DataLoader"),
        Target("pecan python", "Ray Data"),
        Target("pecan python", "Grain, processes"),
    ),
)
