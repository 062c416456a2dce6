"""Does the order in which data come hurt the model?  Small networks trained with and without it, several seeds each.

    python -m benchmarks.accuracy_orders [--models cached-first detector] [--seeds 5] [--epochs N] [--json FILE]

- cached-first: a classifier of scikit-learn's handwritten digits, whose job reads with three others what a node's cache
  has first.  The cache has room for a fifth of the data.  Splits hold 20 images in the order of the file, which is that
  of the people who wrote them.  The order of splits and what is cached come from the queue and the block cache of live
  jobs.
- detector: a network that finds one object in an image, with a pipeline of own functions in mode "pecan", which
  resizes before it casts and changes the light.  Images are composed: a crop of one of scikit-learn's two photographs
  and a handwritten digit on it, of a drawn size, place and colour, as a JPEG.

Each seed is trained both ways, from the same weights; the number is what the network gets right of images that it has
not seen, in percent: digits named, or boxes that overlap the true one by a half.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pecan_ray as pecan
from benchmarks.accuracy import BATCH, digits, network, normalize, resize
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.job.lease_requests import LEAST_LOOK
from pecan_ray.job.pass_order import Listing
from pecan_ray.job.split_queue import SplitQueue
from pecan_ray.options import ReorderMode
from pecan_ray.plan.splits import Split
from pecan_ray.sampling.random_keys import SplitOrder
from pecan_ray.storage import BlockCache
from pecan_ray.storage.ranges import FileRange

JOBS = 4
ROOM = 0.2
"""Of the data, what the cache holds."""
SPLIT = 20
"""Images of a split."""
SHUFFLE = 200
"""Images among which the next one is drawn, as `shuffle(200)` draws it."""
OBJECT_BYTES = 1 << 16
"""Of the object in which a split lies: only which ones are cached counts."""
COMPOSED, SEEN_AT, GRID = 96, 32, 4
"""Side of a composed image, of what the detector sees, and of its cells."""
TRAINED, TESTED = 800, 300
"""Composed images."""
OVERLAP = 0.5


# --- cached first -------------------------------------------------------------------------------------------


class SplitReader:
    """A job as far as it reads: the queue of a live job, and its view of the node's cache."""

    def __init__(self, seed: int, splits: int, cache: BlockCache) -> None:
        listing = Listing()
        listing.add([Split(index) for index in range(splits)])
        listing.complete = True
        self._queue, self._cache = SplitQueue(listing, 0, SplitOrder(seed)), cache
        self._at_hand = tuple[int, ...]()
        self.fetched = 0
        self.epochs: list[list[int]] = [[]]
        """The splits of each epoch, in the order in which they were read."""

    def step(self, cached_first: bool) -> None:
        """Read one split."""
        lease = self._queue.take(deque(self._at_hand))
        if lease is None:
            self._queue.begin(len(self.epochs), 0)
            self.epochs.append([])
            return
        self._cache.read(self._ask, object_of(lease.split.index), 0, OBJECT_BYTES, "v1")
        self.epochs[-1].append(lease.split.index)
        offered = self._queue.peek_splits(LEAST_LOOK) if cached_first else []
        self._at_hand = tuple(
            one.index for one in offered if self._cache.holds(object_of(one.index), "v1", 0, OBJECT_BYTES)
        )

    def _ask(self, start: int, stop: int | None, version: str) -> FileRange:
        self.fetched += 1
        end = OBJECT_BYTES if stop is None else min(stop, OBJECT_BYTES)
        return FileRange(bytes(end - start), OBJECT_BYTES, version)


def object_of(split: int) -> str:
    """Return the object in which a split lies."""
    return f"s3://digits/{split:04}"


def split_orders(seed: int, splits: int, epochs: int, cached_first: bool) -> tuple[list[list[int]], float]:
    """Return the order of splits in each epoch of one of four jobs, and the passes that all read for an epoch."""
    with tempfile.TemporaryDirectory() as folder:
        room = int(ROOM * splits) * OBJECT_BYTES
        caches = [BlockCache(Path(folder), room, job=f"job-{number}") for number in range(JOBS)]
        readers = [SplitReader(1000 * seed + number, splits, cache) for number, cache in enumerate(caches)]
        while any(len(reader.epochs) <= epochs for reader in readers):
            for reader in readers:
                if len(reader.epochs) <= epochs:
                    reader.step(cached_first)
        for cache in caches:
            cache.close()
    return readers[0].epochs[:epochs], sum(reader.fetched for reader in readers) / splits / epochs


def shuffled(elements: list[int], seed: int) -> Iterator[int]:
    """Yield elements, each drawn from the next `SHUFFLE`."""
    dice = np.random.default_rng(seed)
    waiting: list[int] = []
    for element in elements:
        waiting.append(element)
        if len(waiting) == SHUFFLE:
            yield waiting.pop(int(dice.integers(SHUFFLE)))
    dice.shuffle(waiting)
    yield from waiting


def train_classifier(seed: int, epochs: int, cached_first: bool) -> float:
    """Train on digits in the order in which a job reads them; return the accuracy in percent."""
    torch.manual_seed(seed)
    (images, labels), (test_images, test_labels) = digits(0)
    as_filed = np.argsort(np.random.default_rng(0).permutation(len(labels) + len(test_labels))[: len(labels)])
    pixels = torch.from_numpy(np.stack([normalize(resize(image)) for image in images[as_filed]]))
    targets = torch.from_numpy(labels[as_filed])
    orders, _ = split_orders(seed, math.ceil(len(labels) / SPLIT), epochs, cached_first)
    model = network(1)
    fit = Fit(model, epochs * (len(labels) // BATCH))
    for epoch, order in enumerate(orders):
        rows = [row for split in order for row in range(split * SPLIT, min(len(labels), (split + 1) * SPLIT))]
        read = list(shuffled(rows, 1000 * seed + epoch))
        for begin in range(0, len(read) - BATCH + 1, BATCH):
            batch = read[begin : begin + BATCH]
            fit.step(torch.nn.functional.cross_entropy(model(pixels[batch]), targets[batch]))
    model.eval()
    with torch.no_grad():
        found = model(torch.from_numpy(np.stack([normalize(resize(image)) for image in test_images]))).argmax(1)
    return 100.0 * float((found.numpy() == test_labels).mean())


class Fit:
    """AdamW with a cosine schedule."""

    def __init__(self, model: torch.nn.Module, steps: int) -> None:
        self._optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, steps)

    def step(self, loss: Any) -> None:
        """Take a step down."""
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._schedule.step()


# --- detector -----------------------------------------------------------------------------------------------


def composed(digits_: Any, photographs: Any, dice: np.random.Generator) -> tuple[bytes, Any]:
    """Return a crop of a photograph with a digit on it, as a JPEG, and its box: top, left, bottom, right, as shares."""
    photograph = photographs[dice.integers(len(photographs))]
    top, left = (int(dice.integers(0, size - COMPOSED)) for size in photograph.shape[:2])
    image = photograph[top : top + COMPOSED, left : left + COMPOSED].astype(np.float32)
    side = int(dice.integers(20, 44))
    digit = cv2.resize(digits_[dice.integers(len(digits_))].reshape(8, 8).astype(np.float32) / 16, (side, side))
    down, across = (int(dice.integers(0, COMPOSED - side)) for _ in range(2))
    strength = digit[..., np.newaxis]
    under = image[down : down + side, across : across + side]
    image[down : down + side, across : across + side] = (1 - strength) * under + strength * dice.uniform(0, 255, 3)
    box = np.array([down, across, down + side, across + side], np.float32) / COMPOSED
    return bytes(cv2.imencode(".jpg", image.astype(np.uint8))[1]), box


def composed_items(seed: int, count: int, tested: bool) -> list[dict[str, Any]]:
    """Return composed images; those for testing show digits that are shown in no others."""
    images = load_digits().data
    half = len(images) * 4 // 5
    mine, dice = images[half:] if tested else images[:half], np.random.default_rng((seed, tested))
    photographs = load_sample_images().images
    found = (composed(mine, photographs, dice) for _ in range(count))
    return [{"image": image, "box": box} for image, box in found]


def decode(image: Any) -> Any:
    """Decode a JPEG."""
    return cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)


def cast(image: Any) -> Any:
    """Cast to float32, from 0 to 1."""
    return image.astype(np.float32) / np.float32(255)


def light(image: Any, rng: np.random.Generator) -> Any:
    """Change contrast and brightness."""
    return image * np.float32(rng.uniform(0.8, 1.2)) + np.float32(rng.uniform(-0.1, 0.1))


def shrink(image: Any) -> Any:
    """Resize to what the detector sees."""
    return cv2.resize(image, (SEEN_AT, SEEN_AT), interpolation=cv2.INTER_AREA)


def flip(element: Any, rng: np.random.Generator) -> Any:
    """Mirror image and box, half of the time."""
    if rng.random() < 0.5:
        return element
    top, left, bottom, right = element["box"]
    box = np.array([top, 1 - right, bottom, 1 - left], np.float32)
    return {"image": np.ascontiguousarray(element["image"][:, ::-1]), "box": box}


def detection_pipeline(seed: int, reorder: ReorderMode, count: int = TRAINED) -> pecan.PecanPipeline:
    """Return the detector's pipeline."""
    config = pecan.Config(reorder=reorder, order_folder="", sample_seconds=30.0)
    source = pecan.sources.Items(composed_items(0, count, tested=False))
    pipe = pecan.PecanPipeline(source, name="composed", seed=seed, config=config).shuffle(count)
    pipe = pipe.map(decode, on="image").map(cast, on="image").map(light, on="image").map(shrink, on="image")
    return pipe.map(flip).batch(BATCH, drop_remainder=True)


def detector() -> torch.nn.Module:
    """Return a network that says of each cell whether the object's centre is in it, and where its box is."""
    nn = torch.nn
    layers: list[torch.nn.Module] = []
    for taken, given in ((3, 12), (12, 24), (24, 32)):
        layers += [nn.Conv2d(taken, given, 3, padding=1), nn.BatchNorm2d(given), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 5, 1))


def cells_of(boxes: Any) -> Any:
    """Return the number of the cell that holds each box's centre."""
    centre = ((boxes[:, :2] + boxes[:, 2:]) / 2 * GRID).long().clamp(0, GRID - 1)
    return centre[:, 0] * GRID + centre[:, 1]


def train_detector(seed: int, epochs: int, reorder: ReorderMode, trained: int = TRAINED, tested: int = TESTED) -> float:
    """Train from scratch; return the share of test images whose box was found, in percent."""
    torch.manual_seed(seed)
    model = detector()
    fit = Fit(model, epochs * (trained // BATCH))
    with tempfile.TemporaryDirectory() as folder:
        pipe = detection_pipeline(seed, reorder, trained)
        if reorder != "off":  # with a seed, an order that changes results is run only where it is pinned
            pipe.save_order(Path(folder) / "order.json")
            pipe = pipe.with_config(order_file=Path(folder) / "order.json")
        for batch in pipe.iter_batches(epochs=epochs, format="torch", debug=True):
            said = model(batch["image"].permute(0, 3, 1, 2)).flatten(2)
            boxes: Any = batch["box"]
            cells = cells_of(boxes)
            near = (said[torch.arange(len(cells)), 1:, cells] - boxes).abs().sum(1).mean()
            fit.step(torch.nn.functional.cross_entropy(said[:, 0], cells) + 4 * near)
    items = composed_items(1, tested, tested=True)
    images = torch.from_numpy(np.stack([shrink(cast(decode(item["image"]))) for item in items])).permute(0, 3, 1, 2)
    truth = torch.from_numpy(np.stack([item["box"] for item in items]))
    model.eval()
    with torch.no_grad():
        said = model(images).flatten(2)
        found = said[torch.arange(tested), 1:, said[:, 0].argmax(1)]
    return 100.0 * float((overlap(found, truth) >= OVERLAP).float().mean())


def overlap(one: Any, other: Any) -> Any:
    """Return intersection over union of boxes, pair by pair."""
    sides = (torch.minimum(one[:, 2:], other[:, 2:]) - torch.maximum(one[:, :2], other[:, :2])).clamp(min=0)
    area = [(boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1) for boxes in (one, other)]
    return sides.prod(1) / (area[0] + area[1] - sides.prod(1)).clamp(min=1e-9)


# --- both ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TwoWays:
    """A model, and its two orders."""

    plain: str
    changed: str
    train: Callable[[int, int, bool], float]
    """Of seed, epochs, and whether the order is the changed one."""
    epochs: int
    say: Callable[[], str]
    """What the order changes."""


def say_passes() -> str:
    """Say what is read from the bucket, which shows that the order is another one."""
    count = math.ceil(len(digits(0)[0][1]) / SPLIT)
    passes = [split_orders(0, count, 10, cached_first)[1] for cached_first in (False, True)]
    return (
        f"{JOBS} jobs read the data {passes[0]:.2f} times an epoch, each for itself, and {passes[1]:.2f} cached first"
    )


def say_order() -> str:
    """Say which order AutoOrder takes."""
    found = order_plan(OrderRequest(detection_pipeline(0, "pecan").plan, mode="pecan"))
    return ", ".join(op.name for op in found.plan.ops)


MODELS = {
    "cached-first": TwoWays("each for itself", "cached first", train_classifier, 10, say_passes),
    "detector": TwoWays(
        "as written",
        "AutoOrder",
        lambda seed, epochs, changed: train_detector(seed, epochs, "pecan" if changed else "off"),
        20,
        say_order,
    ),
}


def compare(name: str, seeds: int, epochs: int | None) -> dict[str, list[float]]:
    """Train both ways, print, and return what each seed got right."""
    model = MODELS[name]
    print(f"{name}: {model.say()}", flush=True)
    right: dict[str, list[float]] = {model.plain: [], model.changed: []}
    for seed in range(seeds):
        for changed, way in enumerate(right):
            right[way].append(model.train(seed, epochs or model.epochs, bool(changed)))
            print(f"{name}, seed {seed}, {way}: {right[way][-1]:.2f} %", flush=True)
    for way, values in right.items():
        print(f"{name}, {way}: {statistics.mean(values):.2f} % (± {statistics.stdev(values):.2f} between seeds)")
    pairs = [after - before for before, after in zip(*right.values(), strict=True)]
    print(f"{name}, difference: {statistics.mean(pairs):+.2f} points (± {statistics.stdev(pairs):.2f} between seeds)")
    return right


def main() -> None:
    """Train all, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.seeds < 2:
        parser.error("seeds differ only where there are two")
    found = {name: compare(name, asked.seeds, asked.epochs) for name in asked.models}
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
