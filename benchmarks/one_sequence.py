"""What order="strict" costs: batches per second as one sequence, as a ratio to those of order="relaxed".

    python -m benchmarks.one_sequence [--cases NAME ...] [--seconds 8] [--rounds 5] [--json FILE]

Jobs with one and with two local workers on a Ray cluster of this machine, in turns; each is measured from two seconds
after its first batch on.  `photographs`: ResNet50's operators on JPEGs.  `tiny`: batches of 1 KB.  `shuffled`: the
photographs through a shuffle buffer, so that one worker runs the plan as a whole.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import ray

import pecan_ray as pecan
from examples import resnet50
from examples.photographs import derived_photographs
from pecan_ray.options import Order

SETTLING_S = 2.0
BATCH = 32


def photographs() -> pecan.PecanPipeline:
    """Return ResNet50's pipeline."""
    return resnet50.pipeline(str(derived_photographs(256)), batch=BATCH)


def shuffled() -> pecan.PecanPipeline:
    """Return ResNet50's pipeline with its batches' elements shuffled once more."""
    return photographs().unbatch().shuffle(4 * BATCH).batch(BATCH)


def tiny() -> pecan.PecanPipeline:
    """Return a pipeline of batches of 1 KB."""
    rows = np.zeros((100_000, 128), np.float64)
    return pecan.PecanPipeline(pecan.sources.Arrays(x=rows)).batch(1)


CASES: dict[str, Callable[[], pecan.PecanPipeline]] = {"photographs": photographs, "shuffled": shuffled, "tiny": tiny}
SIDES: tuple[tuple[Order, int], ...] = (("relaxed", 1), ("strict", 1), ("relaxed", 2), ("strict", 2))


def batches_per_s(pipe: pecan.PecanPipeline, workers: int, seconds: float, **options: Any) -> float:
    """Return the batches per second that a training loop gets that does nothing; `options`: of `iter_batches`."""
    with pipe.iter_batches(epochs=None, workers=pecan.Workers(local=workers), **options) as batches:
        next(batches)
        settled = time.perf_counter() + SETTLING_S
        while time.perf_counter() < settled:
            next(batches)
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            next(batches)
            count += 1
        return count / (time.perf_counter() - began)


def main(argv: list[str] | None = None) -> int:
    """Measure the cases and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    ray.init(log_to_driver=False, logging_level=logging.WARNING)
    found: dict[str, dict[str, float]] = {}
    for case in options.cases:
        pipe = CASES[case]()
        speeds: dict[tuple[Order, int], list[float]] = {side: [] for side in SIDES}
        for _ in range(options.rounds):
            for side in SIDES:
                order, workers = side
                speeds[side].append(batches_per_s(pipe, workers, options.seconds, order=order))
                print(f"  {case}: {side[0]}, {side[1]} worker(s): {speeds[side][-1]:,.1f} batches/s", flush=True)
        median = {f"{order}, {workers}": statistics.median(speeds[order, workers]) for order, workers in SIDES}
        found[case] = median
        for workers in (1, 2):
            ratio = median[f"strict, {workers}"] / median[f"relaxed, {workers}"]
            print(f"{case}, {workers} worker(s): strict {ratio:.2f} of relaxed", flush=True)
    told = {"machine": f"{os.cpu_count()} CPUs, {platform.machine()}", "batches per second": found}
    print(json.dumps(told))
    if options.json:
        Path(options.json).write_text(json.dumps(told, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
