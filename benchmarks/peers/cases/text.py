"""Case (d): tiny elements: lines of text to 32 numbers, 8 lines (1 KB) to a batch."""

from __future__ import annotations

import functools
import itertools
import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.cases.case import PeerCase, Target
from benchmarks.peers.recipe import Element, Recipe

if TYPE_CHECKING:
    from pecan_ray.options import EngineName

SENTENCES = Path(__file__).resolve().parents[3] / "examples" / "data" / "text" / "austen_500.jsonl"
BATCH = 8
LENGTH = 32
VOCABULARY = 1 << 15
COPIES = 400


def lines() -> list[str]:
    """Return the 500 sentences of the repository."""
    rows = [json.loads(line) for line in SENTENCES.read_text(encoding="utf-8").splitlines()]
    return [str(row["text"]).replace("\n", " ") for row in rows]


def file_of_lines(count: int = 500 * COPIES, part: str = "all") -> str:
    """Return a file of so many of these sentences, over and over."""
    cache = Path.home() / ".cache" / "pecan_ray"
    cache.mkdir(parents=True, exist_ok=True)
    file = cache / f"austen-{count}-lines-{part}.txt"
    if not file.exists():
        with tempfile.NamedTemporaryFile("w", dir=cache, delete=False, encoding="utf-8") as unfinished:
            unfinished.writelines(f"{line}\n" for line in itertools.islice(itertools.cycle(lines()), count))
        os.replace(unfinished.name, file)
    return str(file)


def tokens(line: str, _rng: np.random.Generator | None = None) -> Element:
    """Replace words by their hashes, padded with 0 or cut to 32."""
    numbers = [zlib.crc32(word.encode()) % (VOCABULARY - 1) + 1 for word in line.lower().split()[:LENGTH]]
    out = np.zeros(LENGTH, np.int32)
    out[: len(numbers)] = numbers
    return {"tokens": out}


def tokens_of(element: Element) -> Element:
    """Do it for an element of ours."""
    return tokens(element["text"])


def pipeline(engine: EngineName) -> Any:
    """Return our pipeline."""
    import pecan_ray as pecan

    pipe = pecan.PecanPipeline(
        pecan.sources.TextLines(file_of_lines(), split_bytes=1 << 20), name="text", engine=engine
    )
    if engine == "tensorflow":
        from benchmarks.peers.cases import graphs

        tokenize: Any = graphs.tokenize(LENGTH, VOCABULARY)
    else:
        tokenize = tokens_of
    return pipe.repeat(None).map(tokenize, name="tokenize").batch(BATCH)


def graph(_variant: str) -> Any:
    """Return tf.data's pipeline."""
    from benchmarks.peers.cases import graphs

    return graphs.tokens(file_of_lines(), LENGTH, VOCABULARY)


def recipe(_data: str) -> Recipe:
    """Return the case's work."""
    return Recipe(lines(), tokens, BATCH, functools.partial(pipeline), graph=graph)


TEXT = PeerCase(
    key="text",
    title="lines of text to 32 numbers each, batches of 8 (1 KB)",
    unit="lines",
    recipe=recipe,
    sides=(
        "pecan python",
        "pecan tensorflow",
        "tf.data",
        "tf.data service, plain",
        "torch DataLoader",
        "Ray Data",
        "SPDL",
        "Grain",
        "threads",
        "compute only",
    ),
    bounds={"pecan python": "threads", "pecan tensorflow": "tf.data"},
    targets=(
        Target("pecan python", "threads", 0.9),
        Target("pecan python", "Grain", 1.05),
        Target("pecan python", "SPDL", 1.05),
        Target("pecan python", "torch DataLoader"),
        Target("pecan python", "Ray Data", 3.0),
        Target("pecan tensorflow", "tf.data", 0.95),
        Target("pecan tensorflow", "tf.data service, plain", 3.0),
    ),
)
