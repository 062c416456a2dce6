"""Batch inference: the photographs of a folder, and what a model says of each, beside its path in a Parquet file.

    python examples/predict.py --out predictions.parquet
    python examples/predict.py --data /photographs --local 2 --remote 4
    ray job submit --working-dir . -- python examples/predict.py --out /shared/predictions.parquet

Each row of a batch carries the path of its photograph, so that a prediction stands beside it whatever the order of the
rows and however many workers there are.  Photographs that cannot be decoded are left out, and counted in the report.
"""

from __future__ import annotations

import sys
from pathlib import Path

# A script finds only its own folder: `examples`, and pecan_ray in a checkout, are above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pecan_ray as pecan
from examples.consumer import DATA_HELP, SPLIT_FILES, command_line, fixed_workers
from examples.photographs import derived_photographs
from pecan_ray.images import Decode, Resize

SIDE = 64
"""Pixels of a side of what the model is given."""
SCHEMA = pa.schema([("path", pa.string()), ("prediction", pa.int64()), ("score", pa.float32())])
Scores: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Model: TypeAlias = Callable[[Any], Scores]
"""Returns the scores of the classes for each of a batch of images."""


def pipeline(root: str | os.PathLike[str], *, batch: int = 64) -> pecan.PecanPipeline:
    """Return the pipeline over a folder of class folders with images.

    Batches: `image` uint8 [n, 64, 64, 3], `path` text [n], and `label`.
    """
    config = pecan.Config(error_budget=0.1)
    source = pecan.sources.ImageFolder(root, split_files=SPLIT_FILES)
    return (
        pecan.PecanPipeline(source, name="predict", config=config)
        .map(Decode(), on="image")
        .map(Resize(SIDE, SIDE), on="image")
        .batch(batch)
    )


def linear_model(classes: int = 10) -> Model:
    """Return a model with fixed weights, which stands for a network that was trained."""
    weights = np.random.default_rng(0).normal(size=(SIDE * SIDE * 3, classes)).astype(np.float32) / SIDE

    def scores(images: Any) -> Scores:
        logits = (images.reshape(len(images), -1).astype(np.float32) / 255 - 0.5) @ weights
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True), np.float32)

    return scores


def write_predictions(
    pipe: pecan.PecanPipeline, model: Model, out: str | os.PathLike[str], **options: Any
) -> tuple[int, str]:
    """Write a row for each image to a Parquet file; return how many there are, and the report of the run.

    The file has its name once all rows are in it: what an interrupted run leaves behind is called otherwise.

    Args:
        pipe: what `pipeline` returns.
        model: gives the scores.
        out: path of the file.
        options: of `iter_batches`.
    """
    unfinished, rows = Path(f"{os.fspath(out)}.unfinished"), 0
    with (
        pipe.iter_batches(epochs=1, on_error="skip", **options) as batches,
        pq.ParquetWriter(unfinished, SCHEMA) as writer,
    ):
        for batch in batches:
            scores = model(batch["image"])
            best = scores.argmax(axis=1)
            columns = [batch["path"].tolist(), best, scores[np.arange(len(best)), best]]
            writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
            rows += len(best)
        report = str(batches.report())
    unfinished.replace(out)
    return rows, report


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the example as the command line says."""
    parser = command_line(
        "Predictions for the photographs of a folder, beside their paths.",
        batch=64,
        count=256,
        data_help="folder of class folders with images (default: derived photographs). " + DATA_HELP,
    )
    parser.add_argument("--out", default="predictions.parquet", help="Parquet file to write")
    args = parser.parse_args(arguments)
    pipe = pipeline(args.data or derived_photographs(args.images), batch=args.batch)
    workers = fixed_workers(args.local, args.remote)
    rows, report = write_predictions(pipe, linear_model(), args.out, workers=workers, debug=args.debug)
    print(report)
    print(f"{rows} predictions in {args.out}")


if __name__ == "__main__":
    main()
