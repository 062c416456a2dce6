"""What AutoOrder's rewrites gain: photographs of two sizes, and speech, beside the user's own functions on threads.

    python benchmarks/rewrites.py [--pipelines photographs resnet50] [--data FOLDER] [--images 96] [--rounds 5]

Pipelines of `pecan_ray.images` and of functions in NumPy, in batches of 32, of which each image comes out at 224 x 224:

- photographs: decode, crop at random (8 to 100 % of the area), resize.
- normalized: the same, mirror, cast to float32, subtract the means of the colours and divide by their deviations.
- figure-3: decode, crop, flip, rotate, shear, resize (Figure 3 of the Pecan paper, without its cast to float16).
- resnet50: decode, crop, cast to float32, flip, rotate, shear, resize, subtract the means (Table 1 of the paper).
- rand-augment: decode, crop, resize, two of ten distortions drawn at random, mirror, cast, subtract and divide.
- simclr: decode, two views in float32, each cropped and resized, mirrored, jittered, blurred, clipped and perhaps gray.
- audio: clips of speech: decode, Fourier transform, SpecAugment, pad to 2754 frames.
- torchvision: decode, and the library's own random resized crop, mirror, cast and normalization;
  with "-turned" also its rotation and shear.  Those that are not installed are left out.

Sides take turns, and medians are printed of images for a second of CPU time, which other load on the machine hardly
changes: the functions by hand on threads, the engine in the user's order, and in what AutoOrder makes of it in modes
"strict" and "safe"; and by how much values differ from those of the user's order.  All of a pass counts but for
building the engine; batches lie in memory that is used again from pass to pass, as in a worker.  The large photographs
are the small ones enlarged, so that nothing but the size differs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cv2
import numpy as np

import pecan_ray as pecan
from benchmarks.library_transforms import LIBRARIES, difference
from benchmarks.peers.cases import audio, augmentation
from benchmarks.reorder import BATCH, OneSlot
from examples import audio_ops, image_ops
from examples.photographs import derived_photographs
from pecan_ray import images, part_decoding
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.rewrites import apply_rewrites
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.engines.registry import build_engine
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.plan.operators import Map, Plan, wants_rng
from pecan_ray.reorder import Mode

SIDE = 224
MEANS = np.array([123.68, 116.78, 103.94], np.float32)
DEVIATIONS = np.array([58.39, 57.12, 57.38], np.float32)
SAMPLE_S = 30.0
"""For a look: what is found is compared, and not how soon."""
SIZES = {"small": (375, 500), "large": (1500, 2000)}
BY_HAND, WRITTEN = "by hand", "order as written"
MODES: tuple[Mode, ...] = ("strict", "safe")


def photographs(folder: Path, count: int) -> list[bytes]:
    """Return the files of a folder that are nearest to the small size."""
    wanted = SIZES["small"][0] * SIZES["small"][1]
    found = []
    for path in sorted(folder.rglob("*.jp*g")):
        file = path.read_bytes()
        if header := part_decoding.read_header(file):
            found.append((abs(header.height * header.width - wanted), file))
    return [file for _, file in sorted(found)[:count]]


def enlarged(file: bytes, shape: tuple[int, int]) -> bytes:
    """Return a photograph at another size."""
    image = cv2.resize(opencv(file), shape[::-1], interpolation=cv2.INTER_CUBIC)
    return bytes(cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 90])[1])


def opencv(encoded: bytes) -> Any:
    """Decode as users do."""
    image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    assert image is not None
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def cast(image: Any) -> Any:
    """Cast to float32."""
    return image.astype(np.float32)


def normalize(image: Any) -> Any:
    """Subtract the means of the colours, and divide by their deviations."""
    return (image - MEANS) / DEVIATIONS


def subtract_mean(image: Any) -> Any:
    """Subtract the means of the colours."""
    return image - MEANS


def resize(image: Any) -> Any:
    """Resize as users do."""
    return cv2.resize(image, (SIDE, SIDE))


def mirror(image: Any, rng: np.random.Generator) -> Any:
    """Mirror half of the images."""
    return image[:, ::-1] if rng.random() < 0.5 else image


def spectrogram(samples: Any) -> Any:
    """Transform clips of speech as users do."""
    return audio_ops.fourier_transform({"audio": samples, "target": None})["source"]


def masked(source: Any, rng: np.random.Generator) -> Any:
    """Put bands of frequencies and stretches of time to 0."""
    return audio_ops.spec_augment({"source": source, "frames": len(source)}, rng)["source"]


def padded(source: Any) -> Any:
    """Pad with 0, or cut, to 2754 frames."""
    return audio_ops.pad({"source": source, "frames": len(source)})["source"]


class UserStep(NamedTuple):
    """One operator."""

    by_hand: Any
    """As users write it."""
    known: Any = None
    """Of `pecan_ray.images`; None: it is the user's own."""


CROP = images.RandomCrop()
FIRST, LAST = (UserStep(opencv, images.Decode()), UserStep(CROP)), (UserStep(resize, images.Resize(SIDE, SIDE)),)
WARPED = (
    UserStep(image_ops.random_flip, images.RandomFlip()),
    UserStep(image_ops.random_rotate, images.RandomRotate()),
    UserStep(image_ops.random_shear, images.RandomShear()),
)
PIPELINES: dict[str, tuple[UserStep, ...]] = {
    "photographs": (*FIRST, *LAST),
    "normalized": (*FIRST, *LAST, UserStep(mirror), UserStep(cast), UserStep(normalize)),
    "figure-3": (*FIRST, *WARPED, *LAST),
    "rand-augment": (
        *(*FIRST, *LAST, UserStep(augmentation.rand_augment)),
        *(UserStep(mirror), UserStep(cast), UserStep(normalize)),
    ),
    "simclr": (
        *(FIRST[0], UserStep(image_ops.duplicate_and_cast), UserStep(image_ops.crop_and_resize)),
        *map(UserStep, (image_ops.random_flip_views, image_ops.color_jitter, image_ops.gaussian_blur, image_ops.clip)),
        *map(UserStep, (image_ops.to_grayscale, image_ops.tile, image_ops.reshape)),
    ),
    "audio": (UserStep(audio_ops.decode), UserStep(spectrogram), UserStep(masked), UserStep(padded)),
    "resnet50": (*FIRST, UserStep(cast), *WARPED, *LAST, UserStep(subtract_mean)),
}


def steps_of(name: str) -> tuple[UserStep, ...] | None:
    """Return the operators of a pipeline; None where its library is not installed."""
    if name in PIPELINES:
        return PIPELINES[name]
    try:
        return FIRST[0], UserStep(LIBRARIES[name]())
    except ImportError as error:
        print(f"{name} is left out: {error}")
        return None


def by_hand(files: list[bytes], steps: Sequence[UserStep], threads: int) -> float:
    """Return the CPU seconds of an image with functions on threads."""

    def work(number: int) -> Any:
        image, rng = files[number], np.random.default_rng(number)
        for step in steps:
            image = step.by_hand(image, rng) if wants_rng(step.by_hand) else step.by_hand(image)
        return image

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
        began = time.process_time()
        for start in range(0, len(files), BATCH):
            np.stack(list(pool.map(work, range(start, min(start + BATCH, len(files))))))
        return (time.process_time() - began) / len(files)


def pipeline(files: list[bytes], steps: Sequence[UserStep]) -> pecan.PecanPipeline:
    """Return the pipeline."""
    pipe = pecan.PecanPipeline(pecan.sources.Items([{"image": file} for file in files]), name="photographs")
    for step in steps:
        pipe = pipe.map(step.known or step.by_hand, on="image")
    return pipe.batch(BATCH)


def pixels(plan: Plan) -> list[Any]:
    """Return the images of a plan."""
    running = build_engine("python", plan, EngineOptions(order="strict"), HeapSlots())
    found = [np.array(produced.columns["image"]) for produced in running.batches(AllLeases(list(plan.sources()), 0, 1))]
    running.close()
    return found


def by_engine(plan: Plan, threads: int, slots: OneSlot) -> float:
    """Return the CPU seconds of an image with our engine."""
    running = build_engine("python", plan, EngineOptions(threads=threads), slots)
    rows, began = 0, time.process_time()
    for produced in running.batches(AllLeases(list(plan.sources()), 0, 1)):
        rows += produced.rows
        if produced.slot is not None:
            produced.slot.release()
    running.close()
    return (time.process_time() - began) / rows


def apart_from(usual: Plan, plan: Plan, files: list[bytes], steps: Sequence[UserStep]) -> float:
    """Return the mean absolute difference of a plan's values from those of another order."""
    transform = steps[-1].by_hand
    if len(steps) == 2:  # it draws from a generator of its own
        mine, theirs = ([op.fn for op in one.ops if isinstance(op, Map)] for one in (usual, plan))
        return difference(mine, theirs, transform, files)
    pairs = zip(pixels(plan), pixels(usual), strict=True)
    return float(np.mean([np.abs(a.astype(np.float64) - b).mean() for a, b in pairs]))


def measure(files: list[bytes], steps: Sequence[UserStep], rounds: int, threads: int) -> None:
    """Let the sides take turns, and print what each did."""
    usual = pipeline(files, steps).plan
    plans = {WRITTEN: usual}
    for mode in MODES:
        ordering = order_plan(OrderRequest(usual, mode=mode, seconds=SAMPLE_S))
        plans[f'mode "{mode}"'], pushed = apply_rewrites(ordering.plan, "python", ordering.decoders)
        order = " -> ".join(op.name for op in ordering.plan.ops)
        print(f'  mode "{mode}": {"; ".join([order, *(one.description() for one in pushed)])}')
    times: dict[str, list[float]] = {BY_HAND: [], **{name: [] for name in plans}}
    slots = OneSlot()
    for _ in range(rounds):
        times[BY_HAND].append(by_hand(files, steps, threads))
        for name, plan in plans.items():
            times[name].append(by_engine(plan, threads, slots))
    base = statistics.median(times[WRITTEN])
    for name, taken in times.items():
        each = statistics.median(taken)
        apart = apart_from(usual, plans.get(name, usual), files, steps)
        ratios = sorted(one / other for one, other in zip(times[WRITTEN], taken, strict=True))
        print(
            f"  {name:18s} {1 / each:5.0f} a second of a CPU, {base / each:.2f}x "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}), mean difference {apart:.3f}",
            flush=True,
        )


def main() -> None:
    """Measure, and print a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [*PIPELINES, *LIBRARIES]
    parser.add_argument("--data", help="folder of folders of JPEGs (default: photographs derived from scikit-image's)")
    parser.add_argument("--pipelines", nargs="+", choices=names, default=names)
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    library = part_decoding.library()
    print(f"{args.threads} threads" + (f"; {library}" if isinstance(library, str) else ""))
    cv2.setNumThreads(1)
    small = photographs(Path(args.data or derived_photographs()), args.images)
    for name, shape in SIZES.items():
        files = small if name == "small" else [enlarged(file, shape) for file in small]
        for pipeline_name in args.pipelines:
            if pipeline_name == "audio" or (steps := steps_of(pipeline_name)) is None:
                continue
            mean = statistics.mean(map(len, files)) / 1000
            print(f"{pipeline_name}, {name}: {len(files)} photographs of {mean:.0f} KB on average")
            measure(files, steps, args.rounds, args.threads)
    if "audio" in args.pipelines:
        files = [clip["audio"] for clip in itertools.islice(itertools.cycle(audio.clips()), args.images)]
        print(f"audio: {len(files)} clips of speech")
        measure(files, PIPELINES["audio"], args.rounds, args.threads)


if __name__ == "__main__":
    main()
