"""Case (h): users' code in plain Python, which holds the GIL."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.cases.case import PeerCase, Target
from benchmarks.peers.cases.text import lines
from benchmarks.peers.recipe import Element, Recipe

if TYPE_CHECKING:
    from pecan_ray.options import EngineName

BATCH = 32
SIZE = 64
COPIES = 20


def trigrams(line: str, _rng: np.random.Generator | None = None) -> Element:
    """Count the trigrams of a sentence and of its reverse in 64 bins, character by character."""
    counts = [0] * SIZE
    for text in (line, line[::-1], line.upper(), line.title(), line.swapcase()):
        for place in range(len(text) - 2):
            number = 0
            for character in text[place : place + 3]:
                number = (number * 131 + ord(character)) % 1_000_003
            counts[number % SIZE] += 1
    return {"counts": np.asarray(counts, np.int32)}


def trigrams_of(element: Element) -> Element:
    """Do it for an element of ours."""
    return trigrams(element["item"])


def pipeline(_engine: EngineName) -> Any:
    """Return our pipeline: the function runs in processes."""
    import pecan_ray as pecan

    source = pecan.sources.Items(lines() * COPIES)
    return pecan.PecanPipeline(source, name="plain_python").repeat(None).map(trigrams_of, processes=True).batch(BATCH)


def recipe(_data: str) -> Recipe:
    """Return the case's work."""
    return Recipe(lines(), trigrams, BATCH, functools.partial(pipeline))


PYTHON_CODE = PeerCase(
    key="python-code",
    title="plain Python per element, which holds the GIL; ours by map(processes=True)",
    unit="lines",
    recipe=recipe,
    sides=("pecan python", "torch DataLoader", "Ray Data", "Grain, processes", "threads"),
    bounds={},  # threads take turns here
    targets=(
        Target("pecan python", "torch DataLoader", 0.9),
        Target("pecan python", "Grain, processes", 0.9),
        Target("pecan python", "Ray Data"),
        Target("pecan python", "threads"),
    ),
)
