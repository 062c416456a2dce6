"""Images per second of one local python worker, beside Ray Data and the same functions on threads in this process.

    python benchmarks/ingest.py [--data FOLDER] [--images 512] [--rounds 3]

All sides run in one process tree and one run, alternating; medians and spreads are printed, and written as JSON
by --json FILE.  JPEG -> random resized crop 224 -> flip -> normalize to float32 -> batch 64.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import ray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pecan_ray as pecan
from examples.photographs import derived_photographs

BATCH = 64
MEAN = np.array([123.68, 116.78, 103.94], np.float32)


def decode(image: bytes) -> Any:
    """Decode a JPEG to RGB uint8."""
    return cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR_RGB)


def random_crop(image: Any, rng: np.random.Generator) -> Any:
    """Cut out 8 to 100 % of the area and resize to 224 x 224."""
    height, width = image.shape[:2]
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1.0)
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if w <= width and h <= height:
            break
    else:
        w, h = width, height
    x, y = rng.integers(0, width - w + 1), rng.integers(0, height - h + 1)
    return cv2.resize(image[y : y + h, x : x + w], (224, 224))


def random_flip(image: Any, rng: np.random.Generator) -> Any:
    """Flip left and right half of the time."""
    return image[:, ::-1] if rng.random() < 0.5 else image


def normalize(image: Any) -> Any:
    """Subtract the channel means."""
    return image.astype(np.float32) - MEAN


def whole(image: bytes, rng: np.random.Generator) -> Any:
    """All steps, one after the other."""
    return normalize(random_flip(random_crop(decode(image), rng), rng))


def by_pecan(root: str, passes: int) -> Iterator[int]:
    """One local worker with a thread per CPU; all passes are one epoch, as they are one list of files below."""
    pipe = (
        pecan.PecanPipeline(pecan.sources.ImageFolder(root), name="ingest")
        .repeat(passes)
        .map(decode, on="image")
        .map(random_crop, on="image")
        .map(random_flip, on="image")
        .map(normalize, on="image")
        .map(lambda element: {"image": element["image"], "label": element["label"]}, name="select")
        .batch(BATCH)
    )
    with pipe.iter_batches(workers=pecan.Workers(local=1)) as batches:
        for batch in batches:
            yield len(batch["image"])


def by_threads(root: str, passes: int) -> Iterator[int]:
    """The same functions on threads in this process, each writing into its row of the batch."""
    files = sorted(Path(root).rglob("*.jpg")) * passes
    rng = np.random.default_rng(0)

    def fill(batch: Any, row: int, file: Path) -> None:
        batch[row] = whole(file.read_bytes(), rng)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pending: list[tuple[Any, list[Any]]] = []
        for start in range(0, len(files), BATCH):
            chunk = files[start : start + BATCH]
            batch = np.empty((len(chunk), 224, 224, 3), np.float32)
            pending.append((batch, [pool.submit(fill, batch, row, file) for row, file in enumerate(chunk)]))
            if len(pending) > 2:
                yield _finish(pending.pop(0))
        while pending:
            yield _finish(pending.pop(0))


def _finish(job: tuple[Any, list[Any]]) -> int:
    for future in job[1]:
        future.result()
    return len(job[0])


def by_ray_data(root: str, passes: int) -> Iterator[int]:
    """Ray Data's map and iter_batches, with its own defaults."""
    rng = np.random.default_rng(0)
    files = [str(path) for path in sorted(Path(root).rglob("*.jpg"))]
    for _ in range(passes):
        data = ray.data.read_binary_files(files).map(lambda row: {"image": whole(row["bytes"], rng)})
        for batch in data.iter_batches(batch_size=BATCH):
            yield len(batch["image"])


SIDES: dict[str, Callable[[str, int], Iterator[int]]] = {
    "pecan_ray, one local worker": by_pecan,
    "threads in this process": by_threads,
    "Ray Data": by_ray_data,
}


def rate(side: Callable[[str, int], Iterator[int]], root: str, passes: int) -> float:
    """Images per second from the first batch on: start-up has its own benchmark."""
    counted, began = 0, None
    for size in side(root, passes):
        if began is None:
            began = time.perf_counter()
        else:
            counted += size
    assert began is not None
    return counted / (time.perf_counter() - began)


def main() -> None:
    """Run all sides in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of folders of JPEGs (default: photographs derived from scikit-image's)")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--passes", type=int, default=4, help="passes over the images in one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    root = args.data or str(derived_photographs(args.images))
    cv2.setNumThreads(1)
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    measured: dict[str, list[float]] = {name: [] for name in SIDES}
    for number in range(args.rounds):
        for name, side in SIDES.items():
            measured[name].append(rate(side, root, args.passes))
            print(f"round {number + 1}: {name}: {measured[name][-1]:.0f} images/s", flush=True)
    report(measured, args.json)


def report(measured: dict[str, list[float]], file: Path | None) -> None:
    """Print medians, spreads and ratios, and write them down."""
    medians = {name: statistics.median(rates) for name, rates in measured.items()}
    ours = medians["pecan_ray, one local worker"]
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    print(f"\n{machine}; medians of {len(next(iter(measured.values())))} rounds\n")
    for name, rates in measured.items():
        spread = f"{min(rates):.0f} to {max(rates):.0f}"
        print(f"{name:30s} {medians[name]:7.0f} images/s  ({spread})  pecan_ray is {ours / medians[name]:.2f}x")
    if file is not None:
        file.write_text(json.dumps({"machine": machine, "images_per_second": measured}, indent=1))


if __name__ == "__main__":
    main()
