"""Residual networks trained on a GPU: fed by this library, by torch's DataLoader, and with batches that are there.

    python -m benchmarks.gpu_training [--models resnet50 resnet18] [--rounds 2] [--warm 10] [--seconds 8]

Photographs of about 500 x 375 are decoded, cropped at random, resized to 224 x 224 and mirrored by the same functions
on either side, go to the GPU as uint8, and are normalized there; the networks are torchvision's, in bfloat16, channels
last, trained by SGD.  A side has `--warm` seconds for its workers to start, and then its images a second count.  Sides
take turns; printed are medians over the rounds, and over the bound: the same steps on batches that lie on the GPU.
Needs torchvision and a GPU (`--device cpu` runs it anywhere, to try it).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cv2
import numpy as np
import ray
import torch
import torchvision

import pecan_ray as pecan
from examples.photographs import derived_photographs
from pecan_ray import images

SIDE = 224
EPOCHS = 10_000
"""More than a turn takes."""


def mirror(image: Any, rng: np.random.Generator) -> Any:
    """Mirror half of the images."""
    return image[:, ::-1] if rng.random() < 0.5 else image


def training_step(model: str, device: str) -> Callable[[Any], None]:
    """Return what trains a network of torchvision on a batch of uint8 [n, 224, 224, 3] on the device."""
    network = getattr(torchvision.models, model)().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    mean = torch.tensor([123.68, 116.78, 103.94], device=device).view(1, 3, 1, 1)
    labels: dict[int, Any] = {}

    def step(batch: Any) -> None:
        count = len(batch)
        labels.setdefault(count, torch.zeros(count, dtype=torch.long, device=device))
        pixels = (batch.permute(0, 3, 1, 2).float() - mean) / 58.0
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(network(pixels), labels[count])
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimizer.step()

    return step


@contextmanager
def resident(files: list[bytes], batch: int, device: str) -> Iterator[Iterable[Any]]:
    """Give batches that are on the device already."""
    made = [torch.randint(0, 256, (batch, SIDE, SIDE, 3), dtype=torch.uint8, device=device) for _ in range(4)]
    yield itertools.cycle(made)


def by_pecan(workers: pecan.Workers | None) -> Any:
    """Return the side of this library, with so many workers, or as many as AutoPlacement takes."""

    @contextmanager
    def side(files: list[bytes], batch: int, device: str) -> Iterator[Iterable[Any]]:
        source = pecan.sources.Items([{"image": file} for file in files])
        pipe = pecan.PecanPipeline(source, name="photographs")
        for op in (images.Decode(), images.RandomCrop(), images.Resize(SIDE, SIDE), mirror):
            pipe = pipe.map(op, on="image")
        chosen = pipe.shuffle(len(files)).repeat().batch(batch)
        with chosen.iter_batches(format="torch", device=device, workers=workers) as batches:
            yield (one["image"] for one in batches)

    return side


class Photographs(torch.utils.data.Dataset[Any]):
    """The same work as a data set of torch."""

    def __init__(self, files: list[bytes]) -> None:
        self._files, self._crop = files, images.RandomCrop()

    def __len__(self) -> int:
        return len(self._files) * EPOCHS

    def __getitem__(self, number: int) -> Any:
        rng = np.random.default_rng(number)
        encoded = np.frombuffer(self._files[number % len(self._files)], np.uint8)
        decoded = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
        assert decoded is not None
        image = cv2.resize(self._crop(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB), rng), (SIDE, SIDE))
        return torch.from_numpy(np.ascontiguousarray(mirror(image, rng)))


def alone(_: int) -> None:
    """Let OpenCV use one thread in a process of the loader."""
    cv2.setNumThreads(1)


@contextmanager
def data_loader(files: list[bytes], batch: int, device: str) -> Iterator[Iterable[Any]]:
    """Give batches of torch's DataLoader, with a process for each CPU but one."""
    loader = torch.utils.data.DataLoader(
        Photographs(files),
        batch,
        num_workers=max(1, (os.cpu_count() or 1) - 1),
        pin_memory=device != "cpu",
        prefetch_factor=4,
        worker_init_fn=alone,
    )
    batches = iter(loader)
    yield (one.to(device, non_blocking=True) for one in batches)
    batches._shutdown_workers()  # type: ignore[attr-defined]  # ends them now; else the collector does, some time


def wait_for(device: str) -> None:
    """Return when the device has done all that it was asked for."""
    if device != "cpu":
        torch.cuda.synchronize()


def rate(batches: Iterable[Any], step: Callable[[Any], None], device: str, warm_s: float, seconds: float) -> float:
    """Return images a second, from the end of the warm-up on."""
    began, counted_from, count = time.perf_counter(), 0.0, 0
    for batch in batches:
        step(batch)
        now = time.perf_counter()
        if counted_from:
            count += len(batch)
            if now - counted_from > seconds:
                break
        elif now - began > warm_s:
            wait_for(device)
            counted_from = time.perf_counter()
    wait_for(device)
    return count / (time.perf_counter() - counted_from)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet50", "resnet18"])
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--workers", type=int, default=4, help="of this library, on this machine")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    name = torch.cuda.get_device_name() if args.device != "cpu" else "CPU"
    print(f"{name}, {os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}", flush=True)
    files = [path.read_bytes() for path in sorted(derived_photographs(args.images).rglob("*.jpg"))]
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    sides = {
        "batches on the device": resident,
        "torch DataLoader": data_loader,
        f"pecan, {args.workers} workers": by_pecan(pecan.Workers(local=args.workers)),
        "pecan, automatic": by_pecan(None),
    }
    found: dict[str, dict[str, list[float]]] = {}
    for model in args.models:
        step = training_step(model, args.device)
        rates = found.setdefault(model, {side: [] for side in sides})
        for _ in range(args.rounds):
            for side, feeding in sides.items():
                with feeding(files, args.batch, args.device) as batches:
                    rates[side].append(rate(batches, step, args.device, args.warm, args.seconds))
                print(f"  {model}, {side}: {rates[side][-1]:.0f} images a second", flush=True)
        bound = statistics.median(rates["batches on the device"])
        for side, measured in rates.items():
            middle = statistics.median(measured)
            print(f"{model:9s} {side:22s} {middle:7.0f} images a second, {middle / bound:.3f} of the bound", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
