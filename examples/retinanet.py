"""RetinaNet's input pipeline, step by step as in Table 1 of the Pecan paper, in its authors' order.

    python examples/retinanet.py --epochs 2
    python examples/retinanet.py --train --images 32
    python examples/retinanet.py --engine tensorflow
    ray job submit --working-dir . -- python examples/retinanet.py --local 1 --remote 2

The paper's LabelExtract is `resize_and_crop` and `label_extract` here.  Without --data the images are
*derived*: crops of an aerial photograph with hand-drawn boxes around trees (examples/data/detection), which
travel with the job.  The last cast is to float16 where the paper's is to bfloat16, which
NumPy lacks; `pipeline(dtype="bfloat16")` takes it from ml_dtypes (TensorFlow and JAX bring that along).
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
from examples import boxes_ops
from examples.aerial import FIXTURE, coco_items, derived_items
from examples.consumer import TrainStep, command_line, consume
from pecan_ray.options import EngineName


def pipeline(
    root: str | os.PathLike[str] | None = None,
    *,
    engine: EngineName = "python",
    batch: int = 8,
    images: int = 64,
    dtype: str = "float16",
    seed: int | None = None,
) -> pecan.PecanPipeline:
    """Return the pipeline over a folder with annotations.json (COCO's format) and its images.

    None: `images` crops of the aerial photograph.  Batches: `image` [n, 640, 640, 3] of `dtype`, `boxes` in
    pixels and `classes` of 100 rows, `num_positives`, and for the levels 3 to 7 `class_targets_<level>` and
    `box_targets_<level>`.
    """
    ops: ModuleType = boxes_ops
    if engine == "tensorflow":
        from examples import boxes_ops_tf

        ops = boxes_ops_tf
    items = derived_items(images) if root is None else coco_items(Path(root))
    pipe = pecan.PecanPipeline(pecan.sources.Items(items), name="retinanet", engine=engine, seed=seed)
    if root is not None:
        pipe = pipe.map(ops.read_file)
    label_extract = functools.partial(ops.label_extract, anchors=boxes_ops.make_anchors())
    return (
        pipe.map(ops.decode)
        .map(ops.normalize, on="image")
        .map(ops.random_flip_with_boxes)
        .map(ops.resize_and_crop)
        .map(label_extract, name="label_extract")
        .map(functools.partial(ops.cast, dtype=dtype), name="cast")
        .batch(batch)
    )


def example_pipeline(engine: EngineName = "python") -> pecan.PecanPipeline:
    """Return the pipeline over derived images: what ``pecan explain`` shows."""
    return pipeline(engine=engine)


def model_step() -> TrainStep:
    """Return the training step of a small detector (torch)."""
    from examples.models_torch import detector_step

    return detector_step()


def main() -> None:
    """Run the pipeline as the command line says."""
    parser = command_line(
        "The RetinaNet pipeline of the Pecan paper on an aerial photograph with hand-drawn boxes.",
        engines=("python", "tensorflow"),
        batch=8,
        count=64,
        data_help="folder with annotations.json (COCO's format) and images, on storage that every "
        "node sees (default: derived crops, which travel with the job)",
    )
    args = parser.parse_args()
    print(f"images: {args.data or f'{args.images} crops, derived from {FIXTURE.name}/OSBS_029.png'}")
    consume(pipeline(args.data, engine=args.engine, batch=args.batch, images=args.images), args, model_step)


if __name__ == "__main__":
    main()
