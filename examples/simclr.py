"""SimCLR's input pipeline, step by step as in Table 1 of the Pecan paper, in its authors' order.

    python examples/simclr.py --epochs 2
    python examples/simclr.py --engine tensorflow --train
    ray job submit --working-dir . -- python examples/simclr.py --local 1 --remote 2

Two views of each photograph are made, changed at random and put side by side on the channels.  Without --data
the photographs are *derived*: crops of those in scikit-image and scikit-learn (see `examples.photographs`).
"""

from __future__ import annotations

import sys
from pathlib import Path

# A script finds only its own folder: `examples`, and pecan_ray in a checkout, are above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import os
from types import ModuleType

import pecan_ray as pecan
from examples import image_ops
from examples.consumer import (
    DATA_HELP,
    SPLIT_FILES,
    TrainStep,
    command_line,
    consume,
)
from examples.photographs import derived_photographs
from pecan_ray.options import EngineName


def pipeline(
    root: str | os.PathLike[str], *, engine: EngineName = "python", batch: int = 32, seed: int | None = None
) -> pecan.PecanPipeline:
    """Return the pipeline over a folder of class folders with JPEG files.

    Batches: `image` float32 in [0, 1], [n, 224, 224, 6], and `label` int64 [n] (only for evaluation).
    """
    ops: ModuleType = image_ops
    if engine == "tensorflow":
        from examples import image_ops_tf

        ops = image_ops_tf
    source = pecan.sources.ImageFolder(root, split_files=SPLIT_FILES)
    return (
        pecan.PecanPipeline(source, name="simclr", engine=engine, seed=seed)
        .map(ops.decode)
        .map(ops.duplicate_and_cast, on="image")
        .map(ops.crop_and_resize, on="image")
        .map(ops.random_flip_views, on="image")
        .map(ops.color_jitter, on="image")
        .map(ops.gaussian_blur, on="image")
        .map(ops.clip, on="image")
        .map(ops.to_grayscale, on="image")
        .map(ops.tile, on="image")
        .map(ops.reshape, on="image")
        .batch(batch)
    )


def example_pipeline(engine: EngineName = "python") -> pecan.PecanPipeline:
    """Return the pipeline over derived photographs: what ``pecan explain`` shows."""
    return pipeline(derived_photographs(256), engine=engine)


def model_step(engine: str) -> TrainStep:
    """Return the training step of a small encoder: Keras for the tensorflow engine, else torch."""
    if engine == "tensorflow":
        from examples.models_keras import simclr_step as keras_step

        return keras_step()
    from examples.models_torch import simclr_step

    return simclr_step()


def main() -> None:
    """Run the pipeline as the command line says."""
    parser = command_line(
        "The SimCLR pipeline of the Pecan paper on real photographs.",
        engines=("python", "tensorflow"),
        batch=32,
        count=256,
        data_help="folder of class folders with JPEG files (default: derived photographs). " + DATA_HELP,
    )
    args = parser.parse_args()
    root = args.data or derived_photographs(args.images)
    print(f"photographs: {root}" + ("" if args.data else " (derived from scikit-image's and scikit-learn's)"))
    consume(pipeline(root, engine=args.engine, batch=args.batch), args, lambda: model_step(args.engine))


if __name__ == "__main__":
    main()
