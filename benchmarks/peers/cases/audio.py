"""Case (c): speech, decoded, Fourier-transformed, masked by SpecAugment and padded."""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.cases.case import PeerCase, Target
from benchmarks.peers.recipe import Element, Recipe
from examples import audio_ops

if TYPE_CHECKING:
    from pecan_ray.options import EngineName

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "data" / "speech"
BATCH = 16
COPIES = 100


def clips() -> list[dict[str, Any]]:
    """Return the ten clips of the repository: file as bytes, path and transcript."""
    with open(FOLDER / "transcripts.tsv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [{"audio": (FOLDER / row["path"]).read_bytes(), "path": row["path"], "text": row["text"]} for row in rows]


def spectrogram(clip: dict[str, Any], rng: np.random.Generator) -> Element:
    """Do everything for one clip."""
    element = audio_ops.vectorize({**clip, "audio": audio_ops.decode(clip["audio"])})
    return audio_ops.pad(audio_ops.spec_augment(audio_ops.fourier_transform(element), rng))


def decoded(clip: dict[str, Any], _rng: np.random.Generator) -> Any:
    """Only decode a clip."""
    return audio_ops.decode(clip["audio"])


def pipeline(_engine: EngineName) -> Any:
    """Return our pipeline of the same functions, in the same order."""
    import pecan_ray as pecan

    pipe = pecan.PecanPipeline(pecan.sources.Items(clips() * COPIES), name="audio").repeat(None)
    pipe = pipe.map(audio_ops.decode, on="audio")
    for op in (audio_ops.vectorize, audio_ops.fourier_transform, audio_ops.spec_augment, audio_ops.pad):
        pipe = pipe.map(op)
    return pipe.batch(BATCH)


def recipe(_data: str) -> Recipe:
    """Return the case's work."""
    return Recipe(clips(), spectrogram, BATCH, functools.partial(pipeline), parts={"decode": decoded})


AUDIO = PeerCase(
    key="audio",
    title="WAV, STFT, SpecAugment, padded to 2754 frames, batches of 16",
    unit="clips",
    recipe=recipe,
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
    ),
)
