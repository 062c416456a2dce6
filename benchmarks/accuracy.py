"""Does AutoOrder hurt the model?  A small network trained with and without it, several seeds each.

    python benchmarks/accuracy.py [--operators own known] [--seeds 5] [--epochs 30] [--json FILE]

Data: scikit-learn's 1,797 handwritten digits, enlarged to 64 x 64, 80 % for training.  Augmentations as in the
ResNet50 pipeline but for mirroring, which digits do not stand: random crop, rotation, shear, then resize and
normalize.  Model: a small convolutional network, AdamW with a cosine schedule.  As the Pecan paper's Table 3.

- own: functions over OpenCV, in mode "pecan", which exchanges them.
- known: operators of `pecan_ray.images` on JPEGs of 256 x 256, in mode "safe", which makes one warp of them and decodes
  what that needs at a reduced size.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from sklearn.datasets import load_digits

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pecan_ray as pecan
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.options import ReorderMode

LARGE, SMALL, BATCH = 64, 28, 64
PHOTOGRAPH = 256
"""Side of the JPEGs."""


def digits(seed: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return images (uint8 [n, 64, 64]) and labels for training and for testing."""
    images, labels = load_digits(return_X_y=True)
    large = np.stack(
        [
            cv2.resize((i.reshape(8, 8) * 15.9).astype(np.uint8), (LARGE, LARGE), interpolation=cv2.INTER_CUBIC)
            for i in images
        ]
    )
    order = np.random.default_rng(seed).permutation(len(labels))
    train, test = order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]
    return (large[train], labels[train]), (large[test], labels[test])


def random_crop(image: Any, rng: np.random.Generator) -> Any:
    """Cut out 60 to 100 % of each side."""
    side = int(rng.uniform(0.6, 1.0) * LARGE)
    top, left = rng.integers(0, LARGE - side + 1, 2)
    return np.ascontiguousarray(image[top : top + side, left : left + side])


def random_rotate(image: Any, rng: np.random.Generator) -> Any:
    """Rotate by up to 15 degrees."""
    height, width = image.shape
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), rng.uniform(-15, 15), 1.0)
    return cv2.warpAffine(image, matrix, (width, height))


def random_shear(image: Any, rng: np.random.Generator) -> Any:
    """Shear horizontally by up to 0.1."""
    matrix = np.array([[1, rng.uniform(-0.1, 0.1), 0], [0, 1, 0]], np.float32)
    return cv2.warpAffine(image, matrix, (image.shape[1], image.shape[0]))


def resize(image: Any) -> Any:
    """Resize to 28 x 28."""
    return cv2.resize(image, (SMALL, SMALL))


def normalize(image: Any) -> Any:
    """Scale to [-1, 1] and add the channel."""
    return (image.astype(np.float32) / 127.5 - 1.0)[np.newaxis]


def pipeline(images: Any, labels: Any, seed: int, reorder: ReorderMode) -> pecan.PecanPipeline:
    """Return the training pipeline of own functions."""
    config = pecan.Config(reorder=reorder)
    source = pecan.sources.Arrays(image=images, label=labels)
    pipe = pecan.PecanPipeline(source, name="digits", seed=seed, config=config).shuffle(len(labels))
    for op in (random_crop, random_rotate, random_shear, resize, normalize):
        pipe = pipe.map(op, on="image")
    return pipe.batch(BATCH, drop_remainder=True)


def encoded(image: Any) -> bytes:
    """Return a digit as a JPEG."""
    large = cv2.resize(image, (PHOTOGRAPH, PHOTOGRAPH), interpolation=cv2.INTER_CUBIC)
    return bytes(cv2.imencode(".jpg", large, [cv2.IMWRITE_JPEG_QUALITY, 95])[1])


def cast(image: Any) -> Any:
    """Cast to float32."""
    return image.astype(np.float32)


def scale(image: Any) -> Any:
    """Scale to [-1, 1]."""
    return image / np.float32(127.5) - np.float32(1.0)


def channels_first(image: Any) -> Any:
    """Exchange the axes as torch has them."""
    return np.ascontiguousarray(image.transpose(2, 0, 1))


def pipeline_of_known_operators(images: Any, labels: Any, seed: int, reorder: ReorderMode) -> pecan.PecanPipeline:
    """Return the training pipeline of operators that AutoOrder can merge."""
    config = pecan.Config(reorder=reorder, order_folder="", sample_seconds=30.0)
    items = [{"image": encoded(image), "label": label} for image, label in zip(images, labels, strict=True)]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items), name="digits", seed=seed, config=config)
    known = pecan.images
    crop, turn = known.RandomCrop(area=(0.36, 1.0), aspect=(0.9, 1.1)), known.RandomRotate((-15.0, 15.0))
    known_ops = (known.Decode(), crop, cast, turn, known.RandomShear(), known.Resize(SMALL, SMALL))
    for op in (*known_ops, scale, channels_first):
        pipe = pipe.map(op, on="image")
    return pipe.shuffle(len(labels)).batch(BATCH, drop_remainder=True)


PIPELINES: dict[str, tuple[Callable[..., pecan.PecanPipeline], ReorderMode, int]] = {
    "own": (pipeline, "pecan", 1),
    "known": (pipeline_of_known_operators, "safe", 3),
}
"""Pipeline, the mode that is held against the order as it is written, and channels."""


def network(channels: int) -> torch.nn.Module:
    """Return a small convolutional network."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 10),
    )  # fmt: skip


def train(operators: str, seed: int, epochs: int, reorder: ReorderMode) -> float:
    """Train from scratch and return the accuracy on the test set, in percent."""
    torch.manual_seed(seed)
    (images, labels), (test_images, test_labels) = digits(seed)
    make, _, channels = PIPELINES[operators]
    model = network(channels)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    steps = epochs * (len(labels) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with tempfile.TemporaryDirectory() as folder:
        pipe = make(images, labels, seed, reorder)
        if reorder != "off":  # with a seed, an order that changes results is run only where it is pinned
            pipe.save_order(Path(folder) / "order.json")
            pipe = pipe.with_config(order_file=Path(folder) / "order.json")
        for batch in pipe.iter_batches(epochs=epochs, format="torch", debug=True):
            optimizer.zero_grad()
            loss: Any = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    inputs = torch.from_numpy(np.stack([normalize(resize(image)) for image in test_images])).expand(
        -1, channels, -1, -1
    )
    with torch.no_grad():
        found = model(inputs).argmax(1).numpy()
    return 100.0 * float((found == test_labels).mean())


def compare(operators: str, seeds: int, epochs: int) -> dict[str, Any]:
    """Train with and without AutoOrder, and print the table."""
    make, changed, _ = PIPELINES[operators]
    modes: tuple[ReorderMode, ...] = ("off", changed)
    for mode in modes:
        found = order_plan(OrderRequest(make(*digits(0)[0], 0, mode).plan, mode=mode))
        told = [one.description() for stretch in found.sequences for one in stretch.taken_over.pushed]
        print(f"reorder={mode}: {'; '.join([', '.join(op.name for op in found.plan.ops), *told])}", flush=True)
    accuracy: dict[str, list[float]] = {mode: [] for mode in modes}
    for seed in range(seeds):
        for mode in modes:
            accuracy[mode].append(train(operators, seed, epochs, mode))
            print(f"seed {seed}, reorder={mode}: {accuracy[mode][-1]:.2f} %", flush=True)
    for name, values in accuracy.items():
        error = statistics.stdev(values) / math.sqrt(len(values))
        print(f"reorder={name:6s} {statistics.mean(values):6.2f} % +- {error:.2f} (standard error)")
    pairs = [after - before for before, after in zip(accuracy["off"], accuracy[changed], strict=True)]
    paired = statistics.stdev(pairs) / math.sqrt(len(pairs))
    print(
        f"difference: {statistics.mean(pairs):+.2f} points +- {paired:.2f} (standard error of the paired differences)"
    )
    return {"accuracy": accuracy, "difference": pairs}


def main() -> None:
    """Train all, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operators", nargs="+", choices=list(PIPELINES), default=list(PIPELINES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = {operators: compare(operators, args.seeds, args.epochs) for operators in args.operators}
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
