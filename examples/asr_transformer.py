"""ASRTransformer's input pipeline, step by step as in Table 1 of the Pecan paper, in its authors' order.

    python examples/asr_transformer.py --epochs 2
    python examples/asr_transformer.py --train
    python examples/asr_transformer.py --engine tensorflow
    ray job submit --working-dir . -- python examples/asr_transformer.py --local 1 --remote 2

As in the paper's table, the spectrogram is padded *before* the augmentations (AutoOrder moves Pad behind
them in mode "pecan"). Without --data the ten English clips of examples/data/speech are read over and over; they travel
with the job.
"""

from __future__ import annotations

import sys
from pathlib import Path

# A script finds only its own folder: `examples`, and pecan_ray in a checkout, are above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import csv
import functools
import os
from types import ModuleType
from typing import Any

import pecan_ray as pecan
from examples import audio_ops
from examples.consumer import TrainStep, command_line, consume
from pecan_ray.options import EngineName

FIXTURE = Path(__file__).resolve().parent / "data" / "speech"


def pipeline(
    root: str | os.PathLike[str] | None = None,
    *,
    engine: EngineName = "python",
    batch: int = 8,
    images: int = 40,
    seed: int | None = None,
) -> pecan.PecanPipeline:
    """Return the pipeline over a folder with transcripts.tsv (columns path and text) and its WAV files of 16
    bits.

    None: the clips of the repository, again and again until there are `images` of them.  Batches: `source`
    float32 [n, 2754, 129], `target` int32 [n, 200], `frames` int32 [n] (how many of the 2754 are speech).
    """
    ops: ModuleType = audio_ops
    if engine == "tensorflow":
        from examples import audio_ops_tf

        ops = audio_ops_tf
    folder = Path(FIXTURE if root is None else root)
    transcripts = read_transcripts(folder)
    items: list[dict[str, Any]] = [{"path": str(folder / name)} for name in transcripts]
    if root is None:
        clips = [audio_ops.read_file(item) for item in items]
        items = [clips[number % len(clips)] for number in range(images)]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items), name="asr_transformer", engine=engine, seed=seed)
    if root is not None:
        pipe = pipe.map(ops.read_file)
    by_name = {Path(name).name: text for name, text in transcripts.items()}
    return (
        pipe.map(ops.decode, on="audio")
        .map(functools.partial(ops.add_text, transcripts=by_name), name="add_text")
        .map(ops.vectorize)
        .map(ops.fourier_transform)
        .map(ops.pad)
        .map(ops.spec_augment)
        .map(ops.speed_perturb)
        .map(ops.pitch_perturb, on="source")
        .map(ops.reverb, on="source")
        .batch(batch)
    )


def read_transcripts(folder: Path) -> dict[str, str]:
    """Return the text of each file that transcripts.tsv lists, by its path in the folder."""
    with open(folder / "transcripts.tsv", newline="", encoding="utf-8") as file:
        return {row["path"]: row["text"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}


def example_pipeline(engine: EngineName = "python") -> pecan.PecanPipeline:
    """Return the pipeline over the clips of the repository: what ``pecan explain`` shows."""
    return pipeline(engine=engine)


def model_step() -> TrainStep:
    """Return the training step of a small transformer (torch)."""
    from examples.models_torch import transcriber_step

    return transcriber_step()


def main() -> None:
    """Run the pipeline as the command line says."""
    parser = command_line(
        "The ASRTransformer pipeline of the Pecan paper on real English speech.",
        engines=("python", "tensorflow"),
        batch=8,
        count=40,
        data_help="folder with transcripts.tsv (columns path and text) and WAV files of 16 bits, on "
        "storage that every node sees (default: ten clips, which travel with the job)",
    )
    args = parser.parse_args()
    print(f"speech: {args.data or f'{args.images} clips, the ten of examples/data/speech over and over'}")
    consume(pipeline(args.data, engine=args.engine, batch=args.batch, images=args.images), args, model_step)


if __name__ == "__main__":
    main()
