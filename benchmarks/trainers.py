"""What the ways to a training loop cost: two workers of Ray Train against two plain ranks, and `device=` against none.

    python -m benchmarks.trainers [--rounds 5] [--batches 3000] [--step MS] [--json FILE]

Both sides of a pair run in turn, on a Ray cluster of this machine, and read the same pipeline: rows of 4 KB in batches
of 32, made by one local worker.  A loop does nothing but take batches, so that what is measured is the way to it; with
`--step MS` it holds each batch for as long.  Rates are batches per second of one rank, from its 20th batch on.  Printed
are medians over the rounds, and the median of the ratios of neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import ray
import ray.train
from ray.train.torch import TorchTrainer

import pecan_ray as pecan
from pecan_ray.integrations import PecanDataConfig

WARM = 20
"""Batches before the clock starts."""
ROWS = 8192
EPOCHS = 1000
"""More than a turn takes: each ends by its time, at the same batch for both ranks."""
WORKERS = pecan.Workers(local=1)


def pipeline() -> pecan.PecanPipeline:
    """Return batches of `x` float32 [32, 1024]."""
    x = np.random.default_rng(0).normal(size=(ROWS, 1024)).astype(np.float32)
    return pecan.PecanPipeline(pecan.sources.Arrays(x=x), name="rows").map(lambda x: x * 2, on="x").batch(32)


def rate(batches: Iterable[Any], count: int, step_s: float) -> float:
    """Return how many batches a second came, of so many."""
    began = 0.0
    for number, _ in enumerate(batches):
        if number == WARM:
            began = time.perf_counter()
        if number == WARM + count:
            return count / (time.perf_counter() - began)
        if step_s:
            time.sleep(step_s)
    raise RuntimeError("the epochs were over before the turn was")


def plain_ranks(count: int, step_s: float) -> float:
    """Two tasks of Ray, each a rank of one job; return the slower one's rate."""
    job = f"plain-{time.monotonic_ns()}"

    @ray.remote(num_cpus=1)
    def loop(rank: int) -> float:
        with pipeline().iter_batches(
            rank=rank, world_size=2, job=job, epochs=EPOCHS, format="torch", workers=WORKERS
        ) as batches:
            return rate(batches, count, step_s)

    return min(ray.get([loop.remote(rank) for rank in range(2)]))


def ray_train_ranks(count: int, step_s: float) -> float:
    """Two workers of a TorchTrainer, which read their shards; return the slower one's rate."""

    def loop(config: dict[str, Any]) -> None:
        shard: Any = ray.train.get_dataset_shard("train")
        epochs = (batch for _ in range(EPOCHS) for batch in shard.iter_torch_batches())
        found = rate(epochs, count, step_s)
        shard.close()
        rank = ray.train.get_context().get_world_rank()
        (Path(config["folder"]) / str(rank)).write_text(str(found))

    with tempfile.TemporaryDirectory(prefix="pecan-train-") as folder:
        datasets: Any = {"train": pipeline()}
        TorchTrainer(
            loop,
            train_loop_config={"folder": folder},
            datasets=datasets,
            dataset_config=PecanDataConfig(epochs=EPOCHS, options={"train": {"workers": WORKERS}}),
            scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
            run_config=ray.train.RunConfig(storage_path=folder),
        ).fit()
        return min(float((Path(folder) / str(rank)).read_text()) for rank in range(2))


def without_device(count: int, step_s: float) -> float:
    """One trainer, of tensors as they come."""
    with pipeline().iter_batches(epochs=EPOCHS, format="torch", workers=WORKERS) as batches:
        return rate(batches, count, step_s)


def with_device(count: int, step_s: float) -> float:
    """One trainer, of tensors for the CPU."""
    with pipeline().iter_batches(epochs=EPOCHS, format="torch", device="cpu", workers=WORKERS) as batches:
        return rate(batches, count, step_s)


PAIRS: dict[str, tuple[Callable[[int, float], float], Callable[[int, float], float]]] = {
    "TorchTrainer / plain ranks": (ray_train_ranks, plain_ranks),
    'device="cpu" / none': (with_device, without_device),
}


def main() -> None:
    """Measure every pair and print its line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=3000, help="of a turn and rank")
    parser.add_argument("--step", type=float, default=0.0, help="milliseconds for which a loop holds a batch")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    print(f"{machine}; batches per second and rank, medians of {asked.rounds} rounds")
    root = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.getenv("PYTHONPATH"))))
    ray.init(address="local", num_cpus=4, log_to_driver=False)
    facts: dict[str, Any] = {"machine": machine, "pairs": {}}
    for name, (side, other) in PAIRS.items():
        rates: list[tuple[float, float]] = []
        for number in range(asked.rounds):
            first, second = (side, other) if number % 2 == 0 else (other, side)
            found = {one: one(asked.batches, asked.step / 1000) for one in (first, second)}
            rates.append((found[side], found[other]))
        ratio = statistics.median(one / two for one, two in rates)
        medians = [statistics.median(column) for column in zip(*rates, strict=True)]
        print(f"{name:28s} {medians[0]:8.0f} / {medians[1]:8.0f}   {ratio:.3f}", flush=True)
        facts["pairs"][name] = {"rates": rates, "ratio": ratio}
    if asked.json:
        asked.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
