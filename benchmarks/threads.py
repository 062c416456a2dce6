"""What tuning the number of threads gains: elements per second with as many threads as CPUs, and with a tuned number.

    python benchmarks/threads.py [--data FOLDER] [--seconds 10] [--rounds 5] [--cases NAME ...] [--json FILE]

Both run in one process, alternating, each for so many seconds from its first batch on, the search included; medians
and spreads are printed.  `photographs`: ResNet50's operators on JPEGs, which compute without the GIL.  `waits`: a
sleep of 5 ms stands for a read from a remote storage.  `gil`: plain Python, which one thread at a time can run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pecan_ray as pecan
from benchmarks.reorder import OneSlot
from examples import resnet50
from examples.photographs import derived_photographs
from pecan_ray.engines.autotune import MOST_PER_CPU
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.engines.python import PythonEngine

BATCH = 32
READ_S = 0.005
ROWS = 100_000


def photographs(data: str | None) -> pecan.PecanPipeline:
    """Return ResNet50's pipeline."""
    return resnet50.pipeline(data or str(derived_photographs(256)), batch=BATCH)


def waits(data: str | None) -> pecan.PecanPipeline:
    """Return a pipeline whose function waits."""
    del data
    return numbers().map(read_remotely, on="i").batch(BATCH)


def gil(data: str | None) -> pecan.PecanPipeline:
    """Return a pipeline whose function holds the GIL."""
    del data
    return numbers().map(sum_squares, on="i").batch(BATCH)


def numbers() -> pecan.PecanPipeline:
    """Return a pipeline over numbers."""
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(ROWS), split_rows=1000))


def read_remotely(i: Any) -> Any:
    """Wait as for a remote storage."""
    time.sleep(READ_S)
    return i


def sum_squares(i: Any) -> Any:
    """Compute for about a millisecond in Python."""
    return i + sum(k * k for k in range(20_000)) % 2


CASES: dict[str, Callable[[str | None], pecan.PecanPipeline]] = {"photographs": photographs, "waits": waits, "gil": gil}


def measure(pipe: pecan.PecanPipeline, cpus: int, tuned: bool, seconds: float) -> tuple[float, int]:
    """Return elements per second from the first batch on, and the number of threads at the end."""
    options = EngineOptions(threads=cpus, most_threads=MOST_PER_CPU * cpus if tuned else None)
    sources = tuple(pipe.plan.sources())
    engine = PythonEngine(pipe.plan, sources, options, OneSlot())
    rows, began = 0, None
    with closing(engine), closing(engine.batches(AllLeases(sources, 0, None))) as batches:
        for produced in batches:
            if produced.slot is not None:
                produced.slot.release()
            now = time.perf_counter()
            if began is None:
                began = now
                continue
            rows += produced.rows
            if now - began > seconds:
                return rows / (now - began), engine.threads
    raise AssertionError("the leases go on for ever")


def main() -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of folders of JPEGs (default: photographs derived from scikit-image's)")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cpus = len(os.sched_getaffinity(0))
    machine = f"{cpus} CPUs, {platform.machine()}, Python {platform.python_version()}"
    facts: dict[str, Any] = {"machine": machine, "rounds": args.rounds, "seconds": args.seconds}
    print(f"{machine}; medians of {args.rounds} alternations of {args.seconds:g} s each")
    for case in args.cases:
        pipe = CASES[case](args.data)
        runs: dict[str, list[tuple[float, int]]] = {"fixed": [], "tuned": []}
        for number in range(args.rounds):
            for name in sorted(runs, reverse=number % 2 == 1):
                runs[name].append(measure(pipe, cpus, name == "tuned", args.seconds))
        medians = {name: statistics.median(rate for rate, _ in run) for name, run in runs.items()}
        spread = "; ".join(
            f"{name} {medians[name]:.0f} ({min(run)[0]:.0f} to {max(run)[0]:.0f})" for name, run in runs.items()
        )
        threads = sorted({count for _, count in runs["tuned"]})
        print(
            f"{case:12s} {medians['tuned'] / medians['fixed']:.2f}x  elements/s: {spread}; tuned to {threads}",
            flush=True,
        )
        facts[case] = {"ratio": medians["tuned"] / medians["fixed"], "runs": runs}
    if args.json:
        args.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
