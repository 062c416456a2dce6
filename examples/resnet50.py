"""ResNet50's input pipeline, step by step as in Table 1 of the Pecan paper, in its authors' order.

    python examples/resnet50.py --epochs 2
    python examples/resnet50.py --engine tensorflow --train
    ray job submit --working-dir . -- python examples/resnet50.py --local 1 --remote 2

Without --data the photographs are *derived*: crops of those in scikit-image and scikit-learn (see
`examples.photographs`).  Rotation and shear are drawn for each image.  The label is encoded one-hot, as the
paper's table says (the measured program did not).
"""

from __future__ import annotations

import sys
from pathlib import Path

# A script finds only its own folder: `examples`, and pecan_ray in a checkout, are above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import functools
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
    root: str | os.PathLike[str],
    *,
    engine: EngineName = "python",
    batch: int = 32,
    classes: int | None = None,
    seed: int | None = None,
) -> pecan.PecanPipeline:
    """Return the pipeline over a folder of class folders with JPEG files.

    Batches: `image` float16 [n, 224, 224, 3], `label` float32 [n, classes].  `classes` is
    the number of class folders where it is not given.
    """
    ops: ModuleType = image_ops
    if engine == "tensorflow":
        from examples import image_ops_tf

        ops = image_ops_tf
    source = pecan.sources.ImageFolder(root, split_files=SPLIT_FILES)
    cast_and_one_hot = functools.partial(ops.cast_and_one_hot, classes=classes or len(source.classes))
    return (
        pecan.PecanPipeline(source, name="resnet50", engine=engine, seed=seed)
        .map(ops.decode_and_random_crop, on="image")
        .map(ops.random_flip, on="image")
        .map(ops.random_rotate, on="image")
        .map(ops.random_shear, on="image")
        .map(ops.resize, on="image")
        .map(ops.subtract_mean, on="image")
        .map(cast_and_one_hot, name="cast_and_one_hot")
        .batch(batch)
    )


def example_pipeline(engine: EngineName = "python") -> pecan.PecanPipeline:
    """Return the pipeline over derived photographs: what ``pecan explain`` shows."""
    return pipeline(derived_photographs(256), engine=engine)


def model_step(engine: str, classes: int) -> TrainStep:
    """Return the training step of a small classifier: Keras for the tensorflow engine, else torch."""
    if engine == "tensorflow":
        from examples.models_keras import classifier_step as keras_step

        return keras_step(classes)
    from examples.models_torch import classifier_step

    return classifier_step(classes)


def main() -> None:
    """Run the pipeline as the command line says."""
    parser = command_line(
        "The ResNet50 pipeline of the Pecan paper on real photographs.",
        engines=("python", "tensorflow"),
        batch=32,
        count=256,
        data_help="folder of class folders with JPEG files (default: derived photographs). " + DATA_HELP,
    )
    args = parser.parse_args()
    root = args.data or derived_photographs(args.images)
    print(f"photographs: {root}" + ("" if args.data else " (derived from scikit-image's and scikit-learn's)"))
    classes = len(pecan.sources.ImageFolder(root).classes)
    pipe = pipeline(root, engine=args.engine, batch=args.batch, classes=classes)
    consume(pipe, args, lambda: model_step(args.engine, classes))


if __name__ == "__main__":
    main()
