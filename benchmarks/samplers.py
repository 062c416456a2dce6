"""Samplers of torch: samples per second and CPU time per sample with DataLoader and here, as ratios, in one run.

    python -m benchmarks.samplers [--cases NAME ...] [--seconds 8] [--rounds 5] [--json FILE]

A data set of 100,000 samples, each 3,000 random numbers that are sorted, in batches of 64; two worker processes on each
side, in turns.  Both are measured from two seconds after the first batch on; CPU time is that of all processes.
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
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil
import ray
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

import pecan_ray as pecan
from benchmarks.one_sequence import SETTLING_S

SAMPLES, NUMBERS, BATCH, WORKERS = 100_000, 3_000, 64, 2


class Sorted(Dataset[dict[str, Any]]):
    """Samples that take about 40 microseconds, made of their index alone."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        numbers = np.random.default_rng(int(index)).random(NUMBERS, np.float32)
        return {"x": np.sort(numbers), "index": np.int64(index)}


def _weighted() -> Sampler[int]:
    return WeightedRandomSampler(np.random.default_rng(0).random(SAMPLES).tolist(), SAMPLES)


CASES: dict[str, Callable[[], Sampler[int]]] = {
    "random": lambda: RandomSampler(Sorted()),
    "subset": lambda: SubsetRandomSampler(range(0, SAMPLES, 2)),
    "weighted": _weighted,
}


def cpu_s() -> float:
    """Return the CPU time of this process and all that it has started and that still run."""
    used = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            used += sum(process.cpu_times()[:2])
        except psutil.Error:
            continue
    return used


def cost(batches: Iterator[Any], seconds: float) -> tuple[float, float]:
    """Return samples per second, and CPU time of a sample in microseconds."""
    next(batches)
    settled = time.perf_counter() + SETTLING_S
    while time.perf_counter() < settled:
        next(batches)
    began, cpu, count = time.perf_counter(), cpu_s(), 0
    while time.perf_counter() - began < seconds:
        next(batches)
        count += BATCH
    return count / (time.perf_counter() - began), 1e6 * (cpu_s() - cpu) / count


def of_torch(sampler: Sampler[int]) -> Generator[Any, None, None]:
    """Yield DataLoader's batches, epoch after epoch."""
    loader = DataLoader(Sorted(), BATCH, sampler=sampler, num_workers=WORKERS, persistent_workers=True)
    while True:
        yield from loader


def ours(sampler: Sampler[int]) -> Generator[Any, None, None]:
    """Yield our batches, epoch after epoch."""
    config = pecan.Config(reorder="off", progress=False)
    pipe = pecan.PecanPipeline.from_torch_dataset(Sorted(), sampler=sampler, config=config).batch(BATCH)
    with pipe.iter_batches(epochs=None, workers=pecan.Workers(local=WORKERS)) as batches:
        yield from batches


def main(argv: list[str] | None = None) -> int:
    """Measure both sides in turns, and print the medians of the rounds' ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    ray.init(log_to_driver=False, logging_level=logging.WARNING)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in options.cases}
    for _ in range(options.rounds):
        for name in options.cases:
            with closing(of_torch(CASES[name]())) as batches:
                their_speed, their_cpu = cost(batches, options.seconds)
            with closing(ours(CASES[name]())) as batches:
                speed, cpu = cost(batches, options.seconds)
            found[name].append((speed / their_speed, their_cpu / cpu))
            print(
                f"  {name}: {speed:,.0f} samples/s and {cpu:.0f} us CPU; {their_speed:,.0f} and {their_cpu:.0f}",
                flush=True,
            )
    for name, ratios in found.items():
        speeds, cpus = zip(*ratios, strict=True)
        spread = f"{statistics.median(speeds):.2f} ({min(speeds):.2f} to {max(speeds):.2f})"
        print(f"{name}: {spread} of DataLoader's speed, {statistics.median(cpus):.2f} by CPU")
    told = {"machine": f"{os.cpu_count()} CPUs, {platform.machine()}", "speed and CPU against DataLoader": found}
    print(json.dumps(told))
    if options.json:
        Path(options.json).write_text(json.dumps(told, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
